"""Small files and links below a container's root, put in place by renaming: nothing that exists is written to.

The parent is resolved to a descriptor inside the root; the new name is made there under another name first, so that
whatever the image has at the final name (a link that leads out, a FIFO) is replaced, never followed or opened.
"""

from __future__ import annotations

import errno
import os

from nvc.base.errors import InputError, MountError
from nvc.base.undo import Undo
from nvc.container.execute import creation_failure
from nvc.linux.rights import Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.linux.root import Root


class Below:
    """A container's root and the owner of what is made in it."""

    __slots__ = ("gid", "root", "uid")

    def __init__(self, root: Root, uid: int, gid: int) -> None:
        self.root = root
        self.uid = uid
        self.gid = gid

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Put a file with ``text`` at ``path``. Raises MountError."""

        def make(name: str, directory: int) -> None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            number = os.open(name, flags, mode, dir_fd=directory)
            try:
                data = text.encode("utf-8", "surrogateescape")
                while data:
                    data = data[os.write(number, data) :]
            finally:
                os.close(number)

        self._put(path, make, lambda name, directory: False)

    def link(self, path: str, text: str) -> bool:
        """Make ``path`` a link to ``text``; what has that name is replaced. False when it is that link already.

        Raises MountError: a directory or a mount point is not replaced.
        """

        def make(name: str, directory: int) -> None:
            os.symlink(text, name, dir_fd=directory)

        def done(name: str, directory: int) -> bool:
            try:
                return os.readlink(name, dir_fd=directory) == text
            except OSError:
                return False

        return self._put(path, make, done, at_once=True)

    def remove(self, path: str) -> None:
        """Remove a file or link, if it is there. Raises MountError."""
        parent, name = _split(path)
        try:
            with self.root.resolve(parent) as directory, Owner(self.uid, self.gid):
                os.stat(name, dir_fd=directory.fileno(), follow_symlinks=False)
                self.root.volumes.check(directory, path)
                os.unlink(name, dir_fd=directory.fileno())
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise creation_failure(self.root.path + path, error) from error

    def _put(
        self,
        path: str,
        make: Callable[[str, int], None],
        done: Callable[[str, int], bool],
        *,
        at_once: bool = False,
    ) -> bool:
        """at_once: ``make`` makes all of it in one step, or raises FileExistsError where the name is taken."""
        parent, name = _split(path)
        temporary = f".{name[:200]}.{os.urandom(6).hex()}"
        try:
            with Undo() as undo:
                opened = self.root.make_directories(parent, uid=self.uid, gid=self.gid, undo=undo)
                undo.commit()
            with opened, Owner(self.uid, self.gid):
                directory = opened.fileno()
                if done(name, directory):
                    return False
                self.root.volumes.check(opened, path)
                if at_once:
                    try:
                        # Two steps in a container's overlay take twice as long.
                        make(name, directory)
                        return True
                    except FileExistsError:
                        pass
                make(temporary, directory)
                try:
                    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                except OSError:
                    os.unlink(temporary, dir_fd=directory)
                    raise
        except OSError as error:
            if error.errno == errno.EBUSY:
                what = f"{self.root.path}{path} is a mount point"
                raise MountError(what, hint="something else was mounted where the driver's file goes") from error
            raise creation_failure(self.root.path + path, error) from error
        return True


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    if name in ("", ".", "..") or "\0" in path:
        raise InputError(f"{path!r} does not name a file")
    return parent or "/", name
