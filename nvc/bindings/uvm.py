"""Queries nvidia-uvm whether pageable system memory can lie in video memory.

With HMM (device-private pages of Linux) and with ATS (Grace: video memory is a NUMA node of the host) what a program
has of malloc can be in video memory.

Numbers and layouts: open-gpu-kernel-modules uvm_linux_ioctl.h, uvm_ioctl.h, uvm_types.h, the same from 535 to 595; the
answer is uvm_va_space_pageable_mem_access_supported's (uvm_va_space.c), which gives ATS precedence.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError

OFF, HMM, ATS = "off", "hmm", "ats"
INITIALIZE, PAGEABLE_MEM_ACCESS = 0x30000001, 39
#: UVM_INIT_FLAGS_DISABLE_HMM.
_NO_HMM = 1
#: flags, status; answer, status.
_INITIALIZE, _PAGEABLE = struct.Struct("=QI4x"), struct.Struct("=?3xI")
#: A status that no call returns: if it is unchanged, the driver did not handle the call.
_UNTOUCHED = 0xFFFFFFFF


def pageable(path: str) -> str:
    """OFF, HMM or ATS, from the driver behind the node ``path``. Raises OSError: EIO when the driver refuses.

    Wakes no GPU: neither call names one. A file that wants no HMM sees none, so with that flag only ATS is left.
    """
    if not _pageable(path, 0):
        return OFF
    return ATS if _pageable(path, _NO_HMM) else HMM


def _pageable(path: str, flags: int) -> bool:
    with Fd(os.open(path, os.O_RDWR | os.O_CLOEXEC), path) as node:
        _call(node, INITIALIZE, _INITIALIZE, flags)
        return _call(node, PAGEABLE_MEM_ACCESS, _PAGEABLE, False)


def _call(node: Fd, number: int, layout: struct.Struct, value: int) -> bool:
    """Whether the first field is anything but zero afterwards. Raises SyscallError."""
    call = bytearray(layout.pack(value, _UNTOUCHED))
    try:
        fcntl.ioctl(node.fileno(), number, call, True)
    except OSError as error:
        raise SyscallError(error.errno or errno.EIO, "ioctl", node, number) from None
    first, status = layout.unpack(call)
    if status:
        raise SyscallError(errno.EIO, "ioctl", node, number, status)
    return bool(first)
