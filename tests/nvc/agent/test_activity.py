"""What of a process's threads says that it wants to compute, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from nvc.agent import activity
from nvc.agent.activity import BUSY_NS, FUTEX, RUNNING, Thread, wants
from tests.support import leftovers

READ = 0
MAIN, OTHER = (1, 1), (1, 2)


def test_a_thread_that_begins_to_wait_for_a_lock_and_stays_wants_it() -> None:
    first = {MAIN: Thread(5, READ), OTHER: Thread(7, FUTEX)}
    waits = {**first, MAIN: Thread(9, FUTEX)}
    assert wants(first, first, first) == ""
    assert wants(first, first, waits) == "", "it may be a lock of its own, held for a moment"
    assert wants(first, waits, waits) == "thread 1 waits for a lock"
    assert wants(first, waits, {**waits, MAIN: Thread(11, FUTEX)}) == "", "it goes on"


def test_threads_that_waited_before_it_was_suspended_do_not() -> None:
    parked = {MAIN: Thread(5, READ), OTHER: Thread(7, FUTEX)}
    assert wants(parked, parked, parked) == ""
    other = {**parked, OTHER: Thread(8, FUTEX, lock=4096)}
    assert wants(parked, other, other) == "thread 2 waits for a lock", "a worker took a request, and made a call"
    timed = {**parked, OTHER: Thread(8, FUTEX, lock=4096, is_timed=True)}
    assert wants(parked, timed, timed) == "", "it looks every second, by a new lock each time"
    unknown = wants({}, parked, parked)
    assert unknown == "thread 2 waits for a lock", "of one that was not seen before it slept nothing is left to chance"


def test_processor_time_beyond_housekeeping_wants_it() -> None:
    first = {MAIN: Thread(0, READ), OTHER: Thread(0, FUTEX)}
    busy = {MAIN: Thread(BUSY_NS // 2, RUNNING), OTHER: Thread(BUSY_NS // 2, FUTEX)}
    assert wants(first, first, busy) == "2 ms of processor time"
    assert wants(first, first, {**busy, OTHER: Thread(0, FUTEX)}) == ""


PROGRAM = """
import sys, threading
lock = threading.Lock(); lock.acquire()
threading.Thread(target=lock.acquire, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    if line == "spin\\n":
        for _ in range(3_000_000): pass
        print("done", flush=True)
    else:
        lock.acquire()
"""


def settled(pid: int, locks: int) -> dict[tuple[int, int], Thread]:
    """Its threads, once so many wait for a lock without a time: the program's word comes before that."""

    def waits() -> bool:
        found.append(activity.look([pid]))
        untimed = [one for one in found[-1].values() if one.call == FUTEX and not one.is_timed]
        return len(untimed) == locks and RUNNING not in {one.call for one in found[-1].values()}

    found: list[dict[tuple[int, int], Thread]] = []
    assert leftovers.until(waits, seconds=20), found[-1]
    return found[-1]


@pytest.mark.parametrize("line", ["wait", "spin"])
def test_the_kernel_shows_it_of_a_real_process(line: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        first = settled(process.pid, 1)
        assert len(first) == 2
        time.sleep(0.2)
        quiet = activity.look([process.pid])
        assert wants(first, first, quiet) == "", "one thread reads, one waits: nothing new"
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        if line == "wait":
            before = settled(process.pid, 2)
        else:
            before = quiet
            assert process.stdout.readline() == "done\n"
        why = wants(first, before, activity.look([process.pid]))
        assert ("waits for a lock" if line == "wait" else "of processor time") in why
        process.kill()


def test_processes_that_have_ended_are_left_out() -> None:
    assert activity.look([1 << 22, os.getpid()]).keys() >= {(os.getpid(), os.getpid())}


NAMED = """
import ctypes, sys, threading
lock = threading.Lock(); lock.acquire()
libc = ctypes.CDLL(None)
def park():
    if sys.argv[2] != "-":
        libc.prctl(15, sys.argv[2].encode())  # PR_SET_NAME
    lock.acquire()
libc.prctl(15, sys.argv[1].encode())
threading.Thread(target=park, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("program", "thread", "named"),
    [
        ("python", "cuda-EvtHandlr", ""),
        ("python", "cuda00001400006", ""),
        ("cuda_burn", "-", "thread {}"),
        ("python", "work\033er", "thread {} (work?er)"),
    ],
)
def test_threads_of_the_cuda_library_are_left_out(program: str, thread: str, named: str) -> None:
    """Seen on an H100: one of them waits for a lock from the checkpoint on, and each container woke at once."""
    command = [sys.executable, "-c", NAMED, program, thread]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        found = settled(process.pid, 1)
        (waits,) = (key for key in found if key[1] != process.pid)
        why = wants({}, found, found)
        assert why == (f"{named.format(waits[1])} waits for a lock" if named else "")
        assert wants({}, found, found, {waits}) == "", "CUDA says that it is the restore thread"
        assert wants({}, {}, {waits: found[waits].replace(run_ns=BUSY_NS)}, {waits}) == ""
        process.kill()


WORKER = """
import queue, sys, threading
lock, work = threading.Lock(), queue.SimpleQueue()
lock.acquire()
event = threading.Event()
def serve():
    work.get()
    lock.acquire()
def look_now_and_then():
    while not event.wait(0.01):
        pass
for target in (serve, look_now_and_then):
    threading.Thread(target=target, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    work.put(1)
"""


def test_a_worker_that_waited_for_work_and_waits_for_another_lock_now_wants_it() -> None:
    """As a server's whose requests take less processor time than is looked for. One that polls does not."""
    command = [sys.executable, "-c", WORKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        first, judged = settled(process.pid, 1), 0
        while judged < 10:
            begun, before = time.monotonic(), activity.look([process.pid])
            time.sleep(0.02)
            now = activity.look([process.pid])
            if time.monotonic() - begun < 0.2:  # it polls: in a longer time it uses as much as one that computes
                assert wants(first, before, now) == ""
                judged += 1
        process.stdin.write("\n")
        process.stdin.flush()

        def asks() -> bool:
            before = activity.look([process.pid])
            time.sleep(0.05)
            return "waits for a lock" in wants(first, before, activity.look([process.pid]))

        assert leftovers.until(asks, seconds=20)
        process.kill()
