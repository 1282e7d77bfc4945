"""Carries out each kind of operation on an open container root, with undo.

Every executor returns whether it changed anything: False means that the operation is already in effect (a second run,
or an engine that did it first). Its entries in ``undo`` revert exactly its own changes.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.base.errors import MountError, reason
from nvc.container.operations import AllowDevices, ApplicationProfile, BindMount, EndpointMount, Symlink, Tmpfs
from nvc.linux import cgroup, const, mounts, syscalls
from nvc.linux.rights import Owner
from nvc.model import ProcFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.base.log import Log
    from nvc.base.undo import Undo
    from nvc.container.ldcache.snapshot import Snapshot
    from nvc.container.propagation import Propagation
    from nvc.linux.fd import Fd
    from nvc.linux.root import Root
    from nvc.linux.tree import Tree

ATTRIBUTES = {"ro": mounts.RDONLY, "nosuid": mounts.NOSUID, "nodev": mounts.NODEV, "noexec": mounts.NOEXEC}
# statvfs(3) flag of each attribute, by which an existing mount is recognised as restricted enough.
_FLAGS = {"ro": os.ST_RDONLY, "nosuid": os.ST_NOSUID, "nodev": os.ST_NODEV, "noexec": os.ST_NOEXEC}
_TMPFS_FLAGS = ("ro", "nosuid", "nodev", "noexec")
_TMPFS_SIZE = "1m"

#: Where drivers look for profiles, and the name of ours (libnvidia-container.md 5.3).
PROFILE_DIRECTORY = "/etc/nvidia/nvidia-application-profiles-rc.d"
_PROFILE = f"{PROFILE_DIRECTORY}/10-container.conf"

HINTS = {
    errno.EROFS: "the container's file system is read-only there: make the mount points part of the image, or let the "
    "engine make the root read-only after its hooks (root.readonly in config.json does)",
    errno.ENOSPC: "the container's file system is full",
    errno.EDQUOT: "the quota of the container's file system is exhausted",
    errno.EISDIR: "the image has a directory where a file goes",
    errno.ENOTDIR: "the image has a file where a directory goes",
    errno.EEXIST: "the image has something of another kind there",
    errno.ELOOP: "the image's links have a loop, or lead through a magic link of /proc",
    errno.EXDEV: "a link of the image leads into a volume there, and what is made would stay in it: take the link out "
    "of the image, or mount the volume elsewhere",
    errno.EPERM: "CAP_SYS_ADMIN is missing: run as root of the container's user namespace",
}
_UNREACHABLE = (errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EAGAIN)


class Place:
    """The container's side of a transaction: root and owner of what is made in it.

    snapshot: of an update of the loader cache, which is not in force yet.
    """

    __slots__ = ("gid", "log", "propagation", "root", "snapshot", "uid", "undo")

    def __init__(self, root: Root, owner: tuple[int, int], undo: Undo, propagation: Propagation, log: Log) -> None:
        self.root = root
        self.uid, self.gid = owner
        self.undo = undo
        self.propagation = propagation
        self.log = log
        self.snapshot: Snapshot | None = None
        root.volumes.notice = lambda path: log.warn(f"{root.path}{path} is in a volume: what is made there stays in it")


def failure(action: str, path: str, error: OSError) -> MountError:
    """The MountError for a failed step on ``path``; the system call is in the cause."""
    return MountError(f"{action} failed: {path}: {reason(error)}", hint=HINTS.get(error.errno or 0, ""))


def creation_failure(path: str, error: OSError) -> MountError:
    """The MountError for a mount point or link that cannot be made (texts of libnvidia-container.md 1.10)."""
    if error.errno in _UNREACHABLE:
        return MountError(f"path error: {path}: {reason(error)}", hint=HINTS.get(error.errno or 0, ""))
    return failure("file creation", path, error)


def bind(operation: BindMount, place: Place, source: Tree) -> bool:
    """Attach the restricted source at its target, which is made where missing. Raises MountError."""
    path = operation.container_path
    kind = source.stat()
    make = place.root.make_directories if stat.S_ISDIR(kind.st_mode) else place.root.make_file
    mode = 0o755 if stat.S_ISDIR(kind.st_mode) else stat.S_IFMT(kind.st_mode) | _mount_point_mode(kind.st_mode)
    try:
        target = make(path, mode=mode, uid=place.uid, gid=place.gid, undo=place.undo)
    except OSError as error:
        raise creation_failure(place.root.path + path, error) from error
    with target:
        if _is_mounted(target, kind, operation.attributes):
            return False
        _attach(source, target, place, operation.host_path)
    return True


def tmpfs(operation: Tmpfs, place: Place, source: Tree | None) -> bool:
    """Mount a filled, read-only tmpfs on a directory that exists. Raises MountError."""
    path = place.root.path + operation.target
    try:
        target = place.root.resolve(operation.target)
    except OSError as error:
        hint = ""
        if operation.target.startswith("/proc/") and error.errno == errno.ENOENT:
            hint = "the nvidia kernel module is not loaded, or the container has no /proc"
        raise MountError(f"mount operation failed: {path}: {reason(error)}", hint=hint) from error
    return _tmpfs_on(operation, place, target)


def application_profile(operation: ApplicationProfile, place: Place, source: Tree | None) -> bool:
    """Mount the tmpfs with the application profile; its directory is made where missing. Raises MountError."""
    files = (ProcFile(_PROFILE, 0o555, profile_text(operation.minors)),) if operation.minors else ()
    make = place.root.make_directories
    try:
        make(PROFILE_DIRECTORY.rpartition("/")[0], uid=place.uid, gid=place.gid, undo=place.undo).close()
        target = make(PROFILE_DIRECTORY, mode=0o555, uid=place.uid, gid=place.gid, undo=place.undo)
    except OSError as error:
        raise creation_failure(place.root.path + PROFILE_DIRECTORY, error) from error
    return _tmpfs_on(Tmpfs(PROFILE_DIRECTORY, 0o555, files=files), place, target)


def symlink(operation: Symlink, place: Place, source: Tree | None) -> bool:
    """Make a link unless its name is taken. Raises MountError."""
    path = operation.container_path
    try:
        return place.root.make_symlink(path, operation.text, uid=place.uid, gid=place.gid, undo=place.undo)
    except OSError as error:
        raise creation_failure(place.root.path + path, error) from error


def allow_devices(operation: AllowDevices, place: Place, version: int, directory: Fd) -> bool:
    """Add the rules to the container's device cgroup. Raises MountError."""
    try:
        return cgroup.allow(version, directory, operation.rules, place.undo)
    except OSError as error:
        raise MountError(f"failed to add device rules: {error}") from error


