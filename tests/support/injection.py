"""A host with a driver and a container to inject it into, small enough to be made for every test.

Nothing runs in the container: a forked process holds its namespaces, as a created, not yet started one does. All is
made inside ``isolation.in_namespaces``, so mounts and processes go with the test.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nvc.base.log import Log
from nvc.container.lookup import Located, inspect
from nvc.container.messages import ContainerConfig, InspectRequest
from nvc.container.plan import SIMULATED_PROC, Scope, device_mount, driver_mount, ldcache_update, merge
from nvc.model import DeviceNode, DriverEndpoint, DriverFile, DriverInfo, Gpu, ProcFile
from nvc.request.capabilities import DriverCapabilities
from tests.support import leftovers
from tests.support.isolation import in_namespaces

if TYPE_CHECKING:
    from nvc.container.operations import Operation

VERSION = "999.10.01"
LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
MS_REC, MS_PRIVATE, MS_SHARED, MS_BIND = 0x4000, 1 << 18, 1 << 20, 0x1000
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)
#: Numbers of /dev/null and /dev/zero, so that the nodes can be opened.
CONTROL = DeviceNode("/dev/nvidiactl", 1, 3)
GPU0 = DeviceNode("/dev/nvidia0", 1, 5)


def isolated(function: Callable[..., None]) -> Callable[..., None]:
    """A test that runs in namespaces of its own; its fixtures are made outside."""

    @functools.wraps(function)
    def run(**fixtures: object) -> None:
        in_namespaces(functools.partial(function, **fixtures))

    return run


def check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)


def mount(source: str | None, target: str | Path, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    check(_libc.mount(encoded[0], encoded[1], encoded[2], flags, encoded[3]), f"mount {target}")


def unshare_mounts() -> None:
    check(_libc.unshare(CLONE_NEWNS), "unshare")


def build_library(target: Path, name: str) -> None:
    """A shared library whose SONAME is ``name`` + ".1"."""
    source = target.with_suffix(".c")
    source.write_text("int nvc_test_symbol(void) { return 1; }\n")
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{name}.1", "-o", str(target), str(source)]
    subprocess.run(command, check=True)
    source.unlink()


def make_driver_root(root: Path) -> Path:
    """Libraries, a program, a socket, firmware, nodes and /proc files below ``root``."""
    libraries = root / "usr/lib"
    for directory in (libraries, root / "usr/bin", root / "dev", root / "run/nvidia-persistenced", root / "usr/lib/fw"):
        directory.mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    os.mknod(root / "run/nvidia-persistenced/socket", stat.S_IFSOCK | 0o666)
    for name in LIBRARIES:
        build_library(libraries / f"{name}.{VERSION}", name)
    (root / "usr/bin/nvidia-smi").write_text("#!/bin/sh\n")
    (root / "usr/bin/nvidia-smi").chmod(0o755)
    (root / "usr/lib/fw/gsp.bin").write_bytes(b"gsp")
    for node in (CONTROL, GPU0):
        os.mknod(root / node.path[1:], stat.S_IFCHR | 0o666, os.makedev(node.major, node.minor))
    gpu = root / "proc/driver/nvidia/gpus/0000:00:06.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: test\n")
    return root


def driver() -> DriverInfo:
    return DriverInfo(
        nvrm_version=VERSION,
        cuda_version="12.2",
        libraries=(
            DriverFile(f"/usr/lib/libcuda.so.{VERSION}", "library", "compute", (("libcuda.so", "libcuda.so.1"),)),
            DriverFile(f"/usr/lib/libnvidia-ml.so.{VERSION}", "library", "utility"),
        ),
        libraries32=(),
        binaries=(DriverFile("/usr/bin/nvidia-smi", "binary", "utility"),),
        ipcs=(DriverEndpoint("/run/nvidia-persistenced", "ipc", "utility", server="socket"),),
        firmwares=(DriverFile("/lib/fw/gsp.bin", "firmware", ""),),
        nodes=(CONTROL,),
    )


def gpu() -> Gpu:
    return Gpu(
        index=0,
        minor=0,
        model="test",
        brand="Nvidia",
        uuid="GPU-0",
        bus_id="00000000:00:06.0",
        arch="9.0",
        node=GPU0,
        proc_path="/proc/driver/nvidia/gpus/0000:00:06.0",
    )


PROC_FILES = (
    ProcFile("/proc/driver/nvidia/params", 0o444, "ModifyDeviceFiles: 0\n"),
    ProcFile("/proc/driver/nvidia/version", 0o444, "NVRM version: test\n"),
)


def make_rootfs(root: Path) -> Path:
    for name in ("dev", "etc/ld.so.conf.d", "proc", "sys", "usr/bin", "usr/lib64", "tmp", "var/cache", "opt"):
        (root / name).mkdir(parents=True)
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    return root


@contextmanager
def container(
    rootfs: Path,
    *,
    propagation: int = MS_PRIVATE,
    own_mount: bool = True,
    with_proc: bool = True,
    with_dev: bool = True,
) -> Iterator[int]:
    """A process in a mount namespace where ``rootfs`` has /proc and /dev, as OCI runtimes set it up before hooks.

    propagation: given to all its mounts, 0 to leave them; own_mount: whether the rootfs is a mount of its own.
    """
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ready)
            unshare_mounts()
            if propagation:
                mount(None, "/", None, MS_REC | propagation)
            if own_mount:
                mount(str(rootfs), rootfs, None, MS_BIND | MS_REC)
            if with_proc:
                mount("proc", rootfs / "proc", "proc", 0)
            if with_dev:
                mount("tmpfs", rootfs / "dev", "tmpfs", 0, "mode=0755")
            os.write(tell, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(ready, 1) == b"1", "the container could not be set up"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def user_namespace_container(rootfs: Path, first: int) -> Iterator[int]:
    """The same in a user namespace whose ids begin at ``first`` on the host, with the host's /proc bound."""
    ready, tell = os.pipe()
    mapped, go_on = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
            os.write(tell, b"1")
            os.read(mapped, 1)
            mount(None, "/", None, MS_REC | MS_PRIVATE)
            mount(str(rootfs), rootfs, None, MS_BIND | MS_REC)
            mount("/proc", rootfs / "proc", None, MS_BIND | MS_REC)
            mount("tmpfs", rootfs / "dev", "tmpfs", 0, "mode=0755")
            os.write(tell, b"2")
            signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(ready, 1) == b"1", "no user namespace"
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {first} 65536\n")
        os.write(go_on, b"1")
        assert os.read(ready, 1) == b"2", "the container could not be set up"
        yield pid
    finally:
        for number in (ready, mapped, go_on):
            os.close(number)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def locate(pid: int | None, rootfs: Path, **changes: object) -> Located:
    request = InspectRequest(
        config=ContainerConfig(pid, str(rootfs)), supervised=pid is not None, find_cgroup=False, find_compat=False
    )
    return inspect(request.replace(**changes), Log.none())


