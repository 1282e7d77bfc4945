"""Listeners on their way: from a runtime over an acceptor to a monitor, with an agent and without one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.agent import status
from nvc.agent.state.records import prepare
from nvc.share.protocol import Client
from tests.support import leftovers, registered
from tests.support.acceptors import acceptor, end_acceptor, processes
from tests.support.contained import KEY, Contained
from tests.support.native import build
from tests.support.service_manager import Manager

pytestmark = pytest.mark.root


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """An agent's, where nothing runs at the end."""
    build("nvc-monitor", "nvc-supervisor")
    made = tmp_path / "agent"
    prepare(str(made))
    yield made
    end_acceptor(made)
    assert leftovers.until(lambda: not processes("nvc-monitor", str(made)), seconds=20), "a monitor is left"


@pytest.fixture
def contained(tmp_path: Path) -> Iterator[Callable[..., Contained]]:
    made: list[Contained] = []

    def start(*arguments: Any, **changes: Any) -> Contained:
        made.append(Contained(tmp_path, *arguments, **changes))
        return made[-1]

    yield start
    for one in made:
        one.end()


@pytest.fixture
def manager(tmp_path: Path, directory: Path) -> Iterator[Manager]:
    (tmp_path / "manager").mkdir()
    with Manager(tmp_path / "manager", directory, ("listen", "control")) as made:
        yield made
    assert made.told.count("STOPPING=1") == 1


def words(directory: Path) -> list[str]:
    return ["agent", "--directory", str(directory), "--store", str(directory.parent / "share")]


def tenants(directory: Path) -> list[str]:
    with Client(str(directory / "control")) as client:
        return [one.container for one in status.ask(client).tenants]


def events(manager: Manager, event: str) -> list[dict[str, Any]]:
    """Of agents, acceptors and monitors."""
    lines = manager.log.read_text().splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
    return [one for one in found if one["event"] == event]


def logged(manager: Manager, event: str, number: int) -> list[dict[str, Any]]:
    """So many events, no more. A process ends or continues before the line about it is written."""
    leftovers.until(lambda: len(events(manager, event)) >= number, seconds=20)
    found = events(manager, event)
    assert len(found) == number, manager.log.read_text()
    return found


def supervisor(manager: Manager) -> int:
    """The pid of the only tenant's."""
    return int(logged(manager, "monitor", 1)[0]["supervisor"])


def guarded(tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]) -> Contained:
    """A container with a supervisor that has answered its first call; the agent is started."""
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    tenant = contained()
    tenant.enter(tmp_path / "share")
    assert tenant.maps(), manager.log.read_text()
    return tenant


