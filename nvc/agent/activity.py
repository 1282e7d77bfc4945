"""Whether a suspended process wants to compute again, as the kernel shows its threads. Nothing in it helps.

A locked libcuda holds calls inside the process: a thread that makes one begins to wait for a lock (futex) and stays
there. Before it a thread has used the processor, for the cell or the request that needs the GPU. Both are looked for.
Threads of libcuda's own want nothing, and one of them waits for a lock from the checkpoint on: those that it named
(cuda-EvtHandlr, cuda00001400006), and the one that CUDA calls the restore thread, whatever its name.
"""

from __future__ import annotations

import os

from nvc.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    #: (pid, thread) -> what it does.
    Threads = Mapping[tuple[int, int], "Thread"]

#: Nanoseconds of processor time of a tenant's processes between two looks that are no housekeeping: an idle Jupyter
#: kernel takes a tenth of a millisecond, a cell several.
BUSY_NS = 2_000_000
#: futex(2), where it is known.
FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, -2)
#: Of a thread that runs.
RUNNING = -1
#: What libcuda calls its threads.
_OWN = "cuda"


class Thread(Record):
    """run_ns: processor time. call: the number of the system call that it waits in, RUNNING: none.

    lock: of futex(2), its address. is_timed: and whether it ends by itself. name: "" where it is its program's.
    """

    run_ns: int
    call: int
    lock: int = 0
    is_timed: bool = False
    name: str = ""


def wants(first: Threads, before: Threads, now: Threads, own: Collection[tuple[int, int]] = ()) -> str:
    """Why processes seem to want the GPU, ""; they do not. Pure.

    first: before they were suspended; before: at the look before this one. own: threads of libcuda's.
    """
    seen = {key: thread for key, thread in now.items() if key not in own and not thread.name.startswith(_OWN)}
    busy = sum(thread.run_ns - (before[key].run_ns if key in before else 0) for key, thread in seen.items())
    if busy >= BUSY_NS:
        return f"{busy / 1e6:.0f} ms of processor time"
    for key, thread in seen.items():
        if thread.call == FUTEX and not _is_parked(first.get(key), thread) and before.get(key) == thread:
            return f"thread {key[1]}{thread.name and f' ({thread.name})'} waits for a lock"
    return ""


def _is_parked(first: Thread | None, now: Thread) -> bool:
    """Whether it waits for what it waited for before. A wait with a time that is begun anew may be for another lock."""
    return first is not None and first.call == FUTEX and (now.is_timed or now.lock == first.lock)


def look(pids: Iterable[int]) -> dict[tuple[int, int], Thread]:
    """The threads of these processes; those that end meanwhile are left out."""
    found = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/task")
            program = _read(f"/proc/{pid}/comm")
        except OSError:
            continue
        for name in names:
            place = f"/proc/{pid}/task/{name}"
            try:
                run_ns = int(_read(f"{place}/schedstat").split()[0])
                call, *arguments = _read(f"{place}/syscall").split()
                called = _read(f"{place}/comm")
            except (OSError, ValueError, IndexError):
                continue
            number = int(call) if call.isdigit() else RUNNING
            lock, time = (int(arguments[0], 16), int(arguments[3], 16)) if number == FUTEX else (0, 0)
            # A thread has its program's name, unless it was given another one.
            called = "" if called == program else "".join(char if char.isprintable() else "?" for char in called[:-1])
            found[pid, int(name)] = Thread(run_ns, number, lock, time != 0, called)
    return found


def _read(place: str) -> str:
    """Raises OSError."""
    with open(place, "rb") as file:
        return file.read().decode(errors="backslashreplace")
