"""An acceptor that is killed with a runtime's connection or listener: its watchdog has them, too."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.agent.connections import bind
from tests.nvc.agent.test_acceptor import MESSAGE, Alone, alone, contained, directory
from tests.support import leftovers
from tests.support.acceptors import acceptor, successors
from tests.support.contained import Contained

__all__ = ["alone", "contained", "directory"]
pytestmark = pytest.mark.root


def test_what_a_killed_acceptor_had_is_ended_at_its_first_call_without_an_agent(
    alone: Alone, contained: Callable[..., Contained]
) -> None:
    """It ran on with ENOSYS: the agent ends the process that the runtime named, and its cgroup, and no other one."""
    one = contained()
    assert leftovers.until((alone.directory / "pending" / str(alone.process.pid)).exists, seconds=20)
    alone.process.kill()
    alone.process.wait(20)
    one.say()
    assert one.process.wait(20) == -signal.SIGKILL
    assert leftovers.until(lambda: acceptor(alone.directory)[0] not in (0, alone.process.pid), seconds=20), (
        "the next one"
    )


def test_a_listener_that_comes_for_a_killed_acceptor_is_not_lost(
    alone: Alone, contained: Callable[..., Contained], tmp_path: Path
) -> None:
    """The acceptor had its connection, and the runtime had not sent its message."""
    place = tmp_path / "runtime"
    (place / "agent").mkdir(parents=True)
    with bind(str(place / "agent/listen")) as own:
        one = Contained(place)
        runtime, _ = own.accept()
    with runtime, socket.socket(socket.AF_UNIX) as client:
        _, (listener,), _, _ = socket.recv_fds(runtime, 8192, 1)
        before = alone.files()
        client.connect(str(alone.directory / "listen"))
        assert leftovers.until(lambda: alone.files() != before, seconds=20)
        alone.process.kill()
        alone.process.wait(20)
        socket.send_fds(client, [MESSAGE], [listener])
        os.close(listener)
    one.say()
    assert one.process.wait(20) == -signal.SIGKILL
    one.end()


def test_a_killed_acceptor_without_a_successor_is_replaced_by_its_watchdog(
    alone: Alone, contained: Callable[..., Contained]
) -> None:
    """A container that starts then waits for an agent as any other does."""
    alone.process.send_signal(signal.SIGSTOP)  # it would make another
    assert leftovers.until(lambda: not _killed(successors(str(alone.directory))), seconds=20)
    alone.process.kill()
    alone.process.wait(20)
    now: list[int] = []  # asked for before the container starts: with it this one is no acceptor any more
    assert leftovers.until(
        lambda: now.append(acceptor(alone.directory)[0]) or now[-1] not in (0, alone.process.pid), seconds=20
    )
    contained()
    assert leftovers.until((alone.directory / "pending" / str(now[-1])).exists, seconds=20), (
        "it accepts at the same socket"
    )


def _killed(pids: list[int]) -> list[int]:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids
