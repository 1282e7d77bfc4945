"""``[agent] graphics``: containers that start later get it in their plans, from which their supervisors have it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.agent import away
from nvc.guard.plan_file import open_plan
from nvc.share import limits, store
from nvc.share.protocol import Client
from tests.nvc.agent.test_admission import contained, directory, manager, words
from tests.support import leftovers, registered
from tests.support.admitted import KEY, AdmittedContainers
from tests.support.contained import Contained
from tests.support.service_manager import Manager

__all__ = ["contained", "directory", "manager"]
pytestmark = pytest.mark.root


def planned(place: Path | str, number: int = 1) -> limits.Limits:
    """A tenant's limits, as its plan has them. place: the agent's directory."""
    plan = open_plan(f"{place}/tenants/{number}")
    try:
        return limits.decode(plan.limits)
    finally:
        plan.close()


@pytest.fixture
def pipes() -> Iterator[Callable[[], int]]:
    """As listeners: read ends."""
    made: list[int] = []

    def pipe() -> int:
        made.extend(os.pipe())
        return made[-2]

    yield pipe
    for one in made:
        os.close(one)


def taken(place: AdmittedContainers) -> bool:
    """Whether what the limits file of the only tenant says is in force, in time."""
    (tenant,) = place.tenants
    return leftovers.until(lambda: place.tenants.refresh(tenant), seconds=20)


def test_a_tenant_has_it_as_it_was_when_its_container_came(tmp_path: Path, pipes: Callable[[], int]) -> None:
    with AdmittedContainers(tmp_path) as place:
        assert place.admit(pipes())
        place.graphics = True
        assert place.admit(pipes(), place.another("c2", "", place.limits))
        place.graphics = False
        assert place.admit(pipes(), place.another("c3", "", place.limits))
        assert [planned(place.directory, number).graphics for number in (1, 2, 3)] == [False, True, False]
        assert [one.limits.graphics for one in place.tenants] == [False, True, False]


@pytest.mark.parametrize("graphics", [False, True])
def test_a_changed_share_and_another_agent_leave_it_as_it_is(
    tmp_path: Path, pipes: Callable[[], int], graphics: bool
) -> None:
    with AdmittedContainers(tmp_path) as place:
        place.graphics = graphics
        assert place.admit(pipes())
        place.graphics = not graphics
        for memory in (1 << 28, 1 << 29):
            place.set(memory=memory)
            assert taken(place)
            found = planned(place.directory)
            assert (found.gpus[0].memory, found.graphics) == (memory, graphics)
            place.agent().take_over()
            assert [one.limits.graphics for one in place.tenants] == [graphics]
        with store.find(KEY, place.shares) as entry:
            after = place.limits.replace(paused=True)
            assert away.put_in_force(place.directory, entry, after)
            assert not entry.limits().graphics, "what the container sees has nothing of it"
        assert (planned(place.directory).paused, planned(place.directory).graphics) == (True, graphics)


def test_what_is_in_force_is_put_into_force_once(
    tmp_path: Path, pipes: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file does not have the flag that the plan has: each look would be a change, for ever."""
    with AdmittedContainers(tmp_path) as place:
        place.graphics = True
        assert place.admit(pipes())
        (tenant,) = place.tenants
        updated: list[int] = []
        monkeypatch.setattr(place.supervisors, "update", lambda number, content: updated.append(number))
        assert place.tenants.refresh(tenant)
        assert updated == []


def test_containers_of_a_group_have_what_its_first_one_got(tmp_path: Path, pipes: Callable[[], int]) -> None:
    with AdmittedContainers(tmp_path, "claim-1") as place:
        place.graphics = True
        assert place.admit(pipes())
        place.graphics = False
        assert not place.admit(pipes(), place.another("c2", "claim-1", place.limits.replace(container="c2")))
        (tenant,) = place.tenants
        assert len(tenant.members) == 2
        place.set(memory=1 << 29)
        assert taken(place)
        found = planned(place.directory)
        assert (found.gpus[0].memory, found.graphics) == (1 << 29, True)


def test_an_agent_has_it_of_its_file_and_of_a_reload(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[agent]\ngraphics = true\n")
    manager.start(*words(directory), "--config", str(config))
    for number, said in enumerate((True, False), 1):
        if not said:
            config.write_text("[agent]\ngraphics = false\n")
            with Client(str(directory / "control")) as client:
                client.call("reload")
        registered.ask(directory / "control", f"c{number}")
        made = contained(id=f"c{number}")
        made.enter(tmp_path / "share", f"c{number}")
        assert made.maps(), manager.log.read_text()
    assert [planned(directory, number).graphics for number in (1, 2)] == [True, False]
