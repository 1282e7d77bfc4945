"""Which processes of this host the slots of a region belong to.

A slot says a pid, its pid namespace and its start time, and all of it may be a lie. So a process counts as a slot's
only when it has the container's region open: no other container's process can be made to.
"""

from __future__ import annotations

import os
import time

from nvc.linux import syscalls
from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.share.region import RegionSlot


#: Seconds for all of a container's processes: each can have any number of files open.
_SECONDS = 2.0


def host_pids(region: int, slots: Iterable[RegionSlot], proc: str = "/proc") -> dict[int, int]:
    """Slot index -> pid as seen in ``proc``, for those that were found in time. region: a descriptor of the region.

    Needs the rights of ptrace to see more than the caller's own processes; what cannot be looked at is not found.
    """
    wanted: dict[tuple[int, int], RegionSlot] = {(slot.pid_namespace, slot.pid): slot for slot in slots}
    if not wanted:
        return {}
    namespaces = {namespace for namespace, _ in wanted}
    status, end = os.fstat(region), time.monotonic() + _SECONDS
    found: dict[int, int] = {}
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        directory = f"{proc}/{name}"
        try:
            namespace = os.stat(f"{directory}/ns/pid").st_ino
            slot = wanted.get((namespace, _inner_pid(directory))) if namespace in namespaces else None
            if slot is not None and start_time(int(name)) == slot.start_time and _has_open(directory, status, end):
                found[slot.index] = int(name)
        except OSError:
            continue  # it ended, or is not ours to look at
    return found


def is_still(pid: int, slot: RegionSlot) -> bool:
    """Whether ``pid`` is the process that ``host_pids`` found: to be asked again once a descriptor pins it."""
    return start_time(pid) == slot.start_time


def inner_pid(pid: int) -> int:
    """The pid of a process of this host in its innermost pid namespace; 0: it has ended, or may not be looked at."""
    try:
        return max(0, _inner_pid(f"/proc/{pid}"))
    except OSError:
        return 0


def _inner_pid(directory: str) -> int:
    """The process's pid in its innermost pid namespace, or -1."""
    with open(f"{directory}/status", "rb") as file:
        for line in file:
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return -1


def _has_open(directory: str, wanted: os.stat_result, end: float) -> bool:
    for number in os.listdir(f"{directory}/fd"):
        if time.monotonic() > end:
            break
        try:
            # Not stat: its other files may be of a file system that never answers.
            _, found, _ = syscalls.statx_cached(f"{directory}/fd/{number}")
        except OSError:
            continue
        if found == (wanted.st_dev, wanted.st_ino):
            return True
    return False
