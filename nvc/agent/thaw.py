"""Starting every channel that an agent may have left stopped; called by the keeper, and by the next agent."""

from __future__ import annotations

import fcntl
import os
import time
from functools import partial

from nvc.agent.state import channels
from nvc.agent.state.records import TENANTS
from nvc.base.errors import ContainerError
from nvc.guard import attach
from nvc.share import bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.guard.attached import AttachedProcess

#: The file that the one agent of a directory holds a lock of.
LOCK = "lock"
_LOCK_TIMEOUT_S = 0.5
#: Times that each channel is started: more often than it can be stopped. Seconds for the processes of a container.
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
        wanted = [[process] for process in attach.left(f"{os.path.dirname(directory)}/attach")]
        for name in sorted(os.listdir(f"{directory}/{TENANTS}")):
            if name.endswith(channels.SUFFIX):
                wanted.append(_channels(f"{directory}/{TENANTS}/{name}"))
        # Each container in a child of its own, all at a time: one that blocks its child keeps no other one frozen.
        works = [partial(_thaw_all, processes) for processes in wanted if processes]
        return sum(int(said) for said in bounded.each(works, _SECONDS) if said.isdigit())
    finally:
        if lock >= 0:
            os.close(lock)


def _channels(path: str) -> list[AttachedProcess]:
    """What cannot be read does not keep the others waiting."""
    try:
        return list(channels.read(path))
    except (OSError, ValueError):
        return []


def _thaw_all(processes: Sequence[AttachedProcess]) -> str:
    """How many were reached. The driver counts stops, and a start of what runs is nothing."""
    count = 0
    for process in processes:
        try:
            for _ in range(_STARTS):
                attach.thaw(process)
        except (OSError, ContainerError):
            continue  # it ended, most likely
        count += 1
    return str(count)


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