def operations(
    located: Located, *, capabilities: str = "compute,utility,graphics", cache: bool = True
) -> tuple[Operation, ...]:
    """The whole plan for one GPU."""
    scope = Scope(located.container, DriverCapabilities.parse(capabilities), cgroups=False, proc=SIMULATED_PROC)
    update = ldcache_update(located.container) if cache else ()
    return merge((*driver_mount(scope, driver(), PROC_FILES), *device_mount(scope, gpu()), *update))


def mountinfo(pid: int | str = "self") -> list[str]:
    """The mounts of a process, without ids: what is mounted where, how, and whether it is shared."""
    shown = []
    lines = leftovers.mountinfo(pid)
    # Where the root is a directory of a file system, as in a tree, the sources of bind mounts begin with it.
    own = (line.split(" ") for line in leftovers.mountinfo())
    device, top = next((fields[2:4] for fields in own if fields[4] == "/"), ("", "/"))
    for line in lines:
        fields = line.split(" ")
        if fields[2] == device and top != "/":
            fields[3] = fields[3].removeprefix(top) or "/"
        bar = fields.index("-")
        tags = [tag.split(":")[0] for tag in fields[6:bar]]
        shown.append(" ".join([*fields[3:6], *tags, *fields[bar + 1 : bar + 3]]))
    return sorted(shown)


def tree(root: Path, *, skip: tuple[str, ...] = ()) -> dict[str, tuple[object, ...]]:
    """Every entry of a tree on one file system: type and mode, owner, link text or a digest of the content."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = Path(directory, name)
            content: object = ""
            try:
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    content = os.readlink(path)
                elif stat.S_ISREG(status.st_mode):
                    content = hashlib.sha256(path.read_bytes()).hexdigest()
            except FileNotFoundError:
                continue  # it is undone while we look
            relative = str(path.relative_to(root))
            if not relative.startswith(skip or ("\0",)):
                found[relative] = (status.st_mode, status.st_uid, status.st_gid, content)
        directories[:] = [name for name in directories if not Path(directory, name).is_mount()]
    return found


def inside(pid: int, rootfs: Path, path: str) -> Path:
    """A path of the container, as the test sees it through the process's root."""
    return Path(f"/proc/{pid}/root{rootfs}{path}")


#: Bytes of a container service that did nothing yet.
SERVICE = 24 << 20


def kibibytes(name: str) -> int:
    """A row of /proc/self/status. Not ru_maxrss: that is also of the process that forked, or executed, this one."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0])
