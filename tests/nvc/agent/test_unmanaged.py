"""Tenants whose supervisor speaks another protocol than the agent: watched, counted, and not to be had twice."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc import __version__
from nvc.agent.state.records import CONTAINERS, TENANTS
from nvc.base.errors import InputError
from nvc.guard import supervisors
from tests.support import leftovers
from tests.support.admitted import KEY, AdmittedContainers

pytestmark = pytest.mark.root

GROUP = "team"


class Upgraded(AdmittedContainers):
    """A container of group GROUP, and an agent that speaks another protocol than its monitor."""

    def __init__(self, place: Path) -> None:
        super().__init__(place, GROUP)
        self.listener, self.other = os.pipe()
        assert self.admit(self.listener)
        (tenant,) = self.tenants
        self.number = tenant.number
        self.pids = self.supervisors.pids(tenant.number)

    def close(self) -> None:
        for file in (self.listener, self.other):
            os.close(file)


@pytest.fixture
def upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upgraded]:
    with Upgraded(tmp_path) as made:
        monkeypatch.setattr(supervisors, "VERSION", 2)
        made.agent().take_over()
        assert (len(made.tenants), made.events()) == (0, ["tenant", "warning"])
        yield made
        made.close()


def files(place: Upgraded) -> list[str]:
    return [name for kind in (TENANTS, CONTAINERS) for name in os.listdir(f"{place.directory}/{kind}")]


def test_it_goes_on_and_is_named_with_its_version(upgraded: Upgraded) -> None:
    (found,) = upgraded.tenants.unmanaged.status()
    assert (found.container, found.build, found.gpus) == (f"group:{GROUP}", __version__, ())
    assert [one.name for one in found.containers] == [KEY]
    with pytest.raises(InputError, match="another protocol"):
        upgraded.tenants.find(KEY)
    asyncio.run(upgraded.tenants.look(()))
    assert all(os.path.exists(f"/proc/{pid}") for pid in upgraded.pids)


def test_neither_its_container_nor_its_group_gets_the_quota_once_more(upgraded: Upgraded) -> None:
    assert not upgraded.admit(upgraded.listener)
    assert not upgraded.admit(upgraded.listener, upgraded.another("c2", GROUP, upgraded.limits))
    assert upgraded.admit(upgraded.listener, upgraded.another("c3", "", upgraded.limits))
    refused = [one["message"] for one in upgraded.told if one["event"] == "refused"]
    assert [f"group {GROUP}" in str(text) for text in refused] == [False, True]


def test_it_is_ended_when_its_monitor_and_its_supervisor_are_gone(upgraded: Upgraded) -> None:
    monitor, supervisor = upgraded.pids
    watchdog = int(Path(f"/proc/{monitor}/task/{monitor}/children").read_text().split()[-1])
    victims = {monitor, supervisor, watchdog}
    for pid in victims:  # none sees another one end
        os.kill(pid, signal.SIGSTOP)
    assert upgraded.container.poll() is None
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    poll = select.poll()
    poll.register(upgraded.supervisors.ends, select.POLLIN)
    assert poll.poll(20_000), "at once, not at the next look"
    upgraded.tenants.end_lost(upgraded.supervisors.lost())
    assert upgraded.container.wait(20) == -signal.SIGKILL
    (told,) = (one for one in upgraded.told if one["event"] == "supervisor-died")
    assert (told["container"], told["tenant"], told["ended"]) == (f"group:{GROUP}", upgraded.number, True)
    assert files(upgraded) == []


def test_it_ends_by_itself_with_its_last_process(upgraded: Upgraded) -> None:
    upgraded.container.kill()
    upgraded.container.wait()
    os.close(upgraded.other)
    assert leftovers.until(lambda: upgraded._monitors[0].poll() is not None, seconds=30)
    asyncio.run(upgraded.tenants.look(()))
    upgraded.other = os.dup(upgraded.listener)
    assert files(upgraded) == []
    assert upgraded.tenants.unmanaged.status() == []
    assert "supervisor-died" not in upgraded.events()
