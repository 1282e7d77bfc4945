"""Look a created, not yet started container up: nvc_container_new (libnvidia-container.md 2.4). Changes nothing.

The process is pinned first: ``/proc/PID`` stays open, and a descriptor of it answers ESRCH when the process has ended,
also if its number is in use again. Everything of the rootfs is read below a descriptor of it.
"""

from __future__ import annotations

import os
import stat

from nvc.base.errors import ContainerError, reason
from nvc.container import compat
from nvc.container.compat import CompatLibrary
from nvc.container.ldcache.program import HOST_LDCONFIG, host_ldconfig
from nvc.container.messages import ContainerConfig, InspectReply, InspectRequest
from nvc.linux import cgroup, owned
from nvc.linux.fd import Fd, same_file
from nvc.linux.root import Root
from nvc.linux.syscalls import SyscallError
from nvc.model import CgroupRef, Container

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.log import Log

#: Machine -> (multiarch directory, 32-bit multiarch directory), as Debian names them.
_MULTIARCH = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/var/empty"),
}
_OTHER_MULTIARCH = ("/usr/lib64", "/var/empty")
_ENDED = "the process has ended: --pid takes a process of the created, not yet started container"
_LINKED = "name the directory itself, or give the link and the directory that it is in to root"
_FOREIGN = "this process may not open the container's namespaces: run as root of its parent user namespace"


class Located:
    """A container, with the descriptors that pin it.

    process: its /proc/PID, or None when standalone. namespace: its mount namespace, or None to stay in ours.
    rootfs: identity (device, inode) that the rootfs had when it was looked up.
    """

    __slots__ = ("compat", "container", "namespace", "process", "rootfs")

    def __init__(
        self,
        container: Container,
        compat_library: CompatLibrary | None,
        process: Fd | None,
        namespace: Fd | None,
        rootfs: tuple[int, int],
    ) -> None:
        self.container = container
        self.compat = compat_library
        self.process = process
        self.namespace = namespace
        self.rootfs = rootfs

    def close(self) -> None:
        """Close the descriptors."""
        for opened in (self.process, self.namespace):
            if opened is not None:
                opened.close()

    def reply(self) -> InspectReply:
        return InspectReply(self.container, self.compat)


def inspect(request: InspectRequest, log: Log) -> Located:
    """Look the container up. Raises ContainerError, always before anything is changed."""
    config = request.config
    _check_rootfs_text(config.rootfs)
    process = namespace = None
    if request.supervised:
        process = _pin(config.pid)
        view = Root(_open_in(process, "root", os.O_PATH | os.O_DIRECTORY), "/")
        namespace = _open_in(process, "ns/mnt", os.O_RDONLY)
        uid, gid = _owner(process)
    else:
        # LXC runs this in the container's namespaces with the host's /proc, which has no entry for it.
        view = Root.open("/")
        uid, gid = os.geteuid(), os.getegid()
    with view, _open_rootfs(view, config.rootfs) as root:
        status = root.fd.stat()
        container = Container(
            pid=config.pid if request.supervised and config.pid is not None else os.getpid(),
            rootfs=root.path,
            supervised=request.supervised,
            mount_namespace=f"/proc/{config.pid}/ns/mnt" if request.supervised else "",
            **_directories(root, config),
            ldconfig=_ldconfig(config.ldconfig, log),
            owner_uid=uid,
            owner_gid=gid,
            cgroup=_cgroup(config.pid if request.supervised else None) if request.find_cgroup else None,
        )
        library = compat_library(root, f"{config.cudart_directory}/compat", log) if request.find_compat else None
    if process is not None:
        # The cgroup was looked up by pid: if the process still exists, the pid was not reused.
        _open_in(process, "ns/mnt", os.O_PATH).close()
    return Located(container, library, process, namespace, (status.st_dev, status.st_ino))


