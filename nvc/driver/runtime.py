"""What is read from the host for every container, also on a cache hit: it can change at any time and is cheap."""

from __future__ import annotations

import os
import stat

from nvc.base.errors import DetectionError, ImexError, reason
from nvc.driver.locate import host_path, is_missing, read_text, status
from nvc.driver.places import DRIVER, IMEX_MAJOR, imex_path, read_majors
from nvc.model import NVCAPS_DEV, DeviceNode, ImexChannel, ProcFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.base.log import Log
    from nvc.model import Gpu, Host, Inventory

#: Files of /proc/driver/nvidia that the container gets a copy of, with a text to replace in each.
#: With ModifyDeviceFiles 0 the driver's libraries in the container leave its device nodes alone.
PROC_FILES = (("params", ("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0")), ("version", None), ("registry", None))


def read_proc_files(host: Host, log: Log | None = None) -> tuple[ProcFile, ...]:
    """The copies for the container's /proc/driver/nvidia. A missing one is left out, with a warning.

    Raises DetectionError for one that cannot be read.
    """
    files = []
    for name, change in PROC_FILES:
        path = f"{DRIVER}/{name}"
        source = host_path(host.nodes, path)
        try:
            text = read_text(source)
            mode = stat.S_IMODE(os.stat(source).st_mode) & 0o777
        except OSError as error:
            if not is_missing(error):
                raise DetectionError(f"file read error: {path}: {reason(error)}") from error
            if log is not None:
                log.warn(f"missing {path}: {reason(error)}")
            continue
        files.append(ProcFile(path, mode, text.replace(*change, 1) if change else text))
    return tuple(files)


def imex_channels(host: Host, ids: Iterable[int]) -> tuple[ImexChannel, ...]:
    """The IMEX channels with their nodes. node is None when there is none, or one with a number that is not IMEX's.

    Raises ImexError when a node exists and cannot be examined.
    """
    wanted = tuple(ids)
    if not wanted:
        return ()
    major = read_majors(host.system).get(IMEX_MAJOR, -1)
    return tuple(ImexChannel(channel, _imex_node(host, channel, major)) for channel in wanted)


def _imex_node(host: Host, channel: int, major: int) -> DeviceNode | None:
    path = imex_path(channel)
    try:
        found = status(host.nodes, path)
    except OSError as error:
        if is_missing(error):
            return None
        raise ImexError(f"stat failed: {path}: {reason(error)}") from error
    number = os.major(found.st_rdev), os.minor(found.st_rdev)
    if not stat.S_ISCHR(found.st_mode) or number != (major, channel):
        return None
    return DeviceNode(path, major, channel)


def check_mig_nodes(inventory: Inventory, gpus: Iterable[Gpu]) -> None:
    """Raise DetectionError if a container is to configure or monitor MIG and the nodes for it are not known.

    Discovery itself only warns: most containers never need them.
    """
    if inventory.nvcaps_style != NVCAPS_DEV:
        return
    for gpu in gpus:
        if gpu.mig_capable and not gpu.mig_nodes:
            raise DetectionError(
                f"no nvcap nodes of GPU {gpu.index} are known: /proc/driver/nvidia-caps/mig-minors cannot be read",
                hint="mount the host's /proc, and read the warnings of --debug",
            )
