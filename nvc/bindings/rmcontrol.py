"""Controls of NVIDIA's resource manager on a copied descriptor of another process.

Numbers and layouts: open-gpu-kernel-modules nvos.h (NVOS54_PARAMETERS), ctrl2080fifo.h (FIFO_DISABLE_CHANNELS),
ctrla06c/ctrla06cgpfifo.h (SET_TIMESLICE). tests/contract/test_nv_numbers.py compares them with native/rm's headers.
"""

from __future__ import annotations

import errno
import fcntl
import struct

from nvc.linux import syscalls
from nvc.linux.fd import Fd
from nvc.linux.rights import CAP_SYS_ADMIN
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    T = TypeVar("T")

#: _IOWR ('F', 0x2A, 32 bytes): NV_ESC_RM_CONTROL.
REQUEST = 0xC020462A
#: hClient, hObject, cmd, flags, params, paramsSize, status.
_CONTROL = struct.Struct("=IIIIQII")
_STATUS = 28
DISABLE_CHANNELS = 0x2080110B
SET_TIMESLICE, GET_TIMESLICE = 0xA06C0103, 0xA06C0104
#: _IOWR ('F', 0x2B, 48 bytes): NV_ESC_RM_ALLOC, class 0: a client. hRoot, hObjectParent, hObjectNew, ..., status.
REQUEST_ALLOC = 0xC030462B
_ALLOC = struct.Struct("=IIIIQQIII4x")
_ALLOC_NEW, _ALLOC_STATUS = 8, 40
#: FIFO_DISABLE_CHANNELS takes this many channels at once.
CHANNELS_LIMIT = 64
_DISABLE_SIZE, _COUNT, _CLIENTS, _CHANNELS = 536, 4, 24, 280
#: What makes the driver treat a caller as its administrator, or lets it do more than the descriptor's owner may.
CAP_SYS_NICE, CAP_PERFMON = 23, 38
_DROPPED = 1 << CAP_SYS_ADMIN | 1 << CAP_SYS_NICE | 1 << CAP_PERFMON


def control(descriptor: Fd, client: int, handle: int, command: int, parameters: bytearray) -> int:
    """Make a control call; the driver's status, 0 for success. parameters: read and written. Raises SyscallError."""
    head = bytearray(_CONTROL.pack(client, handle, command, 0, syscalls.address(parameters), len(parameters), 0))
    try:
        fcntl.ioctl(descriptor.fileno(), REQUEST, head, True)
    except OSError as error:
        raise SyscallError(error.errno or errno.EIO, "ioctl", descriptor, REQUEST, command) from None
    status: int = struct.unpack_from("=I", head, _STATUS)[0]
    return status


def disable_channels(descriptor: Fd, client: int, subdevice: int, channels: Sequence[int], *, disabled: bool) -> int:
    """Stop or start channels of ``client``; the first status that is not 0, or 0. Raises SyscallError."""
    for start in range(0, len(channels), CHANNELS_LIMIT):
        some = channels[start : start + CHANNELS_LIMIT]
        parameters = bytearray(_DISABLE_SIZE)
        parameters[0] = disabled
        struct.pack_into("=I", parameters, _COUNT, len(some))
        struct.pack_into(f"={len(some)}I", parameters, _CLIENTS, *[client] * len(some))
        struct.pack_into(f"={len(some)}I", parameters, _CHANNELS, *some)
        status = control(descriptor, client, subdevice, DISABLE_CHANNELS, parameters)
        if status:
            return status
    return 0


def set_timeslice(descriptor: Fd, client: int, group: int, microseconds: int) -> int:
    """Give a channel group a timeslice; the driver's status. Raises SyscallError."""
    return control(descriptor, client, group, SET_TIMESLICE, bytearray(struct.pack("=Q", microseconds)))


def ask_timeslice(descriptor: Fd, client: int, group: int) -> tuple[int, int]:
    """The driver's status, and if that is 0 a channel group's timeslice in microseconds. Raises SyscallError."""
    parameters = bytearray(8)
    status = control(descriptor, client, group, GET_TIMESLICE, parameters)
    found: int = struct.unpack("=Q", parameters)[0]
    return status, found


def get_timeslice(descriptor: Fd, client: int, group: int) -> int | None:
    """A channel group's timeslice in microseconds; None when this is none. Raises SyscallError."""
    status, found = ask_timeslice(descriptor, client, group)
    return None if status else found


def new_client(descriptor: Fd) -> int:
    """Make a client of our own, which lasts as long as the open file; its handle. Raises SyscallError."""
    head = bytearray(_ALLOC.pack(0, 0, 0, 0, 0, 0, 0, 0, 0))
    try:
        fcntl.ioctl(descriptor.fileno(), REQUEST_ALLOC, head, True)
    except OSError as error:
        raise SyscallError(error.errno or errno.EIO, "ioctl", descriptor, REQUEST_ALLOC) from None
    (status,) = struct.unpack_from("=I", head, _ALLOC_STATUS)
    if status:
        raise SyscallError(errno.EIO, "ioctl", descriptor, REQUEST_ALLOC, status)
    handle: int = struct.unpack_from("=I", head, _ALLOC_NEW)[0]
    return handle


class Owner:
    """While entered, this thread has not the rights that a descriptor's owner has not."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = syscalls.capget()
        effective, permitted, inheritable = self._before
        syscalls.capset(effective & ~_DROPPED, permitted, inheritable)

    def __exit__(self, *_: object) -> None:
        syscalls.capset(*self._before)


def as_the_owner(function: Callable[[], T]) -> T:
    """Call ``function`` without the rights that the descriptor's owner has not, and take them back after."""
    with Owner():
        return function()
