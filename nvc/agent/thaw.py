"""Starting every channel that an agent may have left stopped; called by the keeper, and by the next agent."""

from __future__ import annotations

import fcntl
import os
import time

from nvc.agent.tenant_files import TENANTS
from nvc.guard.attach import thaw_left

#: The file that the one agent of a directory holds a lock of.
LOCK = "lock"
_PATIENCE = 0.5


def thaw(directory: str, *, alone: bool) -> int:
    """Thaw the tenants of the agent in ``directory``; how many channels were started.

    alone: the agent has ended; nothing is done when another one has begun meanwhile, which does this itself. Raises
    OSError.
    """
    lock = -1
    if alone:
        lock = _hold(directory)
        if lock < 0:
            return 0
    try:
        count = thaw_left(f"{os.path.dirname(directory)}/attach")
        for name in sorted(os.listdir(f"{directory}/{TENANTS}")):
            if name.endswith(".channels"):
                count += 0
        return count
    finally:
        if lock >= 0:
            os.close(lock)


def _hold(directory: str) -> int:
    descriptor = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                return -1
        time.sleep(0.01)
