"""nvc.linux.restart on processes that sleep: they leave their wait and enter it again, invisibly."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.linux import const, syscalls
from nvc.linux.restart import restart
from tests.support import leftovers

pytestmark = pytest.mark.root

#: Waits for its stdin without Python's own trying again: a wait that ended early would end the program with 3.
PROGRAM = Path(__file__).parent / "programs/wait_for_stdin.py"


def field(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))


def waits(pid: int) -> bool:
    end = time.monotonic() + 30
    while Path(f"/proc/{pid}/wchan").read_text() in ("0", "") or field(pid, "State")[0] != "S":
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it takes: a busy machine is no matter here."""
    monkeypatch.setattr("nvc.linux.restart._ONE_SECONDS", 30.0)
    monkeypatch.setattr("nvc.linux.restart._ALL_SECONDS", 60.0)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["python3", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert waits(process.pid)
        yield process
        process.kill()


def test_a_wait_is_left_and_entered_again(sleeper: subprocess.Popen[bytes]) -> None:
    before = int(field(sleeper.pid, "voluntary_ctxt_switches"))

    assert restart([(sleeper.pid, sleeper.pid)] * 3) == 3

    assert waits(sleeper.pid)
    assert int(field(sleeper.pid, "voluntary_ctxt_switches")) >= before + 3
    assert field(sleeper.pid, "TracerPid") == "0"
    assert os.waitpid(sleeper.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED) == (0, 0), "its parent hears of it"
    assert sleeper.communicate(b"x", timeout=20)
    assert sleeper.returncode == 0


def test_one_that_is_stopped_stays_so(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    assert os.waitpid(sleeper.pid, os.WUNTRACED)[0] == sleeper.pid

    assert restart([(sleeper.pid, sleeper.pid)]) == 1

    # Let go of, it runs for an instant, on its way back into the stop.
    assert leftovers.until(lambda: field(sleeper.pid, "State")[0] in "Tt", seconds=30)
    sleeper.send_signal(signal.SIGCONT)


def test_one_that_somebody_traces_is_told_by_a_signal_that_nobody_minds(sleeper: subprocess.Popen[bytes]) -> None:
    syscalls.ptrace(const.PTRACE_SEIZE, sleeper.pid)

    assert restart([(sleeper.pid, sleeper.pid)]) == 1

    found, status = os.waitpid(sleeper.pid, const.WAIT_ALL)
    assert (found, os.WIFSTOPPED(status), os.WSTOPSIG(status)) == (sleeper.pid, True, signal.SIGURG)
    syscalls.ptrace(const.PTRACE_DETACH, sleeper.pid)


def test_one_that_ended_is_no_error() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert restart([(ended.pid, ended.pid)]) == 0
    assert restart([]) == 0
