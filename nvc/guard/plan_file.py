"""Where the plan of a tenant lies: DIRECTORY/tenants/NUMBER/plan, and the lock of its writers beside it.

What stands in a plan: ``nvc.guard.pages``. Used by the agent, and by what changes a plan without one.
"""

from __future__ import annotations

import contextlib
import os

from nvc.guard.pages import Plan


def create(place: str) -> int:
    """An empty plan in a tenant's directory ``place``: a descriptor, which the caller closes. Raises OSError.

    place "": a file without a name, for a tenant that no later agent finds again.
    """
    if not place:
        # The supervisor watches the file with inotify, which does not report a memfd (Linux 6.14 and later).
        return os.open("/tmp", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    os.makedirs(place, 0o700, exist_ok=True)
    return os.open(f"{place}/plan", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def open_lock(place: str) -> int:
    """The lock of the plan in a tenant's directory: a descriptor, which the caller closes. Raises OSError."""
    return os.open(f"{place}/plan.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def open_plan(place: str) -> Plan:
    """The plan in a tenant's directory; the caller closes it. Raises OSError, ValueError."""
    with contextlib.ExitStack() as undo:
        descriptor = os.open(f"{place}/plan", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        undo.callback(os.close, descriptor)
        lock = open_lock(place)
        undo.callback(os.close, lock)
        plan = Plan(descriptor, lock=lock)
        undo.pop_all()
    return plan