def test_a_container_runs_on_without_an_agent_and_takes_new_processes(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    tenant = guarded(tmp_path, directory, manager, contained)
    for _ in range(2):
        manager.kill()
        assert tenant.maps(), "no agent is there"
        executed = contained(tenant.pid, "running")
        assert executed.maps(), manager.log.read_text()
        executed.end()
        manager.start(*words(directory))
        assert tenants(directory) == [KEY]
        assert tenant.maps()
    # One of an earlier container of this name is not the tenant's.
    stale = contained(1, "running")
    assert stale.process.wait(20) == -signal.SIGKILL
    assert logged(manager, "refused", 1)[0]["container"] == KEY
    logged(manager, "monitor", 1)
    assert [one["error"] for one in logged(manager, "listener", 3)] == [0] * 3
    pid = supervisor(manager)
    tenant.end()
    assert leftovers.until(lambda: not tenants(directory), seconds=30)
    assert leftovers.until(lambda: not Path(f"/proc/{pid}").exists(), seconds=20)
    # Its files go when its monitor has answered, which no other tenant waits for.
    assert leftovers.until(lambda: os.listdir(directory / "tenants") == [], seconds=20)


def test_a_container_that_ended_without_an_agent_leaves_no_process(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    tenant = guarded(tmp_path, directory, manager, contained)
    pid = supervisor(manager)
    manager.kill()
    tenant.end()
    assert leftovers.until(lambda: not Path(f"/proc/{pid}").exists(), seconds=30)
    manager.start(*words(directory))
    assert (tenants(directory), os.listdir(directory / "tenants")) == ([], [])
    assert events(manager, "supervisor-died") == [], "nothing was left that had to be ended"


def test_a_listener_on_its_way_is_not_lost_with_an_agent(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    tenant = contained()
    # The runtime is gone, the hook is slow: the agent waits for the share.
    tenant.say()
    for _ in range(2):
        time.sleep(0.3)
        manager.kill()
        manager.start(*words(directory))
    time.sleep(0.3)
    manager.kill()
    tenant.enter(tmp_path / "share")
    manager.start(*words(directory))
    assert tenant.answer() == "mapped\n", manager.log.read_text()
    assert supervisor(manager)
    assert tenants(directory) == [KEY]


def test_a_listener_that_comes_without_an_agent_waits_for_one(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    manager.kill()
    tenant = contained()
    tenant.enter(tmp_path / "share")
    tenant.say()
    assert tenant.answer(0.5) == ""
    manager.start(*words(directory))
    assert tenant.answer() == "mapped\n", manager.log.read_text()


def test_a_container_that_starts_while_the_agent_is_stopped_is_guarded(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    """For longer than any time that the agent itself gives a listener (ENTRY_SECONDS)."""
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    assert manager.process is not None
    stopped = manager.process.pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        tenant = contained()
        tenant.enter(tmp_path / "share")
        tenant.say()
        assert tenant.answer(3.5) == "", "neither ENOSYS nor anything else"
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert tenant.answer() == "mapped\n", manager.log.read_text()
    assert tenants(directory) == [KEY]


#: More than what waits for a monitor's accept (start.c), and its connections.
EXECUTED = 80


def test_a_tenant_that_hangs_delays_no_other_container(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    """Processes that were put into it kept the acceptor, and all that the agent admits at a time, for a minute."""
    manager.start(*words(directory))
    for key in (KEY, "c2", "c3"):
        registered.ask(directory / "control", key)
    tenant = contained()
    tenant.enter(tmp_path / "share")
    assert tenant.maps(), manager.log.read_text()
    hung = supervisor(manager)
    os.kill(hung, signal.SIGSTOP)
    try:
        executed = [contained(tenant.pid, "running") for _ in range(EXECUTED)]
        for key in ("c2", "c3"):
            begin = time.monotonic()
            other = contained(id=key)
            other.enter(tmp_path / "share", key)
            assert other.maps(), manager.log.read_text()
            assert time.monotonic() - begin < 20
            assert all(one.process.wait(20) == -signal.SIGKILL for one in executed), manager.log.read_text()
        assert len(tenants(directory)) == 3
    finally:
        os.kill(hung, signal.SIGCONT)


def test_what_does_not_end_with_its_container_is_ended_at_its_first_call(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    """Neither in a cgroup nor in a pid namespace of the container's, it was answered ENOSYS from then on."""
    tenant = guarded(tmp_path, directory, manager, contained)
    executed = contained(tenant.pid, "running")
    assert leftovers.until(lambda: len(events(manager, "listener")) == 2, seconds=20)
    os.kill(supervisor(manager), signal.SIGKILL)
    assert tenant.process.wait(20) == -signal.SIGKILL
    assert leftovers.until(lambda: events(manager, "supervisor-died") != [], seconds=20)
    executed.say()
    assert executed.process.wait(20) == -signal.SIGKILL


def test_a_container_without_a_share_is_ended_with_the_reason(
    directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    tenant = contained()
    assert tenant.process.wait(30) == -signal.SIGKILL
    (told,) = logged(manager, "refused", 1)
    assert (told["container"], told["pid"], told["ended"]) == (KEY, tenant.pid, True)
    assert "has no share" in told["message"] and "nvc-hook makes it" in told["hint"]
    assert (tenants(directory), os.listdir(directory / "tenants")) == ([], [])
    assert leftovers.until(lambda: processes("nvc-monitor", str(directory)) == [acceptor(directory)[0]], seconds=20)


def test_an_agent_that_was_killed_is_missed_in_the_log(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    # Nothing said it: without a service manager there was no agent from then on, and not one line.
    def missed() -> list[dict[str, Any]]:
        return [one for one in events(manager, "warning") if one["message"].startswith("no agent runs")]

    manager.start(*words(directory))
    assert leftovers.until(lambda: acceptor(directory)[0] != 0, seconds=20)
    manager.kill()
    assert leftovers.until(lambda: bool(missed()), seconds=30)
    assert "a container that starts waits for an agent" in missed()[0]["message"]
    assert missed()[0]["hint"] == "systemctl start nvc-agent"
    waiting = contained()
    waiting.enter(tmp_path / "share")
    assert leftovers.until(lambda: len(missed()) > 1, seconds=20)
    assert missed()[1]["container"] == KEY and "is ended then" in missed()[1]["message"]
    waiting.end()
    manager.start(*words(directory))
    assert tenants(directory) == []
    assert len(missed()) == 2, "once for each absence"
