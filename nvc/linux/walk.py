"""Path resolution inside a root, component by component, every step pinned by a descriptor.

``nvc.linux.root`` uses it where openat2(2) cannot do the work: to create what is missing on the way, to tell the
names that a path resolved to, and on kernels without openat2. It is safe by construction rather than by checks: each
step opens one name in an open directory with O_NOFOLLOW, link texts are read from the link's descriptor and
interpreted here, and ".." goes back to the directory that we came from. A concurrent rename or link swap changes
which place *inside* the root is reached and nothing else. What remains is a directory that is moved out of the root
while we stand in it, which ``verify`` looks for at the end, as RESOLVE_IN_ROOT does with EAGAIN.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.linux import const, syscalls
from nvc.linux.fd import Fd, same_file
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Links followed before ELOOP: MAXSYMLINKS of kernel/include/linux/namei.h, so that both resolvers agree.
MAX_LINKS = 40
_MAX_DEPTH = 4096


class Walk:
    """One walk below ``root``. ``make_directory(parent, name)`` is called for directories that are missing, or None.

    Raises OSError like the system calls (SyscallError with ELOOP, ENOTDIR, ...).
    """

    def __init__(self, root: Fd, make_directory: Callable[[Fd, str], None] | None = None) -> None:
        self._root = root
        self._make_directory = make_directory
        #: Directories from the root to where we stand, and their names.
        self._stack: list[Fd] = [root]
        self.names: list[str] = []
        self._links = 0

    @property
    def directory(self) -> Fd:
        """Where we stand."""
        return self._stack[-1]

    def enter(self, path: str) -> None:
        """Walk into the directory ``path``, links followed."""
        parts = _parts(path)
        while parts:
            parts = self.step(parts.pop(0), parts)

    def parent(self, path: str) -> str:
        """Walk to the directory that holds the last component of ``path``, and return that component.

        "" when the path ends in the directory itself ("/", "..", "x/").
        """
        return self._parent(_parts(path))

    def final(self, path: str, *, follow: bool = True) -> tuple[Fd | None, str]:
        """Walk to the end of ``path``, links followed: (what is there, its name); (None, name) when nothing is.

        name is "" and the descriptor a duplicate of the directory when the path ends in one by itself.
        """
        parts = _parts(path)
        while True:
            name = self._parent(parts)
            if not name:
                return self.directory.duplicate(), ""
            found = open_name(self.directory, name)
            if found is None or not follow or not stat.S_ISLNK(found.stat().st_mode):
                return found, name
            parts = self.follow(found, [])

    def follow(self, link: Fd, rest: list[str]) -> list[str]:
        """The components to walk instead of the open symbolic link ``link``; goes to the root if it is absolute."""
        self._links += 1
        if self._links > MAX_LINKS:
            raise SyscallError(errno.ELOOP, "resolve", link.name)
        text = os.readlink("", dir_fd=link.fileno())
        _refuse_magic(link, text)
        if text.startswith("/"):
            self._stack, self.names = [self._root], []
        return _parts(text) + rest

    def step(self, name: str, rest: list[str]) -> list[str]:
        """Go into ``name``; the components that are still to walk."""
        if name == ".":
            return rest
        if name == "..":
            # At the root the kernel stays there (RESOLVE_IN_ROOT), as chroot does. The reference refuses instead;
            # neither leaves the root, and "/.." in a harmless image is no reason to fail its start.
            if self.names:
                self._stack.pop()
                self.names.pop()
            return rest
        found = open_name(self.directory, name)
        if found is None and self._make_directory is not None:
            self._make_directory(self.directory, name)
            found = open_name(self.directory, name)
        if found is None:
            raise SyscallError(errno.ENOENT, "openat", self.directory, name)
        mode = found.stat().st_mode
        if stat.S_ISLNK(mode):
            return self.follow(found, rest)
        if not stat.S_ISDIR(mode):
            raise SyscallError(errno.ENOTDIR, "openat", self.directory, name)
        self._stack.append(found)
        self.names.append(name)
        return rest

    def _parent(self, parts: list[str]) -> str:
        while parts:
            name = parts.pop(0)
            if not parts and name not in ("..", "."):
                return name
            parts = self.step(name, parts)
        return ""

    def verify(self) -> None:
        """Check that where we stand is still below the root. Raises SyscallError EAGAIN if it was moved away."""
        current = self.directory
        for _ in range(_MAX_DEPTH):
            if same_file(current, self._root):
                return
            above = syscalls.openat(current, "..", os.O_PATH | os.O_DIRECTORY)
            if same_file(above, current):
                break
            current = above
        raise SyscallError(errno.EAGAIN, "resolve", self.directory)


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    # "x/" and "x/." demand that x is a directory: a last "." makes the walk go into it.
    return [*parts, "."] if parts and path.endswith(("/", "/.")) else parts


def open_name(directory: Fd, name: str) -> Fd | None:
    """The entry ``name`` of an open directory, as O_PATH, a link not followed; None when there is none."""
    try:
        return syscalls.openat(directory, name, os.O_PATH | os.O_NOFOLLOW)
    except SyscallError as error:
        if error.errno != errno.ENOENT:
            raise
        return None


def _refuse_magic(link: Fd, text: str) -> None:
    """What RESOLVE_NO_MAGICLINKS refuses: links of /proc that lead to an object rather than to a path.

    Nothing is lost without it (the text is interpreted inside the root), but both resolvers shall give one answer.
    /proc's ordinary links ("self", "mounts", "net") are relative and hold no ":".
    """
    if (text.startswith("/") or ":" in text) and syscalls.filesystem_type(link) == const.PROC_SUPER_MAGIC:
        raise SyscallError(errno.ELOOP, "resolve", link.name)