def profile_text(minors: tuple[int, ...]) -> str:
    """The profile, byte by byte that of the reference; the mask may have any number of bits."""
    mask = sum(1 << minor for minor in set(minors))
    return (
        f'{{ "profiles": [{{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", {mask:#x}]}}], '
        '"rules": [{"pattern": [], "profile": "_container_"}]}'
    )


def _mount_point_mode(mode: int) -> int:
    # The permission bits of the source, without special bits, masked as by umask 022.
    return mode & 0o755 or 0o444


def _attach(source: Tree, target: Fd, place: Place, path: str) -> None:
    try:
        place.propagation.confine(target, place.root.fd)
        mounts.attach(source, target, place.undo)
    except OSError as error:
        raise failure("mount operation", path, error) from error


def _is_mounted(target: Fd, source: os.stat_result, attributes: tuple[str, ...]) -> bool:
    """Whether ``target`` is the root of a mount of the same file with at least these attributes."""
    status = target.stat()
    if (status.st_dev, status.st_ino) != (source.st_dev, source.st_ino):
        return False
    return mounts.is_mount_root(target) and _has_flags(target, attributes)


def _has_flags(target: Fd, attributes: tuple[str, ...]) -> bool:
    flags = os.statvfs(target.fileno()).f_flag
    return all(flags & _FLAGS[attribute] for attribute in attributes)


def _tmpfs_on(operation: Tmpfs, place: Place, target: Fd) -> bool:
    path = place.root.path + operation.target
    with target:
        if _is_filled(operation, target):
            return False
        try:
            with Owner(place.uid, place.gid):
                tree = mounts.new_tmpfs(mode=operation.mode, source=operation.source, size=_TMPFS_SIZE)
                with_content(operation, tree)
            mounts.restrict(tree, sum(ATTRIBUTES[word] for word in _TMPFS_FLAGS))
        except OSError as error:
            raise failure("mount operation", path, error) from error
        with tree:
            _attach(tree, target, place, path)
    return True


def with_content(operation: Tmpfs, tree: Fd) -> None:
    """Fill a file system that is not attached yet. Raises OSError."""
    made: set[str] = set()

    def directory(path: str) -> None:
        if path and path not in made:
            directory(path.rpartition("/")[0])
            os.mkdir(path, 0o555, dir_fd=tree.fileno())
            made.add(path)

    for path in operation.directories:
        directory(_below(operation, path))
    for file in operation.files:
        path = _below(operation, file.path)
        directory(path.rpartition("/")[0])
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        number = os.open(path, flags, file.mode & 0o555, dir_fd=tree.fileno())
        try:
            data = file.text.encode("utf-8", "surrogateescape")
            while data:
                data = data[os.write(number, data) :]
        finally:
            os.close(number)


def _below(operation: Tmpfs, path: str) -> str:
    if not path.startswith(operation.target + "/") or ".." in path.split("/"):
        raise MountError(f"invalid argument: {path} is not below {operation.target}")
    return path[len(operation.target) + 1 :]


def _is_filled(operation: Tmpfs, target: Fd) -> bool:
    """Whether a tmpfs of ours that has all of this is mounted there already."""
    if syscalls.filesystem_type(target) != const.TMPFS_MAGIC or not mounts.is_mount_root(target):
        return False
    if not _has_flags(target, _TMPFS_FLAGS):
        return False
    try:
        for path in operation.directories:
            os.stat(_below(operation, path), dir_fd=target.fileno(), follow_symlinks=False)
        return all(_has_text(operation, target, file) for file in operation.files)
    except FileNotFoundError:
        return False


def _has_text(operation: Tmpfs, target: Fd, file: ProcFile) -> bool:
    path = _below(operation, file.path)
    if not file.text:
        os.stat(path, dir_fd=target.fileno(), follow_symlinks=False)
        return True
    expected = file.text.encode("utf-8", "surrogateescape")
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=target.fileno())
    try:
        return os.read(number, len(expected) + 1) == expected
    finally:
        os.close(number)


if TYPE_CHECKING:
    Executor = Callable[..., bool]

#: Kind of operation -> what carries it out. AllowDevices and UpdateLdcache take more and are called by
#: ``nvc.container.apply``.
EXECUTORS: dict[type, Executor] = {
    BindMount: bind,
    EndpointMount: bind,
    Tmpfs: tmpfs,
    ApplicationProfile: application_profile,
    Symlink: symlink,
}
