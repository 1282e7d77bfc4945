"""``nvidia-ctk system``: device nodes and their links in /dev/char, made by ``nvc.driver``."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from nvc.base import directories
from nvc.base.errors import DetectionError, NvcError, reason
from nvc.base.log import open_log
from nvc.driver import kmods
from nvc.driver.devicefiles import make_node
from nvc.driver.places import CAPS_MAJOR, cap_node, gpu_node, read_majors
from nvc.formats.procfs import FileAttributes
from nvc.model import CONTROL_MINOR, MODESET_MINOR, NVIDIA_MAJOR, DeviceNode, Host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.cli.ctk.parse import Values
    from nvc.cli.ctk.show import Log

#: Services of their own make and give these.
_OTHERS = re.compile(r"nvidia-(fs|nvswitch|nvlink)")
_CAP = re.compile(r"nvidia-cap([0-9]+)")


def create_device_nodes(values: Values, log: Log) -> int:
    """Make the driver's control nodes, after loading its kernel modules if that is asked."""
    root, dry = values.text("root"), values.flag("dry-run")
    dev_root = values.text("dev-root") or root
    if values.flag("load-kernel-modules"):
        _load(root, dry, log)
    if values.flag("control-devices"):
        _control_nodes(dev_root, dry, log)
    return 0


def create_dev_char_symlinks(values: Values, log: Log) -> int:
    """Make the links by which systemd finds a device node of a number."""
    every, dry = values.flag("create-all"), values.flag("dry-run")
    for name in ("load-kernel-modules", "create-device-nodes"):
        if values.flag(name) and not every:
            log.warn(f"{name} is only applicable when create-all is set; ignoring")
    if every and values.flag("load-kernel-modules"):
        _load(values.text("driver-root"), dry, log)
    if every and values.flag("create-device-nodes"):
        _control_nodes("/", dry, log)
    nodes = list(_possible() if every else _existing())
    if not nodes:
        log.info("No NVIDIA devices found in /")
    directory = values.text("dev-char-path")
    if nodes and not dry:
        directories.make(directory)
    for node in nodes:
        link = f"{directory}/{node.major}:{node.minor}"
        log.info(f"Creating link {link} => {node.path}")
        if not dry:
            _link(link, node.path, log)
    return 0


def _link(link: str, target: str, log: Log) -> None:
    try:
        os.symlink(target, link)
    except FileExistsError:
        if _leads(link) != _leads(target):
            log.warn(f"Could not create symlink: {link} exists and leads elsewhere")
    except OSError as error:
        raise NvcError(f"failed to create links: {link}: {reason(error)}", hint="run this as root (sudo)") from error


def _leads(path: str) -> int:
    try:
        return os.stat(path).st_rdev
    except OSError:
        return -1


def _load(root: str, dry: bool, log: Log) -> None:
    if dry:
        log.info(f"Would load the kernel modules nvidia, nvidia-uvm and nvidia-modeset of {root}")
        return
    kmods.load_kmods(Host(root=root), (), create_imex=False, log=open_log("/dev/stderr"))


def _control_nodes(dev_root: str, dry: bool, log: Log) -> None:
    """Make nvidiactl and the other nodes that belong to no GPU. Raises NvcError for one that cannot be made."""
    log.info(f"Creating control device nodes at {dev_root}")
    dev = f"{dev_root.rstrip('/')}/dev"
    for node in _control():
        path = f"{dev_root.rstrip('/')}{node.path}"
        if dry:
            log.info(f"Running: mknod --mode=0666 {path} c {node.major} {node.minor}")
            continue
        if os.path.lexists(path):
            log.info(f"Skipping: {path} already exists")
            continue
        try:
            make_node(dev, node, FileAttributes())
        except OSError as error:
            raise NvcError(
                f"failed to create NVIDIA control device nodes: {path}: {reason(error)}", hint="run this as root (sudo)"
            ) from error


def _control() -> list[DeviceNode]:
    """The nodes of the modules that are loaded. Raises DetectionError where none is."""
    majors = read_majors("/")
    if not {"nvidia", "nvidia-frontend"} & set(majors):
        hint = "load the driver first, with --load-kernel-modules"
        raise DetectionError("no NVIDIA devices found in /proc/devices", hint=hint)
    nodes = [
        DeviceNode("/dev/nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR),
        DeviceNode("/dev/nvidia-modeset", NVIDIA_MAJOR, MODESET_MINOR),
    ]
    uvm = majors.get("nvidia-uvm")
    if uvm is None:
        hint = "load the module first, with --load-kernel-modules"
        raise DetectionError("/proc/devices has no nvidia-uvm", hint=hint)
    return [*nodes, DeviceNode("/dev/nvidia-uvm", uvm, 0), DeviceNode("/dev/nvidia-uvm-tools", uvm, 1)]


def _possible() -> Iterator[DeviceNode]:
    """The nodes that the driver may need, whether they exist or not."""
    gpus = kmods.count_gpus("/sys/bus/pci/devices")
    if not gpus:
        return
    yield from _control()
    for minor in range(gpus):
        yield gpu_node(minor)
    caps = read_majors("/").get(CAPS_MAJOR)
    if caps is not None:
        for minor in _cap_minors():
            yield cap_node(caps, minor)


def _cap_minors() -> list[int]:
    from nvc.driver.locate import read_text
    from nvc.formats.procfs import file_attributes

    base = "/proc/driver/nvidia/capabilities"
    found = []
    for path in kmods.capability_files(base, kmods.count_gpus("/sys/bus/pci/devices")):
        minor = file_attributes(read_text(path)).minor
        if minor >= 0:
            found.append(minor)
    return found


def _existing() -> Iterator[DeviceNode]:
    """The driver's nodes in /dev."""
    for directory in ("/dev", "/dev/nvidia-caps"):
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        for name in names:
            wanted = name.startswith("nvidia") and not _OTHERS.match(name)
            if directory == "/dev/nvidia-caps":
                wanted = _CAP.fullmatch(name) is not None
            status = os.lstat(f"{directory}/{name}")
            if wanted and stat.S_ISCHR(status.st_mode):
                yield DeviceNode(f"{directory}/{name}", os.major(status.st_rdev), os.minor(status.st_rdev))
