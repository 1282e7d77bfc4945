"""The fallback for kernels before 5.12: mount(2), with descriptors named through /proc/self/fd.

Weaker than the mount API, unavoidably: a bind mount is visible between the bind and the remount that restricts it, and
is copied to peers of a shared target before it is made private. As with the mount API: sources and targets are
descriptors; a source of another namespace is looked up again by path and must be the same inode; a remount that fails
unmounts; locked attributes are repeated, so that a user namespace can remount.
``nvc.linux.mounts`` is the only caller.
"""

from __future__ import annotations

import errno
import os

from nvc.formats import mountinfo
from nvc.linux import const, procfd, syscalls
from nvc.linux.fd import Fd, same_file
from nvc.linux.syscalls import SyscallError
from nvc.linux.tree import Legacy, Tree

_PIN = os.O_PATH | os.O_NOFOLLOW
_FLAGS = {
    const.MOUNT_ATTR_RDONLY: const.MS_RDONLY,
    const.MOUNT_ATTR_NOSUID: const.MS_NOSUID,
    const.MOUNT_ATTR_NODEV: const.MS_NODEV,
    const.MOUNT_ATTR_NOEXEC: const.MS_NOEXEC,
}
#: statvfs(3) flag -> mount flag: a remount that does not repeat it clears it, or fails where it is locked.
_KEEP = {
    os.ST_RDONLY: const.MS_RDONLY,
    os.ST_NOSUID: const.MS_NOSUID,
    os.ST_NODEV: const.MS_NODEV,
    os.ST_NOEXEC: const.MS_NOEXEC,
    os.ST_NOATIME: const.MS_NOATIME,
    os.ST_NODIRATIME: const.MS_NODIRATIME,
    os.ST_RELATIME: const.MS_RELATIME,
}
#: How mountinfo names them.
_WORDS = {
    const.MOUNT_ATTR_RDONLY: "ro",
    const.MOUNT_ATTR_NOSUID: "nosuid",
    const.MOUNT_ATTR_NODEV: "nodev",
    const.MOUNT_ATTR_NOEXEC: "noexec",
}
#: How often mounts are looked up anew: directories above them may be renamed meanwhile.
_TRIES = 16
#: Where a tmpfs waits, already filled but not yet attached; in it one directory a process and tmpfs.
_STAGING = "/run"
_count = 0


def clone(source: Fd, *, recursive: bool) -> Tree:
    """A reference to ``source``: without open_tree there are no detached mounts."""
    copy = source.duplicate()
    return Tree(copy.detach(), source.name, Legacy(source.duplicate(), recursive=recursive, mount=_mount_of(source)))


def new_tmpfs(source: str, options: dict[str, str], attributes: int) -> Tree:
    """A tmpfs on a directory of ours below /run, accessible to root alone until it is attached. Raises OSError."""
    global _count
    _count += 1
    place = f"{_STAGING}/nvc-tmpfs-{os.getpid()}-{_count}"
    os.mkdir(place, 0o700)
    try:
        data = ",".join(f"{key}={value}" for key, value in options.items())
        syscalls.mount(source, place, "tmpfs", _mount_flags(attributes), data)
        # Private also below a shared /run.
        syscalls.mount(None, place, None, const.MS_PRIVATE)
        root = syscalls.open_path(place, _PIN)
    except BaseException:
        _release(place)
        raise
    legacy = Legacy(root.duplicate(), recursive=False, release=lambda: _release(place))
    tree = Tree(root.detach(), place, legacy)
    tree.attributes = attributes
    return tree


def attach(tree: Tree, target: Fd) -> Fd:
    """Bind, restrict, make private. Returns the new mount's root, for undo. Raises SyscallError."""
    legacy = tree.legacy
    assert legacy is not None
    source = _here(legacy)
    before = procfd.mount_id(target)
    recursive = const.MS_REC if legacy.recursive else 0
    procfd.by_path(lambda a, b: syscalls.mount(a, b, None, const.MS_BIND | recursive), source, target)
    mounted = _top(target, source, before)
    try:
        remount(mounted, tree.attributes)
        private = const.MS_PRIVATE | const.MS_REC
        procfd.by_path(lambda path: syscalls.mount(None, path, None, private), mounted)
    except BaseException:
        procfd.by_path(lambda path: syscalls.umount2(path, const.MNT_DETACH), mounted)
        raise
    if legacy.release is not None:
        release, legacy.release = legacy.release, None
        release()
    return mounted


