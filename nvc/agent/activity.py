"""Whether a suspended process wants to compute again, as the kernel shows its threads. Nothing in it helps.

A locked libcuda holds calls inside the process: a thread that makes one begins to wait for a lock (futex) and stays
there. Before it a thread has used the processor, for the cell or the request that needs the GPU. Both are looked for.
Threads of libcuda's own (cuda-EvtHandlr, cuda00001400006) want nothing: while a process sleeps one waits for a lock.
"""

from __future__ import annotations

import os

from nvc.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    #: (pid, thread) -> what it does.
    Threads = Mapping[tuple[int, int], "Thread"]

#: Nanoseconds of processor time of a tenant's processes between two looks that are no housekeeping: an idle Jupyter
#: kernel takes a tenth of a millisecond, a cell several.
BUSY_NS = 2_000_000
#: futex(2), where it is known.
FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, -2)
#: Of a thread that runs.
RUNNING = -1


class Thread(Record):
    """run_ns: processor time. call: the number of the system call that it waits in, RUNNING: none."""

    run_ns: int
    call: int


def wants(first: Threads, before: Threads, now: Threads) -> str:
    """Why processes seem to want the GPU, ""; they do not. Pure.

    first: before they were suspended; before: at the look before this one.
    """
    busy = sum(thread.run_ns - (before[key].run_ns if key in before else 0) for key, thread in now.items())
    if busy >= BUSY_NS:
        return f"{busy / 1e6:.0f} ms of processor time"
    for key, thread in now.items():
        parked = key in first and first[key].call == FUTEX
        if thread.call == FUTEX and not parked and before.get(key) == thread:
            return f"thread {key[1]} waits for a lock"
    return ""


def look(pids: Iterable[int]) -> dict[tuple[int, int], Thread]:
    """The threads of these processes but libcuda's; those that end meanwhile are left out."""
    found = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        own = _name(f"/proc/{pid}")
        for name in names:
            # A thread has its program's name, unless somebody gave it another one.
            if int(name) != pid and own != (called := _name(f"/proc/{pid}/task/{name}")) and called.startswith(b"cuda"):
                continue
            try:
                with open(f"/proc/{pid}/task/{name}/schedstat", "rb") as file:
                    run_ns = int(file.read().split()[0])
                with open(f"/proc/{pid}/task/{name}/syscall", "rb") as file:
                    call = file.read().split()[0]
            except (OSError, ValueError, IndexError):
                continue
            found[pid, int(name)] = Thread(run_ns, int(call) if call.isdigit() else RUNNING)
    return found


def _name(place: str) -> bytes:
    try:
        with open(f"{place}/comm", "rb") as file:
            return file.read()
    except OSError:
        return b""
