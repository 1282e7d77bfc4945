"""Loads NVIDIA's kernel modules and creates their device nodes (``--load-kmods``), as nvidia-modprobe does.

Source: libnvidia-container.md 2.3.1.

Everything here is best effort: a failure is a line in the log, because the driver may be usable nevertheless. If it is
not, the query of NVML gives the better error.
"""

from __future__ import annotations

import os
import stat
import time

from nvc.base.errors import reason
from nvc.base.record import Record
from nvc.driver.devicefiles import attributes, make_node
from nvc.driver.locate import read_text
from nvc.driver.places import CAPS_MAJOR, IMEX_MAJOR, cap_node, gpu_node, imex_path
from nvc.formats.procfs import FileAttributes, char_majors, numbered
from nvc.model import CONTROL_MINOR, MODESET_MINOR, NVIDIA_MAJOR, DeviceNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nvc.base.log import Log
    from nvc.model import Host

PCI_VENDOR = 0x10DE
#: Upper byte of the PCI class: display controllers (0x0300 VGA, 0x0302 3D).
PCI_DISPLAY = 0x03
_SIGKILL = 9


class KernelTree(Record):
    """Where the kernel's file systems are mounted."""

    proc: str = "/proc"
    sys: str = "/sys"
    dev: str = "/dev"


def load_kmods(
    host: Host,
    imex_ids: Sequence[int],
    *,
    create_imex: bool,
    log: Log,
    tree: KernelTree | None = None,
    deadline: float = 60.0,
) -> None:
    """Load nvidia, nvidia-uvm and nvidia-modeset unless they are loaded, and create the nodes of what is loaded.

    imex_ids: the channels for which nodes are created with ``create_imex``. deadline: seconds for one modprobe.
    Never raises. Does nothing in a user namespace, on a machine without NVIDIA GPUs, and on a simulated one.
    """
    tree = tree if tree is not None else KernelTree()
    if host.simulated:
        log.info("not loading kernel modules: the machine is simulated")
        return
    if in_user_namespace(tree.proc):
        log.warn("skipping kernel modules load due to user namespace")
        return
    count = count_gpus(f"{tree.sys}/bus/pci/devices")
    if count == 0:
        log.warn("skipping kernel modules load: no NVIDIA GPU on the PCI bus")
        return
    work = _Work(tree, count, tuple(imex_ids) if create_imex else (), log, deadline)
    if host.root == "/":
        work.run()
    else:
        _in_root(host.root, work.run, log, 4 * deadline)


def in_user_namespace(proc: str) -> bool:
    """Whether this is not the first user namespace: its id maps are then not the whole range, one to one."""
    for name in ("uid_map", "gid_map"):
        try:
            line = read_text(f"{proc}/self/{name}").split("\n", 1)[0]
        except OSError:
            continue  # a kernel without user namespaces
        if line.split() != ["0", "0", "4294967295"]:
            return True
    try:
        return read_text(f"{proc}/self/setgroups").startswith("deny")
    except OSError:
        return False


def count_gpus(directory: str) -> int:
    """The PCI functions that are NVIDIA's display controllers. Not the number of device minors."""
    try:
        names = os.listdir(directory)
    except OSError:
        return 0
    return sum(_is_gpu(f"{directory}/{name}/config") for name in names)


def _is_gpu(path: str) -> bool:
    try:
        with open(path, "rb", buffering=0) as config:
            head = config.read(12) or b""
    except OSError:
        return False
    return len(head) == 12 and int.from_bytes(head[:2], "little") == PCI_VENDOR and head[11] == PCI_DISPLAY