def open_root(located: Located) -> Root:
    """The container's root as this process sees it, outside of the container's namespaces. Raises ContainerError."""
    rootfs = located.container.rootfs
    try:
        if located.process is None:
            root = Root.open(rootfs)
        else:
            with Root(_open_in(located.process, "root", os.O_PATH | os.O_DIRECTORY), "/") as view:
                root = Root(view.resolve(rootfs), rootfs)
    except SyscallError as error:
        raise ContainerError(f"open failed: {rootfs}: {reason(error)}") from error
    status = root.fd.stat()
    if (status.st_dev, status.st_ino) != located.rootfs:
        root.close()
        raise ContainerError(f"path error: {rootfs}: replaced by another directory since it was looked up")
    return root


def _check_rootfs_text(rootfs: str) -> None:
    if not rootfs.startswith("/") or "\0" in rootfs or not rootfs.strip("/."):
        raise ContainerError(f"invalid rootfs directory: {rootfs!r}", hint="give an absolute path other than /")


def _pin(pid: int | None) -> Fd:
    """The directory /proc/PID, kept open. Raises ContainerError."""
    if pid is None or pid <= 0:
        raise ContainerError("invalid argument: a supervised container needs the pid of one of its processes")
    path = f"/proc/{pid}"
    try:
        return Fd(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), path)
    except OSError as error:
        raise _lost(f"{path}/root/", error) from error


def _open_in(process: Fd, name: str, flags: int) -> Fd:
    path = f"{process.name}/{name}"
    try:
        return Fd(os.open(name, flags | os.O_CLOEXEC, dir_fd=process.fileno()), path)
    except OSError as error:
        raise _lost(path, error) from error


def _lost(path: str, error: OSError) -> ContainerError:
    hint = _FOREIGN if isinstance(error, PermissionError) else _ENDED
    return ContainerError(f"open failed: {path}: {reason(error)}", hint=hint)


def _owner(process: Fd) -> tuple[int, int]:
    """Host ids of the container's root: those of its user namespace's uid 0 when it has one, else the process's.

    Not the owner of /proc/PID alone: that is the host's root while the process is not dumpable (crun's is not).
    """
    ours = os.stat("/proc/self/ns/user")
    try:
        theirs = os.stat("ns/user", dir_fd=process.fileno())
        status = os.fstat(process.fileno())
        if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino):
            return status.st_uid, status.st_gid
        uid, gid = (_mapped_root(process, name) for name in ("uid_map", "gid_map"))
    except OSError as error:
        raise _lost(f"{process.name}/ns/user", error) from error
    if os.geteuid() != 0:
        raise ContainerError(
            f"namespace association failed: {process.name}/ns/user: operation not permitted",
            hint="the container has a user namespace of its own, which only root may enter here: "
            "use a createContainer hook, or an engine that runs its hooks in that namespace (rootless Podman does)",
        )
    return status.st_uid if uid is None else uid, status.st_gid if gid is None else gid


def _mapped_root(process: Fd, name: str) -> int | None:
    with _open_in(process, name, os.O_RDONLY) as file:
        for line in os.read(file.fileno(), 4096).splitlines():
            inside, outside, _ = line.split()
            if inside == b"0":
                return int(outside)
    return None


def _open_rootfs(view: Root, rootfs: str) -> Root:
    """ROOTFS in the container's mount namespace; its "/" when the runtime has already pivoted there.

    Hooks run before that, but `runc create` and `crun create` return after it: the path is then one of the host's only.
    """
    if _pivoted(view, rootfs):
        return Root(view.fd.duplicate(), "/")
    return open_rootfs(view, rootfs)


def open_rootfs(view: Root, rootfs: str) -> Root:
    """The directory ``rootfs`` of the mount namespace whose root ``view`` is. Raises ContainerError.

    A bundle may be in a directory of a user. That user can make a link of its rootfs at any time, to any directory of
    the host: what others than root can make or replace is not followed.
    """
    try:
        found = owned.Sources(view.fd).open(rootfs)
        status = found.stat()
    except owned.Untrusted as error:
        raise ContainerError(f"path error: {rootfs}: {error.text}", hint=_LINKED) from error
    except OSError as error:
        raise ContainerError(f"open failed: {rootfs}: {reason(error)}", hint="ROOTFS must exist") from error
    if not stat.S_ISDIR(status.st_mode):
        raise ContainerError(f"open failed: {rootfs}: not a directory", hint="ROOTFS is the container's root directory")
    if same_file(found, view.fd):
        raise ContainerError(
            f"invalid rootfs directory: {rootfs} is the root of the mount namespace",
            hint="ROOTFS must be the container's root directory, not the host's",
        )
    return Root(found, rootfs)


