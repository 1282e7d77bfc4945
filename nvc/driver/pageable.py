"""Whether the driver moves pageable system memory into video memory, and how an operator prevents it.

Such memory is neither an allocation of the resource manager nor a mapping of nvidia-uvm, and only those are counted by
the guard and the preloaded library. Read in the open kernel modules' source
(docs/reference/gpu-sharing-kernel.md 3.9).
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.base.record import Record
from nvc.bindings import uvm
from nvc.bindings.uvm import ATS, HMM, OFF
from nvc.driver.locate import host_path, read_text, resolve
from nvc.formats.procfs import char_majors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.model import Host

_NODE, _MODULE = "/dev/nvidia-uvm", "nvidia-uvm"
_PARAMS = "/proc/driver/nvidia/params"
#: With ATS: video memory is no NUMA node, and what a GPU touches stays on the CPU's (``ats_batch_select_residency``,
#: since 580).
_DRIVER_MODE = 'CoherentGPUMemoryMode: "driver"'


class Advice(Record):
    """what: the fact, in one line. fix: the command that prevents it."""

    what: str
    fix: str


_CONFIGURATION = "/etc/modprobe.d/nvc-quotas.conf"
ADVICE = {
    HMM: Advice(
        what="pageable system memory can move into video memory (HMM); no quota counts it there",
        fix=f"echo options nvidia-uvm uvm_disable_hmm=1 | sudo tee {_CONFIGURATION}; "
        "sudo rmmod nvidia_uvm; sudo modprobe nvidia-uvm  # or reboot",
    ),
    ATS: Advice(
        what="pageable system memory can lie in video memory, a NUMA node (ATS); no quota counts it there",
        fix=f"echo options nvidia NVreg_CoherentGPUMemoryMode=driver | sudo tee {_CONFIGURATION}; "
        "sudo reboot  # needs driver 580",
    ),
}


def ask(host: Host) -> str:
    """OFF, HMM or ATS. Raises OSError; FileNotFoundError without nvidia-uvm or its node.

    Only nvidia-uvm's own node is opened: a stale one is another driver's device, and a simulated machine's is a real
    driver's unless a simulated one serves it.
    """
    major = char_majors(read_text(host_path(host.system, "/proc/devices"))).get(_MODULE)
    node = host_path(host.nodes, resolve(host.nodes, _NODE))
    found = os.stat(node)
    served = bool(host.simulated) and stat.S_ISREG(found.st_mode)
    if major is None or (host.simulated and not served):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), _MODULE)
    if not served and (not stat.S_ISCHR(found.st_mode) or found.st_rdev != os.makedev(major, 0)):
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), _NODE)
    answer = uvm.pageable(node)
    return OFF if answer == ATS and _cpu_memory_stays(host) else answer


def _cpu_memory_stays(host: Host) -> bool:
    try:
        return _DRIVER_MODE in read_text(host_path(host.nodes, _PARAMS)).splitlines()
    except OSError:
        return False
