"""Starting every channel that an agent may have left stopped; called by the keeper, and by the next agent."""

from __future__ import annotations

import fcntl
import os
import time

from nvc.agent.state import channels
from nvc.agent.state.records import TENANTS
from nvc.base.errors import ContainerError
from nvc.guard import attach
from nvc.share import bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.guard.attached import AttachedProcess

#: The file that the one agent of a directory holds a lock of.
LOCK = "lock"
_LOCK_TIMEOUT_S = 0.5
#: Times that each channel is started: more often than it can be stopped. Seconds for one process.
_STARTS, _SECONDS = 3, 0.5


def thaw(directory: str, *, alone: bool) -> int:
    """Thaw the tenants of the agent in ``directory``; how many processes were reached.

    alone: the agent has ended; nothing is done when another one has begun meanwhile, which does this itself. Raises
    OSError.
    """
    lock = -1
    if alone:
        lock = _hold(directory)
        if lock < 0:
            return 0
    try:
        count = attach.thaw_left(f"{os.path.dirname(directory)}/attach")
        for name in sorted(os.listdir(f"{directory}/{TENANTS}")):
            if name.endswith(channels.SUFFIX):
                count += _thaw_tenant(f"{directory}/{TENANTS}/{name}")
        return count
    finally:
        if lock >= 0:
            os.close(lock)


def _thaw_tenant(path: str) -> int:
    """How many processes. What cannot be read or reached does not keep the others waiting."""
    try:
        processes = channels.read(path)
    except (OSError, ValueError):
        return 0
    return sum(not _bounded(process) for process in processes)


def _bounded(process: AttachedProcess) -> str:
    try:
        return bounded.run(lambda: _problem(process), _SECONDS)
    except OSError as error:
        return str(error)


def _problem(process: AttachedProcess) -> str:
    """What went wrong, "" for nothing. The driver counts stops, and a start of what runs is nothing."""
    problem = ""
    for _ in range(_STARTS):
        try:
            attach.thaw(process)
        except (OSError, ContainerError) as error:
            problem = str(error)
    return problem


def _hold(directory: str) -> int:
    descriptor = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    until = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                return -1
        time.sleep(0.01)
