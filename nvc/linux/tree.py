"""A mount tree that is not attached yet."""

from __future__ import annotations

from nvc.linux.fd import Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Legacy:
    """What the fallback needs to attach a tree later: how, and how to release what was set up for it.

    mount: (number of the mount namespace, id of the mount in it) that ``source`` was pinned on, or None.
    """

    __slots__ = ("mount", "recursive", "release", "source")

    def __init__(
        self,
        source: Fd,
        *,
        recursive: bool,
        release: Callable[[], None] | None = None,
        mount: tuple[int, int] | None = None,
    ) -> None:
        self.source = source
        self.recursive = recursive
        self.release = release
        self.mount = mount


class Tree(Fd):
    """The root of a detached mount; made by ``nvc.linux.mounts``. attributes: the MOUNT_ATTR_* set so far.

    legacy: None, or how an old kernel attaches it.
    """

    __slots__ = ("attributes", "legacy")

    def __init__(self, number: int, name: str = "", legacy: Legacy | None = None) -> None:
        super().__init__(number, name)
        self.attributes = 0
        self.legacy = legacy

    @classmethod
    def of(cls, opened: Fd) -> Tree:
        """Take over an open_tree or fsmount descriptor."""
        return cls(opened.detach(), opened.name)

    def close(self) -> None:
        """Close it; the kernel frees a tree that was never attached."""
        legacy = getattr(self, "legacy", None)
        super().close()
        if legacy is not None and legacy.release is not None:
            release, legacy.release = legacy.release, None
            release()
