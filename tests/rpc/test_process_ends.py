"""Real helpers and how they always end: closed, by a signal, a deadline or their caller's death; with their undoing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from rpc.client import Client
from rpc.errors import RemoteError
from rpc.process import Process, start
from tests.support import leftovers
from tests.support.demo_service import (
    SERVICE,
    UNWINDING,
    Answer,
    Question,
    gone,
    handlers,
    is_reaped,
    open_descriptors,
    telling,
)

ROOT = Path(__file__).parents[2]


def test_close_leaves_neither_process_nor_descriptor() -> None:
    before = open_descriptors()
    with start(SERVICE, handlers()) as client:
        client.call("double", Question("a"))
    assert is_reaped(client.pid)
    assert before == open_descriptors()


def test_sixty_starts_leave_nothing() -> None:
    before = open_descriptors()
    for _ in range(60):
        start(SERVICE, handlers()).close()
    assert before == open_descriptors()


def test_an_earlier_service_ends_while_a_later_one_lives(running: Callable[..., Client]) -> None:
    first, second = running(), running()
    first.close()
    assert first._process.ending() == "the helper ended (exit status 0)", "it was not killed"
    assert Answer("aa") == second.call("double", Question("a"))


def test_interrupting_the_terminal_does_not_end_the_helper(running: Callable[..., Client]) -> None:
    client = running()
    os.kill(client.pid, signal.SIGINT)
    assert Answer("aa") == client.call("double", Question("a"))


def test_the_helper_ends_when_its_caller_is_killed() -> None:
    program = Path(__file__).parent / "programs/hold_service.py"
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        assert not gone(pid, 0.1)
        caller.kill()
    assert gone(pid)


def test_a_hung_call_to_a_service_that_unwinds_is_taken_back(tmp_path: Path, running: Callable[..., Client]) -> None:
    """SIGTERM raises in the handler, also while it sleeps in a system call."""

    def run(request: Question, fds: list[int]) -> Answer:
        (tmp_path / "half").touch()
        try:
            time.sleep(600)
        except Exception:
            (tmp_path / "swallowed").touch()
        finally:
            (tmp_path / "half").unlink()
            (tmp_path / "undone").touch()
        return Answer("")

    client = running(run, UNWINDING)
    pending = client.begin("run", Question(), deadline=0.1)
    assert leftovers.until((tmp_path / "half").exists, seconds=20), "it does not begin"
    with pytest.raises(RemoteError, match="careful rpc error: timed out: run: no answer"):
        pending.result()
    assert ["undone"] == os.listdir(tmp_path)
    assert is_reaped(client.pid)


def test_unwinding_is_not_interrupted_by_a_second_signal(tmp_path: Path, running: Callable[..., Client]) -> None:
    def run(request: Question, fds: list[int]) -> Answer:
        try:
            (tmp_path / "begun").touch()
            time.sleep(600)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            (tmp_path / "begun").rename(tmp_path / "undone")
        return Answer("")

    client = running(run, UNWINDING)
    pending = client.begin("run", Question(), deadline=0.1)
    assert leftovers.until((tmp_path / "begun").exists, seconds=20), "it does not begin"
    with pytest.raises(RemoteError):
        pending.result()
    assert ["undone"] == os.listdir(tmp_path)


def test_a_service_without_undo_dies_at_once(running: Callable[..., Client]) -> None:
    """Foreign code that never returns would keep a Python signal handler from running."""
    client = running()
    os.kill(client.pid, signal.SIGTERM)
    with pytest.raises(RemoteError, match=r"the helper died \(signal 15, terminated\)"):
        client.call("double", Question())


def test_ending_an_idle_service_that_unwinds(running: Callable[..., Client]) -> None:
    client = running(service=UNWINDING)
    client.call("double", Question())
    os.kill(client.pid, signal.SIGTERM)
    with pytest.raises(RemoteError, match=r"the helper ended \(exit status 143\)"):
        client.call("double", Question())


def test_a_service_that_unwinds_dies_at_once_while_it_prepares(capfd: pytest.CaptureFixture[str]) -> None:
    """A callback of weakref, as of an import, swallows what a signal handler raises, and writes it to stderr."""

    def prepare() -> None:
        held = [lambda: None]
        reference = weakref.ref(held[0], lambda _: os.kill(os.getpid(), signal.SIGTERM))
        held.clear()
        assert reference() is None

    client = start(UNWINDING, handlers(), prepare=prepare, deadline=20)
    with client, pytest.raises(RemoteError, match=r"the helper died \(signal 15, terminated\)"):
        client.call("double", Question())
    assert capfd.readouterr().err == ""


def test_the_calls_own_deadline_wins(running: Callable[..., Client]) -> None:
    client = running(deadline=100)
    begin = time.monotonic()
    with pytest.raises(RemoteError, match=r"no answer in 0\.1 s"):
        client.call("run", Question(), deadline=0.1)
    assert time.monotonic() - begin < 50


def forked(function: Callable[[], None]) -> Process:
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    return Process(pid)


def test_without_a_pidfd_the_number_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux before 5.3, or no descriptor left."""

    def no_pidfd(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    child = forked(lambda: time.sleep(600))
    assert not child.wait(0.01)
    child.terminate()
    assert child.wait(60)
    assert "the helper died (signal 15, terminated)" == child.ending()
    child.kill()
    child.terminate()
    assert is_reaped(child.pid)


def test_a_child_that_somebody_else_reaped_is_gone() -> None:
    child = forked(lambda: None)
    os.waitpid(child.pid, 0)
    assert child.wait(1)
    assert "the helper died" == child.ending()


def test_a_caller_that_inherited_sigchld_ignored() -> None:
    """Then the kernel reaps: waiting and closing must still end."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        client = start(SERVICE, handlers())
        assert Answer("aa") == client.call("double", Question("a"))
        client.close()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert gone(client.pid)


def test_a_signal_to_a_process_that_is_gone_is_nothing() -> None:
    child = forked(lambda: None)
    assert select.select([child._pidfd], [], [], 60)[0]
    child.terminate()
    child.kill()
    assert "the helper ended (exit status 0)" == child.ending()


def test_close_without_wait_returns_before_the_exit_and_reap_after_it(
    running: Callable[..., Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, opened = os.pipe()

    def on_shutdown(end: int) -> None:
        time.sleep(0.1)
        (tmp_path / "released").write_text(os.readlink(f"/proc/self/fd/{end}"))
        # close(wait=False) does not wait for anything after this.
        ended = os._exit
        os._exit = lambda status: (os.read(gate, 1), ended(status))  # type: ignore[assignment]

    monkeypatch.setattr("rpc.client.EXIT_TIMEOUT_S", 60.0)
    client = running(telling(lambda: "yes"), on_shutdown=on_shutdown)
    client.call("run", Question())
    client.close(wait=False)

    assert (tmp_path / "released").read_text().startswith("socket:")
    assert os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "it has not ended"
    assert client.closed
    os.write(opened, b"x")
    client.reap()
    assert is_reaped(client.pid)
    assert client._process.ending() == "the helper ended (exit status 0)", "it was waited for"
    for descriptor in (gate, opened):
        os.close(descriptor)


def test_leave_waits_for_nothing(running: Callable[..., Client]) -> None:
    gate, opened = os.pipe()
    client = running(telling(lambda: "yes"), on_shutdown=lambda end: os.read(gate, 1))
    client.call("run", Question())
    client.leave()

    assert client.closed
    assert os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "it has not ended"
    os.write(opened, b"x")
    client.reap()
    assert is_reaped(client.pid)
    assert client._process.ending() == "the helper ended (exit status 0)", "it was waited for"
    for descriptor in (gate, opened):
        os.close(descriptor)
