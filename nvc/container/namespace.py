"""A container's mount namespace, entered and left by one object."""

from __future__ import annotations

import os
import sys

from nvc.base.errors import ContainerError, reason
from nvc.linux import namespaces, procfd
from nvc.linux.fd import Fd
from rpc.stop import Deferred

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TypeVar

    T = TypeVar("T")


class MountNamespace:
    """Enters another mount namespace; on exit this process is back in its own, with its root.

    namespace: an open mount namespace, or None to stay. Imports fail meanwhile, because modules would come from the
    container.
    """

    def __init__(self, namespace: Fd | None) -> None:
        self._namespace = namespace
        self._importers = list(sys.meta_path)
        self._origin: tuple[Fd, Fd] | None = None

    def __enter__(self) -> Self:
        if self._namespace is None:
            return self
        try:
            root = Fd(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), "/")
            own = Fd(os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=procfd.pin().fileno()), "/proc/self/ns/mnt")
            namespaces.enter(self._namespace, "mnt")
        except OSError as error:
            raise ContainerError(
                f"namespace association failed: {self._namespace.name}: {reason(error)}",
                hint="only root of the user namespace that the container's mount namespace belongs to may enter it",
            ) from error
        self._origin = own, root
        sys.meta_path.clear()
        return self

    def away(self, function: Callable[[], T]) -> T:
        """What ``function`` returns in this process's own namespace; then ``enter``."""
        try:
            with Deferred():
                self._leave()
            return function()
        finally:
            self.enter()

    def enter(self) -> None:
        """Be in the container's namespace again. May be repeated, and is where a Stop may have kept ``away`` from it.

        Raises OSError.
        """
        if self._origin is not None and self._namespace is not None:
            with Deferred():
                namespaces.enter(self._namespace, "mnt")
                sys.meta_path.clear()

    def __exit__(self, *_: object) -> None:
        if self._origin is not None:
            with self._origin[0], self._origin[1]:
                self._leave()
            self._origin = None

    def _leave(self) -> None:
        if self._origin is not None:
            own, root = self._origin
            namespaces.enter(own, "mnt")
            os.fchdir(root.fileno())
            os.chroot(".")
            sys.meta_path[:] = self._importers
