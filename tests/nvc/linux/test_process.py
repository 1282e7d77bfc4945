"""nvc.linux.process: children end, sealed copies cannot be changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.linux import process, syscalls
from nvc.linux.fd import Fd
from tests.support import leftovers


@pytest.fixture(params=["pidfd", "polling"])
def waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With pidfd_open, and as before Linux 5.3."""
    if request.param == "polling":

        def absent(pid: int, flags: int = 0) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", absent)
    yield


def raising() -> int:
    os.close(2)
    raise RuntimeError


def killed() -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


@pytest.mark.parametrize(
    ("function", "status"),
    [
        pytest.param(lambda: 0, 0, id="zero"),
        pytest.param(lambda: None, 0, id="none"),
        pytest.param(lambda: 7, 7, id="seven"),
        pytest.param(raising, 1, id="exception"),
        pytest.param(killed, -11, id="signal"),
    ],
)
def test_result_is_the_exit_status(function: object, status: int, waiting: None) -> None:
    assert status == process.wait(process.fork(function), 10)  # type: ignore[arg-type]


def test_hanging_child_is_killed_and_reaped(waiting: None) -> None:
    child = process.fork(lambda: time.sleep(60))
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=f"process {child} did not end within 0.1 s"):
        process.wait(child, 0.1)
    assert time.monotonic() - start < 50
    with pytest.raises(ChildProcessError):
        os.waitpid(child, 0)


@pytest.mark.parametrize("call", ["close_range", "loop"])
def test_every_descriptor_above_is_closed(call: str) -> None:
    def run() -> int:
        if call == "loop":
            syscalls.unavailable.add("close_range")
        kept = os.open("/", os.O_PATH)
        high = os.dup2(kept, 900)
        process.close_from(kept + 1)
        os.fstat(kept)
        try:
            os.fstat(high)
        except OSError:
            return 0
        return 1

    assert process.wait(process.fork(run), 20) == 0


def test_sealed_copy_is_the_file_and_stays_it(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "program").write_bytes(content)
    with Fd(os.open(tmp_path / "program", os.O_RDONLY)) as source, process.sealed_copy(source, "ldconfig") as copy:
        (tmp_path / "program").write_bytes(b"changed")
        assert os.pread(copy.fileno(), len(content) + 1, 0) == content
        for change in (lambda: os.pwrite(copy.fileno(), b"x", 0), lambda: os.ftruncate(copy.fileno(), 1)):
            with pytest.raises(PermissionError):
                change()
        # Nor through /proc, as a process in its namespace could try.
        other = os.open(f"/proc/self/fd/{copy.fileno()}", os.O_RDWR)
        with pytest.raises(PermissionError):
            os.write(other, b"x")
        os.close(other)


def test_sealed_copy_can_be_executed() -> None:
    with Fd(os.open("/bin/true", os.O_RDONLY)) as source, process.sealed_copy(source, "true") as copy:
        child = process.fork(lambda: os.execve(copy.fileno(), ["true"], {}))
        assert process.wait(child, 10) == 0


@pytest.mark.root
def test_a_thread_is_found_by_the_number_of_its_namespace() -> None:
    program = "import threading; threading.Thread(target=input).start(); print(threading.enumerate()[1].native_id)"
    command = ["unshare", "--pid", "--fork", sys.executable, "-uc", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout
        inner = int(outer.stdout.readline())
        (pid,) = map(int, Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split())
        (thread,) = {int(place.name) for place in Path(f"/proc/{pid}/task").iterdir()} - {pid}
        assert thread != inner
        assert [process.thread_id(pid, number) for number in (inner, thread)] == [thread, thread]
        with pytest.raises(LookupError):
            process.thread_id(pid, 1 << 22)
        outer.communicate("\n")


MAIN_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_is_ending_when_all_of_its_threads_are() -> None:
    assert not process.is_ending(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as sleeps:
        assert not process.is_ending(sleeps.pid)
        sleeps.kill()
        os.waitid(os.P_PID, sleeps.pid, os.WEXITED | os.WNOWAIT)
        assert process.is_ending(sleeps.pid), "a zombie"
    assert process.is_ending(sleeps.pid)
    with subprocess.Popen([sys.executable, "-c", MAIN_ENDS], stdout=subprocess.PIPE, text=True) as lives:
        assert lives.stdout
        assert lives.stdout.readline() == "ready\n"
        state = Path(f"/proc/{lives.pid}/stat")
        assert leftovers.until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", seconds=20), (
            "the main thread ends"
        )
        assert not process.is_ending(lives.pid)
        lives.kill()