def _pivoted(view: Root, rootfs: str) -> bool:
    """Whether the root of the container's mount namespace is what the host calls ``rootfs``, and not the host's own."""
    try:
        own, here, there = os.stat("/"), os.stat(rootfs), view.fd.stat()
    except OSError:
        return False
    return (own.st_dev, own.st_ino) != (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _directories(root: Root, config: ContainerConfig) -> dict[str, str]:
    """Where binaries and libraries go (the table of section 2.4)."""
    try:
        if root.exists("/etc/debian_version"):
            libraries, libraries32 = _MULTIARCH.get(os.uname().machine, _OTHER_MULTIARCH)
        else:
            libraries, libraries32 = "/usr/lib64", "/usr/lib32"
            if not root.exists("/usr/lib32") and root.exists("/usr/lib"):
                same = root.real_path("/usr/lib") == root.real_path(libraries)
                libraries32 = libraries32 if same else "/usr/lib"
    except OSError as error:
        raise ContainerError(f"path error: {root.path}: {reason(error)}") from error
    return {
        "binaries_directory": config.binaries_directory or "/usr/bin",
        "libraries_directory": config.libraries_directory or libraries,
        "libraries32_directory": config.libraries32_directory or libraries32,
    }


def _ldconfig(text: str, log: Log) -> str:
    """The host program that updates the loader cache, "" (with a warning) when the host has none.

    The reference executes the image's own ldconfig for a path without "@"; that is CVE-2024-0136 and CVE-2024-0137.
    Here the host's runs in its place, in its sandbox.
    """
    if text.startswith("@"):
        return text[1:]
    if text:
        log.warn(f"not running {text} of the container: the host's ldconfig is run instead")
    found = host_ldconfig()
    if not found:
        log.warn(f"the loader cache is not updated: the host has neither {' nor '.join(HOST_LDCONFIG)}")
    return found


def _cgroup(pid: int | None) -> CgroupRef:
    """The device cgroup of ``pid``, or our own when standalone; mounts as this process sees them (section 6.1)."""
    try:
        # As /proc numbers us: createContainer and LXC hooks are in the container's pid namespace with the host's /proc,
        # where our own getpid() is another process.
        own = int(os.readlink("/proc/self"))
        version, path = cgroup.find(proc_root="/", pid=own if pid is None else pid, mount_pid=own)
    except cgroup.PrivateNamespace as found:
        return CgroupRef(found.version, found.place, found.controllers)
    except (OSError, ValueError) as error:
        # cgroup.find names file and pid in its own OSErrors; those of the system calls have a file name.
        text = str(error.args[-1]) if isinstance(error, ValueError) or error.filename is None else reason(error)
        # The reference's two steps (section 1.10): /proc/PID/cgroup tells the version, mountinfo the place.
        step = "mount path" if "mountinfo" in text else "version"
        raise ContainerError(
            f"failed to get device cgroup {step}: {text}",
            hint="--no-cgroups leaves the device cgroup alone, for engines that set it up themselves",
        ) from error
    return CgroupRef(version, path)


def compat_library(root: Root, directory: str, log: Log) -> CompatLibrary | None:
    """The libcuda of the image's compat directory. It is only read, below the rootfs, and never mounted."""
    try:
        version = compat.choose(root.list_directory(directory))
        if not version:
            return None
        with root.open_file(f"{directory}/libcuda.so.{version}") as file:
            number = file.fileno()
            note = compat.read_note(lambda offset, size: os.pread(number, size, offset))
        return CompatLibrary(root.real_path(directory), version, note)
    except OSError as error:
        log.info(f"no compat libraries in {directory}: {reason(error)}")
        return None
