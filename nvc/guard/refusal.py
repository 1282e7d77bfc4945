"""The seccomp filter of a container without a GPU: NVIDIA's drivers are refused to it. Pure.

Another container can pass it a descriptor of the driver (a socket in a shared volume, pidfd_getfd in a shared pid
namespace), and no guard sees what it calls. So it gets EACCES, as a guard answers for such a descriptor, to what makes
memory or compute of one: the resource manager's requests that a guard decides, and all of UVM's, which in a guarded
container are bounded by announced mappings. The rest of the resource manager's is about objects that there are.

Without a listener no descriptor is looked at, so a request of another driver with the same low byte and size is
refused too. Of the kernel's headers these are BTRFS_IOC_QGROUP_LIMIT and XFS_IOC_UNRESVSP64, which are like ALLOC, and
would be two that are needed: TUNSETVNETHDRSZ of virtual machines, which is like SET_NUMA_STATUS, and
DRM_IOCTL_XE_GEM_CREATE of Intel's GPUs, which is like RM_IDLE_CHANNELS. So these are left to the driver. It wants the
host's CAP_SYS_ADMIN for the first; the second waits for channels, with the GPU's lock, as long as its caller says.
"""

from __future__ import annotations

import errno

from nvc.guard.filter import REQUEST_MASK, divide, ioctl, masked_escapes, requests, whole
from nvc.guard.requests import UVM, UVM_FIRST, UVM_LAST
from nvc.linux import seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NUMBER = errno.EACCES
_SET_NUMA_STATUS, _RM_IDLE_CHANNELS = 0xD8, 0x41
_BEYOND = tuple(number for number, *_ in UVM if number > UVM_LAST)


def program() -> bytes:
    """struct sock_filter, one after another: the same for every machine. native/client/refusal.c has it, too."""
    return seccomp.assemble_requests(REQUEST_MASK, _masked(), _BEYOND, UVM_FIRST, UVM_LAST, NUMBER)


def merge(profile: Mapping[str, Any] | None, native: str) -> dict[str, Any]:
    """``profile`` (linux.seccomp of a config.json) with the same rules, where the container's hook asks the driver.

    native: the machine's own "SCMP_ARCH_...". Raises InputError as the guard's ``filter.merge``.
    """
    pairs = requests(_masked(), [*range(UVM_FIRST, UVM_LAST + 1), *_BEYOND])
    return divide(whole(profile, native), (ioctl(pairs),), {"action": "SCMP_ACT_ERRNO", "errnoRet": NUMBER})


def _masked() -> list[int]:
    return masked_escapes(_SET_NUMA_STATUS, _RM_IDLE_CHANNELS)
