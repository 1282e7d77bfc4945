"""Containers of a group: one tenant, from the first one's start to the last one's end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.agent import groups
from nvc.agent.state import records
from nvc.agent.state.records import CONTAINERS, Member
from nvc.agent.tenants import LISTENERS, Tenants
from nvc.guard.channel import DONE, START
from nvc.share import change, store
from nvc.share import limits as limits_file
from nvc.share.limits import Limits
from tests.support import admitted, leftovers
from tests.support.admitted import KEY, AdmittedContainers

pytestmark = pytest.mark.root

GROUP = "claim-1"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[AdmittedContainers]:
    with AdmittedContainers(tmp_path, GROUP) as made:
        yield made


@pytest.fixture
def pipes() -> Iterator[Callable[[], tuple[int, int]]]:
    """As listeners: a read end, which hangs up when the other one is closed."""
    made: list[int] = []

    def pipe() -> tuple[int, int]:
        ends = os.pipe()
        made.extend(ends)
        return ends

    yield pipe
    for one in made:
        try:
            os.close(one)
        except OSError:
            continue


def start(place: AdmittedContainers, key: str, listener: int, limits: Limits | None = None) -> bool:
    """Whether a further container of the group starts a tenant of its own."""
    return place.admit(listener, place.another(key, GROUP, limits or place.limits.replace(container=key)))


def looked(tenants: Tenants, seconds: float = 0.3) -> None:
    async def look() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await admitted.look(tenants, tenants._supervisors)
            await asyncio.sleep(0.02)

    asyncio.run(look())


def members(place: AdmittedContainers) -> list[str]:
    (tenant,) = place.tenants
    return [one.container for one in tenant.record.members]


def memory(place: AdmittedContainers, key: str) -> int:
    return limits_file.decode(Path(place.shares, key, "limits").read_bytes()).gpus[0].memory


def test_two_containers_are_one_tenant_until_the_last_one_ends(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]
) -> None:
    (first, first_end), (second, second_end) = pipes(), pipes()
    assert place.admit(first)
    assert not start(place, "c2", second)
    assert (len(place.tenants), members(place)) == (1, [KEY, "c2"])
    (tenant,) = place.tenants
    assert tenant.name == f"group:{GROUP}"
    assert [one.engine_name for one in tenant.record.members] == ["default/c1/main", "default/c2/main"]
    assert place.tenants.find("c2") is tenant is place.tenants.find(KEY)
    link = Path(place.directory, CONTAINERS)
    assert [(link / name).resolve().name for name in (KEY, "c2")] == [str(tenant.number)] * 2

    place.container.kill()
    place.container.wait()
    os.close(first_end)
    looked(place.tenants)
    assert (members(place), sorted(os.listdir(link))) == (["c2"], ["c2"])
    assert place.events() == ["tenant", "tenant", "gone"]

    place.containers[1].kill()
    place.containers[1].wait()
    os.close(second_end)
    assert place.are_gone()
    assert os.listdir(link) == []


@pytest.mark.parametrize("killed", ["supervisor", "monitor", "both"])
def test_all_of_them_end_with_their_guard(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]], killed: str
) -> None:
    assert place.admit(pipes()[0])
    assert not start(place, "c2", pipes()[0])
    (tenant,) = place.tenants
    monitor, supervisor = place.supervisors.pids(tenant.number)
    victims = {"supervisor": (supervisor,), "monitor": (monitor,), "both": (monitor, supervisor)}[killed]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert [one.wait(10) for one in place.containers] == [-signal.SIGKILL] * 2
    assert place.are_gone()


def test_all_of_them_end_with_the_agent_where_nothing_else_is_left(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]
) -> None:
    """Monitor, supervisor and watchdog are killed while no agent runs."""
    assert place.admit(pipes()[0])
    assert not start(place, "c2", pipes()[0])
    (tenant,) = place.tenants
    monitor, supervisor = place.supervisors.pids(tenant.number)
    children = [int(word) for word in Path(f"/proc/{monitor}/task/{monitor}/children").read_text().split()]
    next_agent = place.agent()
    for pid in (monitor, *children):
        os.kill(pid, signal.SIGSTOP)
    for pid in (*children, monitor):
        os.kill(pid, signal.SIGKILL)
    assert leftovers.until(lambda: not Path(f"/proc/{supervisor}/fd/3").exists(), seconds=20)
    assert [one.poll() for one in place.containers] == [None, None]
    next_agent.take_over()
    assert [one.wait(10) for one in place.containers] == [-signal.SIGKILL] * 2


def test_the_next_agent_knows_them(place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]) -> None:
    (second, end) = pipes()
    assert place.admit(pipes()[0])
    assert not start(place, "c2", second)
    place.agent().take_over()
    assert members(place) == [KEY, "c2"]
    assert not start(place, "c3", pipes()[0])
    os.close(end)
    place.containers[1].kill()
    place.containers[1].wait()
    looked(place.tenants)
    assert members(place) == [KEY, "c3"]


def test_a_group_that_is_over_begins_anew(place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]) -> None:
    listener, end = pipes()
    assert place.admit(listener)
    (before,) = place.tenants
    place.container.kill()
    place.container.wait()
    os.close(end)
    assert leftovers.until(lambda: place.supervisors.gone(before.number), seconds=20)
    assert start(place, "c2", pipes()[0])
    assert ([one.number for one in place.tenants], members(place)) == ([before.number + 1], ["c2"])


def test_containers_that_come_while_a_group_that_is_over_ends_are_one_tenant(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]
) -> None:
    listener, end = pipes()
    assert place.admit(listener)
    os.close(end)
    (tenant,) = place.tenants
    assert leftovers.until(lambda: place.supervisors.gone(tenant.number), seconds=20)
    arriving = [(pipes()[0], place.another(key, GROUP, place.limits.replace(container=key))) for key in ("c2", "c3")]
    assert sorted(place.admit_together(*arriving)) == sorted([START, DONE])
    assert sorted(members(place)) == ["c2", "c3"]


def test_another_share_is_refused_with_the_reason(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]
) -> None:
    assert place.admit(pipes()[0])
    limits = place.limits.replace(gpus=(place.limits.gpus[0].replace(memory=2 << 30),), container="c2")
    assert not start(place, "c2", pipes()[0], limits)
    told = place.told[-1]
    assert told["event"] == "refused"
    assert "mem=2Gi" in str(told["message"]) and "mem=1Gi" in str(told["message"])
    assert "--share-fixed" in str(told["hint"])
    assert members(place) == [KEY]
    assert not os.path.lexists(f"{place.directory}/{CONTAINERS}/c2")


def test_a_further_container_has_the_share_in_force_now(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]
) -> None:
    assert place.admit(pipes()[0])
    place.set(memory=1 << 29)
    (tenant,) = place.tenants
    assert leftovers.until(lambda: place.tenants.refresh(tenant), seconds=20)
    granted = place.limits.replace(gpus=(place.limits.gpus[0].replace(memory=1 << 30),), container="c2")
    assert not start(place, "c2", pipes()[0], granted)
    assert (members(place), memory(place, "c2")) == ([KEY, "c2"], 1 << 29)


@pytest.mark.parametrize("key", [KEY, "c2"])
def test_a_change_of_one_is_a_change_of_all(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]], key: str
) -> None:
    assert place.admit(pipes()[0])
    assert not start(place, "c2", pipes()[0])
    with store.find(key, place.shares) as entry, change.Hold(entry) as held:
        after = held.limits()
        change.write(held, after.replace(gpus=(after.gpus[0].replace(memory=1 << 28),)))
    (tenant,) = place.tenants
    assert leftovers.until(lambda: place.tenants.refresh(tenant), seconds=20)
    assert (memory(place, KEY), memory(place, "c2"), tenant.limits.gpus[0].memory) == (1 << 28,) * 3


def test_more_than_fit_are_refused(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "CONTAINERS", 1)
    assert place.admit(pipes()[0])
    assert not start(place, "c2", pipes()[0])
    assert "has 1 containers, and can have no more" in str(place.told[-1]["message"])


def test_containers_without_a_group_are_apart(place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]) -> None:
    assert place.admit(pipes()[0])
    assert place.admit(pipes()[0], place.another("c2", "", place.limits.replace(container="c2")))
    assert place.admit(pipes()[0], place.another("c3", "", place.limits.replace(container="c3")))
    assert [one.record.group for one in place.tenants] == [GROUP, "", ""]


def test_a_container_of_which_only_the_agent_knew_is_told_to_the_monitor(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]
) -> None:
    """The agent was killed between writing it down and saying it: calls failed, and it outlived the guard."""
    assert place.admit(pipes()[0])
    (tenant,) = place.tenants
    process = place.another("c2", GROUP, place.limits.replace(container="c2"))
    member = Member("c2", "c2", process.first, store.start_time(process.first), "default/c2/main")
    records.save(place.directory, tenant.record.with_members((*tenant.record.members, member)))
    place.agent().take_over()
    assert not place.admit(pipes()[0], process)
    os.kill(place.supervisors.pids(tenant.number)[1], signal.SIGKILL)
    assert [one.wait(10) for one in place.containers] == [-signal.SIGKILL] * 2
    assert place.are_gone()


def test_containers_that_could_not_join_take_no_place(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]
) -> None:
    assert place.admit(pipes()[0])
    (tenant,) = place.tenants
    ends = [pipes() for _ in range(LISTENERS - 1)]
    for listener, _ in ends:
        place.supervisors.listen(tenant.number, listener)
    process = place.another("c2", GROUP, place.limits.replace(container="c2"))
    first = process.first, store.start_time(process.first)
    for _ in range(groups.CONTAINERS + 1):
        with pytest.raises(OSError) as raised:
            place.supervisors.join(tenant.number, first, pipes()[0])
        assert raised.value.errno == errno.EMFILE
    for _, end in ends:
        os.close(end)
    assert leftovers.until(lambda: place.supervisors.status(tenant.number).listeners == 1, seconds=20)
    place.supervisors.join(tenant.number, first, pipes()[0])
    monitor = place.supervisors.pids(tenant.number)[0]

    def watchdogs() -> int:
        children = Path(f"/proc/{monitor}/task/{monitor}/children").read_text().split()
        return [Path(f"/proc/{pid}/comm").read_text() for pid in children].count("nvc-watchdog\n")

    assert leftovers.until(lambda: watchdogs() == 1, seconds=20), "it has its name some time after its fork"


def test_the_end_of_a_container_may_be_said_again(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]
) -> None:
    assert place.admit(pipes()[0])
    assert not start(place, "c2", pipes()[0])
    (tenant,) = place.tenants
    gone = tenant.record.members[1]
    with pytest.raises(OSError) as raised:
        place.supervisors.leave(tenant.number, (gone.pid, gone.start_time))
    assert raised.value.errno == errno.EBUSY
    place.containers[1].kill()
    place.containers[1].wait()
    for _ in range(2):
        place.supervisors.leave(tenant.number, (gone.pid, gone.start_time))


def test_a_further_container_has_a_change_that_is_not_in_force_yet(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]
) -> None:
    assert place.admit(pipes()[0])
    granted = place.limits.replace(container="c2")
    place.set(memory=1 << 29)
    assert not start(place, "c2", pipes()[0], granted)
    assert (memory(place, KEY), memory(place, "c2")) == (1 << 29,) * 2


def test_what_a_group_has_is_read_from_one_that_lives(
    place: AdmittedContainers, pipes: Callable[[], tuple[int, int]]
) -> None:
    """The first one's entry stays until the store is cleaned: a change of the others was never in force."""
    assert place.admit(pipes()[0])
    assert not start(place, "c2", pipes()[0])
    (tenant,) = place.tenants
    place.container.kill()
    place.container.wait()
    assert tenant.living.key == "c2"
    with store.find("c2", place.shares) as entry, change.Hold(entry) as held:
        after = held.limits()
        change.write(held, after.replace(gpus=(after.gpus[0].replace(memory=1 << 28),)))
    assert leftovers.until(lambda: place.tenants.refresh(tenant), seconds=20)
    assert (memory(place, KEY), tenant.limits.gpus[0].memory) == (1 << 30, 1 << 28)
