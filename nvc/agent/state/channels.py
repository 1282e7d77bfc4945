"""The list of a tenant's compute channels: the guard (native/guard/channels.c) writes it, ``nvc.agent.thaw`` reads."""

from __future__ import annotations

import os
import struct
import time

from nvc.agent.state import records
from nvc.base.errors import AgentError, reason
from nvc.guard.attached import AttachedChannel, AttachedProcess

SUFFIX = ".channels"
_MAGIC = 0x6C6E6863726D766E
#: magic, version, device, inode, count, missing.
_HEAD = struct.Struct("=QQQQII24x")
#: start_time, pid, descriptor, client, subdevice, channel, gpu.
_ROW = struct.Struct("=QiiIIIi")
_SIZE_LIMIT = 1 << 20
#: Seconds that a version may stay odd. A guard that was killed while it wrote leaves it so: then rows are taken as they
#: are, for each is checked against its process.
_ODD_VERSION_S = 0.02


def open_file(directory: str, number: int) -> int:
    """A descriptor of the tenant's file, made anew. Raises AgentError."""
    name = records.path(directory, number) + SUFFIX
    try:
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise AgentError(f"{name}: {reason(error)}", hint=records.advice(error)) from None


def read(path: str) -> tuple[AttachedProcess, ...]:
    """The processes that it lists, once for each descriptor, with the channels. Raises OSError, ValueError."""
    until = time.monotonic() + _ODD_VERSION_S
    while True:
        with open(path, "rb") as file:
            data = file.read(_SIZE_LIMIT)
            again = os.pread(file.fileno(), _HEAD.size, 0)
        if len(data) < _HEAD.size:
            raise ValueError(f"{path} has {len(data)} bytes")
        if (data[: _HEAD.size] == again and not data[8] & 1) or time.monotonic() > until:
            break
        time.sleep(0.001)
    magic, _, device, inode, count, _ = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError(f"{path} is no list of channels")
    found: dict[tuple[int, int, int], list[AttachedChannel]] = {}
    end = min(_HEAD.size + count * _ROW.size, len(data) - (len(data) - _HEAD.size) % _ROW.size)
    for started, pid, descriptor, client, subdevice, channel, _gpu in _ROW.iter_unpack(data[_HEAD.size : end]):
        if pid > 0 and descriptor >= 0:
            one = AttachedChannel(descriptor, client, subdevice, channel)
            found.setdefault((pid, started, descriptor), []).append(one)
    return tuple(
        AttachedProcess(pid, started, device, inode, "guard", "", (), tuple(channels), capped=True)
        for (pid, started, _), channels in found.items()
    )