def remount(mounted: Fd, attributes: int) -> None:
    """Add MOUNT_ATTR_* to the mount that ``mounted`` is the root of. Raises SyscallError."""
    kept = os.statvfs(mounted.fileno()).f_flag
    flags = _mount_flags(attributes) | sum(bit for flag, bit in _KEEP.items() if kept & flag)
    both = const.MS_BIND | const.MS_REMOUNT | flags
    procfd.by_path(lambda path: syscalls.mount(None, path, None, both), mounted)


def restrict(top: Fd, attributes: int) -> None:
    """Add MOUNT_ATTR_* to the mount that ``top`` is the root of, and to all below it in our mount namespace.

    Raises OSError when one that can be seen cannot be reached.
    """
    wanted = {word for bit, word in _WORDS.items() if attributes & bit}
    for _ in range(_TRIES):
        left = [mount for mount in _visible(procfd.mount_id(top)) if not wanted <= set(mount.options)]
        if not left:
            return
        for mount in left:
            try:
                with syscalls.open_path(mount.point, _PIN) as root:
                    if procfd.mount_id(root) == mount.id:
                        remount(root, attributes)
            except SyscallError as error:
                # Moved away: it is looked up again.
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    raise
    raise SyscallError(errno.EBUSY, "mount", top)


def _visible(top: int) -> list[mountinfo.Mount]:
    """The mount with the id ``top`` and those below it that a path leads to: no other mount covers them."""
    with Fd(os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=procfd.pin().fileno())) as file:
        data = b"".join(iter(lambda: os.read(file.fileno(), 1 << 16), b""))
    every = {mount.id: mount for mount in mountinfo.parse(os.fsdecode(data))}
    # Id -> the ids from it up to ``top``.
    below: dict[int, set[int]] = {}
    for number in every:
        above = [number]
        while above[-1] != top and (parent := every[above[-1]].parent) in every and parent not in above:
            above.append(parent)
        if above[-1] == top:
            below[number] = set(above)

    def is_covered(number: int) -> bool:
        point = every[number].point
        return any(f"{point}/".startswith(f"{every[n].point}/") for n in below if n not in below[number])

    return [every[number] for number in below if not is_covered(number)]


def _here(legacy: Legacy) -> Fd:
    """The source as this mount namespace has it: mount(2) refuses to bind from another namespace.

    A container's namespace is made as a copy of the runtime's, so the path leads to the same file; if it does not,
    nothing is mounted. Ids of mounts are compared where the namespace is still the one that the source was pinned in.
    """
    source, before = legacy.source, legacy.mount
    again = syscalls.open_path(procfd.path_of(source), _PIN)
    now = _mount_of(again)
    if not same_file(again, source) or (before is not None and before[0] == now[0] and before != now):
        raise SyscallError(errno.ESTALE, "open", source.name)
    return again


def _mount_of(file: Fd) -> tuple[int, int]:
    namespace = os.stat("ns/mnt", dir_fd=procfd.pin().fileno()).st_ino
    return namespace, procfd.mount_id(file)


def _top(target: Fd, source: Fd, before: int) -> Fd:
    """The root of the mount just made on ``target``, looked up by path and verified.

    A descriptor of the target keeps naming what is below the mount, and remounting through it is refused.
    """
    mounted = syscalls.open_path(procfd.path_of(target), _PIN)
    if not same_file(mounted, source) or procfd.mount_id(mounted) == before:
        # Another process moved the target. The mount cannot be found: the caller fails, and its namespace ends.
        raise SyscallError(errno.ESTALE, "mount", source, target)
    return mounted


def _mount_flags(attributes: int) -> int:
    return sum(flag for attribute, flag in _FLAGS.items() if attributes & attribute)


def _release(place: str) -> None:
    """Unmount and remove the staging directory; the tmpfs stays where it was bound."""
    try:
        syscalls.umount2(place, const.MNT_DETACH)
    except SyscallError:
        pass  # the mount failed, or this process has left its namespace
    try:
        os.rmdir(place)
    except OSError:
        pass