class _Work:
    """The steps, in the tree of the process that runs them (after chroot: the driver root's)."""

    def __init__(self, tree: KernelTree, gpus: int, imex: tuple[int, ...], log: Log, deadline: float) -> None:
        self._tree = tree
        self._gpus = gpus
        self._imex = imex
        self._log = log
        self._deadline = deadline

    def run(self) -> None:
        params = f"{self._tree.proc}/driver/nvidia/params"
        if self._load("nvidia"):
            self._make(DeviceNode("/dev/nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR), params)
            for minor in range(self._gpus):
                self._make(gpu_node(minor), params)
            majors = self._majors()
            if CAPS_MAJOR in majors:
                for path in capability_files(f"{self._tree.proc}/driver/nvidia/capabilities", self._gpus):
                    self._make_cap(majors[CAPS_MAJOR], path)
            if self._imex and IMEX_MAJOR not in majors:
                self._log.warn(f"no IMEX channels: /proc/devices has no {IMEX_MAJOR}")
            for channel in self._imex if IMEX_MAJOR in majors else ():
                self._make(DeviceNode(imex_path(channel), majors[IMEX_MAJOR], channel))
        if self._load("nvidia-uvm"):
            major = self._majors().get("nvidia-uvm")
            if major is None:
                self._log.warn("no unified memory: /proc/devices has no nvidia-uvm")
            else:
                self._make(DeviceNode("/dev/nvidia-uvm", major, 0))
                self._make(DeviceNode("/dev/nvidia-uvm-tools", major, 1))
        if self._load("nvidia-modeset"):
            self._make(DeviceNode("/dev/nvidia-modeset", NVIDIA_MAJOR, MODESET_MINOR), params)

    def _load(self, name: str) -> bool:
        state = f"{self._tree.sys}/module/{name.replace('-', '_')}/initstate"
        if os.access(state, os.R_OK):
            return True
        program = modprobe(self._tree.proc)
        if not program:
            self._log.warn(f"cannot load kernel module {name}: no modprobe program")
            return False
        self._log.info(f"running {program} {name}")
        try:
            status = run_program([program, name], self._deadline)
        except OSError as error:
            self._log.warn(f"cannot load kernel module {name}: {reason(error)}")
            return False
        if os.access(state, os.R_OK):
            return True
        self._log.warn(f"could not load kernel module {name}: {program} ended with status {status}")
        return False

    def _majors(self) -> dict[str, int]:
        try:
            return char_majors(read_text(f"{self._tree.proc}/devices"))
        except OSError as error:
            self._log.warn(f"cannot read /proc/devices: {reason(error)}")
            return {}

    def _make(self, node: DeviceNode, source: str = "") -> None:
        """source: the file with the node's attributes; the defaults without one, as for nvidia-uvm."""
        try:
            make_node(self._tree.dev, node, attributes(source) if source else FileAttributes())
        except OSError as error:
            self._log.warn(f"could not make {node.path}: {reason(error)}")

    def _make_cap(self, major: int, source: str) -> None:
        try:
            wanted = attributes(source)
            if wanted.minor >= 0:
                make_node(self._tree.dev, cap_node(major, wanted.minor), wanted)
        except OSError as error:
            self._log.warn(f"could not make the node of {source}: {reason(error)}")


def capability_files(base: str, gpus: int) -> Iterator[str]:
    """The capability files of MIG that exist, for GPUs with a minor below ``gpus``.

    The directories are walked; mig-minors, which the reference reads, lists 4,320 combinations, of which few exist.
    """
    yield from (path for path in (f"{base}/mig/config", f"{base}/mig/monitor") if os.path.exists(path))
    for gpu in _numbered(base, "gpu"):
        if numbered(gpu, "gpu") >= gpus:
            continue
        for gi in _numbered(f"{base}/{gpu}/mig", "gi"):
            instance = f"{base}/{gpu}/mig/{gi}"
            places = (instance, *(f"{instance}/{ci}" for ci in _numbered(instance, "ci")))
            yield from (f"{place}/access" for place in places if os.path.exists(f"{place}/access"))


def _numbered(path: str, prefix: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(path) if numbered(name, prefix) >= 0)
    except OSError:
        return []


def modprobe(proc: str) -> str:
    """The program that the kernel itself uses, or "" if none is executable."""
    try:
        path = read_text(f"{proc}/sys/kernel/modprobe").split("\n", 1)[0]
    except OSError:
        path = "/sbin/modprobe"
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return ""
    return path if stat.S_ISREG(mode) and mode & stat.S_IXUSR else ""


def run_program(arguments: list[str], deadline: float) -> int:
    """Run a program with a minimal environment and no input or output; returns its exit code (-9: killed).

    A program that takes longer than ``deadline`` seconds is killed. Raises OSError.
    """
    null = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in range(3)]
    child = os.posix_spawn(arguments[0], arguments, {"PATH": "/sbin"}, file_actions=null)
    return wait(child, deadline)


def wait(child: int, deadline: float) -> int:
    """Reap a child; kill it when ``deadline`` seconds are over. Its exit code."""
    end = time.monotonic() + deadline
    pause = 0.001
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, _SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _in_root(root: str, work: Callable[[], None], log: Log, deadline: float) -> None:
    """Do the work in a child whose root is the driver's: modprobe and its modules are those of the driver container."""
    try:
        child = os.fork()
    except OSError as error:
        log.warn(f"skipping kernel modules load: fork failed: {reason(error)}")
        return
    if child == 0:
        code = 1
        try:
            os.chroot(root)
            os.chdir("/")
            work()
            code = 0
        except OSError as error:
            log.warn(f"change root failed: {root}: {reason(error)}")
        finally:
            os._exit(code)
    if wait(child, deadline):
        log.warn(f"kernel modules of the driver root {root} could not be loaded")
