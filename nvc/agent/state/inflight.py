"""The in-flight notification of an agent that was killed: without its id, nothing can answer it.

The guard notes the id, and the process that its thread waits for, in a file of the tenant. The next agent answers
EAGAIN, after which NVIDIA's libraries make the call again. Found by experiment: docs/internals/guard.md, "Agent crash
during a call".
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from nvc.agent.state import records
from nvc.base.errors import AgentError, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SUFFIX = ".inflight"
_NOTED = struct.Struct("=QQ")
#: struct seccomp_notif_resp (id, val, error, flags) and SECCOMP_IOCTL_NOTIF_SEND of linux/seccomp.h.
_ANSWER = struct.Struct("=QqiI")
_SEND = 3 << 30 | _ANSWER.size << 16 | ord("!") << 8 | 1


def open_file(directory: str, number: int) -> int:
    """A descriptor of the tenant's file, made if it is missing, with nothing noted. Raises AgentError."""
    name = records.path(directory, number) + _SUFFIX
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Written, not only made longer: a full /run is told now, and not by SIGBUS later.
            if os.pwrite(descriptor, bytes(_NOTED.size), 0) != _NOTED.size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise AgentError(f"{name}: {reason(error)}", hint=records.advice(error)) from None
    return descriptor


def answer(directory: str, number: int, listeners: Iterable[int]) -> bool:
    """Answer the tenant's in-flight notification of the last agent, if any; True when a thread waited for it."""
    noted, _ = _read(records.path(directory, number) + _SUFFIX)
    if not noted:
        return False
    answered = False
    for listener in listeners:
        try:
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(noted, 0, -errno.EAGAIN, 0))
            answered = True
        except OSError:
            continue  # of another filter, or its thread is gone
    return answered


def waited_for(directory: str) -> list[int]:
    """Processes that threads of the guard wait for, or waited for when the agent of ``directory`` was killed."""
    place = f"{directory}/{records.TENANTS}"
    try:
        names = [name for name in os.listdir(place) if name.endswith(_SUFFIX)]
    except OSError:
        return []
    return sorted({pid for name in names if (pid := _read(f"{place}/{name}")[1])})


def _read(path: str) -> tuple[int, int]:
    """(id, process), both 0 where nothing can be read."""
    try:
        with open(path, "rb") as file:
            noted, process = _NOTED.unpack(file.read(_NOTED.size))
            return noted, process
    except (OSError, struct.error):
        return 0, 0
