"""Cover one file of a container's /proc with a text of our own.

Only a mount can do that, its source must be a file, and that file must be nowhere in the image: so it is made on a
tmpfs that no other process sees, cloned out of it, and the tmpfs goes.
"""

from __future__ import annotations

import errno
import os

from nvc.base.errors import MountError
from nvc.base.undo import Undo
from nvc.container.apply import is_foreign
from nvc.container.execute import ATTRIBUTES, failure, with_content
from nvc.container.operations import Tmpfs
from nvc.container.propagation import Propagation
from nvc.linux import const, mounts, syscalls
from nvc.linux.fd import Fd
from nvc.model import ProcFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.log import Log
    from nvc.linux.root import Root
    from nvc.linux.tree import Tree

_TMPFS_SIZE = "1m"
_RESTRICTED = sum(ATTRIBUTES[word] for word in ("ro", "nosuid", "nodev", "noexec"))


def cover(root: Root, path: str, text: str, log: Log) -> bool:
    """Show ``text`` at ``path``, a file below /proc. False when it says that already, or is not there.

    Raises MountError: the path does not lead to procfs, or mounting is refused.
    """
    parent = path.rpartition("/")[0]
    try:
        if root.read(path, 1 << 20) == text.encode("utf-8", "surrogateescape"):
            return False
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise failure("file read", root.path + path, error) from error
        log.warn(f"the container has no {path}")
        return False
    name = path.rpartition("/")[2]
    propagation = Propagation(foreign=is_foreign(), log=log)
    content = Tmpfs(parent, 0o555, files=(ProcFile(path, 0o444, text),))
    try:
        with mounts.new_tmpfs(mode=0o555, source="nvc", size=_TMPFS_SIZE) as tmpfs:
            with_content(content, tmpfs)
            with Undo() as temporary:
                if tmpfs.legacy is None:
                    # open_tree clones only from what is mounted in our namespace (kernel/fs/namespace.c, check_mnt).
                    # The end of this block takes it away again.
                    with _proc(root, parent) as place:
                        propagation.confine(place, root.fd)
                        mounts.attach(tmpfs, place, temporary)
                source = _clone(tmpfs, name)
            with source, _proc(root, path) as target, Undo() as undo:
                propagation.confine(target, root.fd)
                mounts.attach(source, target, undo)
                undo.commit()
    except OSError as error:
        raise failure("mount operation", root.path + path, error) from error
    return True


def _clone(tmpfs: Tree, name: str) -> Tree:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with Fd(os.open(name, flags, dir_fd=tmpfs.fileno()), name) as file:
        tree = mounts.clone(file)
    mounts.restrict(tree, _RESTRICTED)
    return tree


def _proc(root: Root, path: str) -> Fd:
    found = root.resolve(path)
    if syscalls.filesystem_type(found) != const.PROC_SUPER_MAGIC:
        found.close()
        raise MountError(f"mount operation failed: {root.path}{path}: not a file of procfs")
    return found
