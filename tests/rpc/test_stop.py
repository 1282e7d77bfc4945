"""Stop comes between changes, not inside one; and nothing holds it up for ever."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from rpc import stop
from rpc.errors import Stop
from rpc.stop import Deferred, install


def outcome(body: Callable[[list[str]], None]) -> str:
    """Run ``body`` in a child where SIGTERM means Stop; what it noted, then how it ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        notes: list[str] = []
        try:
            install()
            body(notes)
            notes.append("returned")
        except Stop:
            notes.append("Stop")
        except ValueError:
            notes.append("ValueError")
        finally:
            os.write(write, " ".join(notes).encode())
            os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    return text if status == 0 else f"signal {os.WTERMSIG(status)}"


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_outside_of_a_block_it_comes_at_once() -> None:
    def body(notes: list[str]) -> None:
        terminate()
        notes.append("too late")

    assert "Stop" == outcome(body)


def test_a_change_is_finished_first() -> None:
    def body(notes: list[str]) -> None:
        with Deferred():
            terminate()
            notes.append("noted")
        notes.append("too late")

    assert "noted Stop" == outcome(body)


def test_the_outer_of_two_blocks_counts() -> None:
    def body(notes: list[str]) -> None:
        with Deferred():
            with Deferred():
                terminate()
            notes.append("noted")
        notes.append("too late")

    assert "noted Stop" == outcome(body)


def test_a_change_that_hangs_is_interrupted() -> None:
    def body(notes: list[str]) -> None:
        with Deferred():
            terminate()
            time.sleep(600)

    begin = time.monotonic()
    assert "Stop" == outcome(body)
    assert stop.CHANGE_TIMEOUT_S <= time.monotonic() - begin < 100, "it would sleep for 600 s"


def test_taking_back_is_not_interrupted_even_when_it_is_slow() -> None:
    def body(notes: list[str]) -> None:
        with Deferred(firm=True):
            terminate()
            time.sleep(stop.CHANGE_TIMEOUT_S + 0.3)
            notes.append("all taken back")
        notes.append("too late")

    assert "all taken back Stop" == outcome(body)


def test_taking_back_that_hangs_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "UNWIND_LIMIT_S", 1)

    def body(notes: list[str]) -> None:
        with Deferred(firm=True):
            terminate()
            time.sleep(600)

    assert f"signal {signal.SIGALRM:d}" == outcome(body)


def test_unwinding_that_hangs_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "UNWIND_LIMIT_S", 1)

    def body(notes: list[str]) -> None:
        try:
            terminate()
        finally:
            time.sleep(600)

    assert f"signal {signal.SIGALRM:d}" == outcome(body)


def test_an_undo_that_nothing_stopped_has_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "UNWIND_LIMIT_S", 1)

    def body(notes: list[str]) -> None:
        stop.limit_undo()
        stop.undone()
        time.sleep(1.2)
        notes.append("undone in time")
        print(*notes, flush=True)
        stop.limit_undo()
        time.sleep(600)

    assert outcome(body).endswith(f"signal {signal.SIGALRM:d}")


def test_it_comes_once_only() -> None:
    def body(notes: list[str]) -> None:
        try:
            terminate()
        finally:
            terminate()
            with Deferred(firm=True):
                terminate()
            notes.append("all taken back")

    assert "all taken back Stop" == outcome(body)


def test_a_failure_at_the_same_time_is_replaced_by_it() -> None:
    """The caller has died: no process reads the failure."""

    def body(notes: list[str]) -> None:
        with Deferred(firm=True):
            terminate()
            raise ValueError

    assert "Stop" == outcome(body)


def test_without_a_signal_a_block_does_nothing() -> None:
    def body(notes: list[str]) -> None:
        with Deferred(), Deferred(firm=True):
            raise ValueError

    assert "ValueError" == outcome(body)


def test_a_helper_forked_inside_a_block_does_not_inherit_it() -> None:
    def body(notes: list[str]) -> None:
        terminate()
        notes.append("too late")

    with Deferred():
        assert "Stop" == outcome(body)
