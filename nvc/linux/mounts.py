"""Mounts by descriptor: created detached, restricted before they are visible, attached in one step, undone exactly.

With the mount API of Linux 5.12 (open_tree, fsopen, mount_setattr, move_mount) a mount never exists in a namespace
with weaker attributes than asked for, and no path string is used twice. On kernels without it the same
functions use ``nvc.linux.mounts_legacy``.

Call ``clone`` in the namespace that the source is in, then enter the container's namespace, then ``attach``.
Call ``new_tmpfs`` in the namespace where it will be attached.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.base.undo import Undo
from nvc.linux import const, mounts_legacy, procfd, syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError
from nvc.linux.tree import Tree

RDONLY = const.MOUNT_ATTR_RDONLY
NOSUID = const.MOUNT_ATTR_NOSUID
NODEV = const.MOUNT_ATTR_NODEV
NOEXEC = const.MOUNT_ATTR_NOEXEC


_there = False


def modern() -> bool:
    """Whether the kernel has mount_setattr (5.12), the newest of the calls used here.

    A call that cannot succeed is asked whether it exists, once. Tests put names into ``syscalls.unavailable``.
    """
    global _there
    if not _there:
        try:
            syscalls.mount_setattr(syscalls.open_path("/", os.O_PATH), 0)
        except SyscallError as error:
            # EPERM: seccomp profiles older than the calls, or no CAP_SYS_ADMIN, which the next call reports.
            if error.errno == errno.ENOSYS:
                return False
        _there = True
    return "mount_setattr" not in syscalls.unavailable


def clone(source: str | Fd, *, recursive: bool = False, follow: bool = True) -> Tree:
    """A detached bind mount of ``source``, with ``recursive`` of what is mounted below it too.

    A path is opened once; with follow=False a symbolic link at its end is refused (ELOOP) instead of followed.
    ``stat`` of the result is the source's. Raises SyscallError.
    """
    opened = source if isinstance(source, Fd) else _pin(source, follow)
    if not modern():
        return mounts_legacy.clone(opened, recursive=recursive)
    return Tree.of(syscalls.open_tree(opened, recursive=recursive))


def new_tmpfs(*, mode: int, source: str, size: str = "") -> Tree:
    """A new, empty, detached tmpfs whose root has permission bits ``mode``; NOSUID, NODEV and NOEXEC are set.

    Files are made in it through ``os.open(name, ..., dir_fd=tree.fileno())``, before ``restrict`` makes it read-only.
    source: what mountinfo shows as the source; size: tmpfs's size option ("" = its default). Raises SyscallError.
    """
    attributes = NOSUID | NODEV | NOEXEC
    options = {"mode": f"{mode:04o}"} | ({"size": size} if size else {})
    if not modern():
        return mounts_legacy.new_tmpfs(source, options, attributes)
    with syscalls.fsopen("tmpfs") as context:
        syscalls.fsconfig_string(context, "source", source)
        for key, value in options.items():
            syscalls.fsconfig_string(context, key, value)
        syscalls.fsconfig_create(context)
        return Tree.of(syscalls.fsmount(context, attributes))


def restrict(tree: Tree, attributes: int) -> None:
    """Set ``attributes`` (RDONLY, NOSUID, NODEV, NOEXEC) and private propagation on a detached tree and all below it.

    Attributes are only ever added, so that those locked by a user namespace are no obstacle. Raises SyscallError.
    """
    tree.attributes |= attributes
    if tree.legacy is None:
        syscalls.mount_setattr(tree, attributes, propagation=const.MS_PRIVATE)


def attach(tree: Tree, target: Fd, undo: Undo) -> None:
    """Mount ``tree`` on top of ``target``: a directory on a directory, anything else on anything else.

    ``tree`` names the attached mount afterwards, and undo unmounts exactly that one, whatever is at the path then.
    Raises SyscallError: ENOTDIR for different kinds, EINVAL when ``target`` was opened in another mount namespace.
    """
    if tree.legacy is not None:
        _require_same_kind(tree, target)
        mounted = mounts_legacy.attach(tree, target)
        undo.push_urgent(unmount, mounted)
        return
    try:
        syscalls.move_mount(tree, target)
    except SyscallError as error:
        if error.errno == errno.EINVAL:
            _require_same_kind(tree, target)
        raise
    undo.push_urgent(unmount, tree.duplicate())
    # Attached below a shared mount, the tree became shared too (attach_recursive_mnt() in kernel/fs/namespace.c):
    # later mounts on it must not propagate.
    syscalls.mount_setattr(tree, 0, propagation=const.MS_PRIVATE)


def _require_same_kind(tree: Tree, target: Fd) -> None:
    """move_mount(2) fails with EINVAL for this too, the same as for a target of another namespace."""
    if stat.S_ISDIR(tree.stat().st_mode) != stat.S_ISDIR(target.stat().st_mode):
        raise SyscallError(errno.ENOTDIR, "move_mount", tree, target)


def unmount(mounted: Fd) -> None:
    """Detach the mount whose root is ``mounted``, and what is mounted on it. No error if it is gone already.

    The descriptor came from open_tree or fsmount and was attached: the kernel takes its magic link for this very
    mount, also when another one covers it. Raises SyscallError.
    """
    try:
        procfd.by_path(lambda path: syscalls.umount2(path, const.MNT_DETACH), mounted)
    except SyscallError as error:
        if error.errno != errno.EINVAL:  # EINVAL: not attached in this namespace (any more)
            raise


def _pin(path: str, follow: bool) -> Fd:
    opened = syscalls.open_path(path, os.O_PATH | (0 if follow else os.O_NOFOLLOW))
    # O_PATH|O_NOFOLLOW opens the link itself.
    if not follow and stat.S_ISLNK(opened.stat().st_mode):
        raise SyscallError(errno.ELOOP, "open", path)
    return opened


def is_mount_root(file: Fd) -> bool:
    """Whether a file is the root of a mount; False also where the kernel does not tell (before Linux 5.8).

    Raises SyscallError.
    """
    try:
        return syscalls.statx_mount(file)[1]
    except SyscallError as error:
        if error.errno != errno.ENOSYS:
            raise
        return False
