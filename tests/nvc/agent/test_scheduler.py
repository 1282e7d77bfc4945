"""The scheduler, over a guard that only takes notes: slices, shares, and its task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nvc.agent import scheduler
from nvc.agent.scheduled import NO_SHARE
from nvc.agent.scheduler import LOOK, Scheduler
from nvc.base.errors import InputError
from nvc.guard.scheduling import OWN_US, PERIOD_US
from tests.support.scheduled import ONE, TWO, Clock, Notes, gpu, limits, two_tenants, update


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def two(notes: Notes) -> Scheduler:
    return two_tenants(notes)


def test_slices_follow_weights_and_are_written_once(notes: Notes, two: Scheduler) -> None:
    assert {(1, 0): 7500, (2, 0): 2500} == notes.slices
    before = list(notes.calls)
    update(two)
    assert before == notes.calls
    two.tenant(2, limits(gpu(weight=30)))
    update(two)
    assert {(1, 0): 5000, (2, 0): 5000} == notes.slices


def test_what_an_agent_before_left_is_written_over(notes: Notes) -> None:
    scheduler = Scheduler(notes)
    notes.groups[1, 0] = 1
    scheduler.tenant(1, limits(gpu()))
    update(scheduler)
    assert [("phase", 1, 0, 0, 0, 0), ("slice", 1, 0, OWN_US), ("slice", 1, 0, 0)] == notes.calls
    update(scheduler)
    assert len(notes.calls) == 3


def test_groups_that_come_and_go_change_slices(notes: Notes, two: Scheduler) -> None:
    notes.groups[2, 0] = 3
    update(two)
    assert notes.slices[1, 0] == pytest.approx(9 * notes.slices[2, 0], rel=0.01)
    notes.groups[2, 0] = 0
    notes.calls.clear()
    update(two)
    # Alone again: libcuda's own, written over the last one, and left from then on.
    assert [("slice", 1, 0, OWN_US), ("slice", 1, 0, 0), ("slice", 2, 0, OWN_US), ("slice", 2, 0, 0)] == notes.calls


def test_every_gpu_has_its_own_schedule_and_policy(notes: Notes) -> None:
    scheduler = Scheduler(notes, slots=4)
    for number in (1, 2):
        notes.groups[number, 0] = notes.groups[number, 1] = 1
        scheduler.tenant(number, limits(gpu(ONE, weight=number), gpu(TWO, weight=number)))
    scheduler.set_policy("0", TWO)
    update(scheduler)
    assert ("weighted", "fair") == (scheduler.policy(ONE), scheduler.policy(TWO))
    assert {(1, 1): (PERIOD_US, 0, 11_750), (2, 1): (PERIOD_US, 11_750, 23_500)} == notes.phases
    assert notes.slices[2, 0] == pytest.approx(2 * notes.slices[1, 0], abs=2)
    assert notes.slices[2, 1] == notes.slices[1, 1]
    scheduler.set_policy("native")
    update(scheduler)
    assert {} == notes.phases
    assert set(notes.slices.values()) == {0}
    with pytest.raises(InputError, match="scheduling policy"):
        scheduler.set_policy("quick")


def test_a_policy_that_takes_phases_away_leaves_other_gpus_their_own_period(notes: Notes) -> None:
    """A tenant without groups has nothing more to do with the GPU then, and its other one kept the period of both."""
    scheduler = Scheduler(notes)
    for number in range(1, 16):
        scheduler.tenant(number, limits(gpu(ONE, cap=100)), is_new=True)
    scheduler.tenant(16, limits(gpu(ONE, cap=100), gpu(TWO, cap=100)), is_new=True)
    update(scheduler)
    assert notes.phases[16, 1][0] > PERIOD_US
    scheduler.set_policy("preemptive", ONE)
    update(scheduler)
    assert notes.phases == {(16, 1): (PERIOD_US, 0, PERIOD_US // 10)}


def test_a_paused_tenant_takes_no_part_of_the_time(notes: Notes, two: Scheduler) -> None:
    two.tenant(2, limits(gpu(weight=10), paused=True))
    update(two)
    assert notes.slices[1, 0] == 0
    assert two.share(2, 0).target == 0


def test_shares_are_the_target_and_less_for_a_tenant_that_was_off(notes: Notes) -> None:
    clock = Clock()
    scheduler = Scheduler(notes, clock=clock)
    notes.groups[1, 0] = notes.groups[2, 0] = 1
    scheduler.tenant(1, limits(gpu(cap=500)))
    scheduler.tenant(2, limits(gpu(cap=250)))
    update(scheduler)
    assert (0.5, 0.25) == (scheduler.share(1, 0).target, scheduler.share(2, 0).target)
    clock.now += 2
    notes.frozen_ns = {(1, 0): 1_200_000_000, (2, 0): 1_000_000_000}
    update(scheduler)
    assert scheduler.share(1, 0).achieved == pytest.approx(0.4)
    assert scheduler.share(2, 0).achieved == pytest.approx(0.25)
    assert (0.0, 0.0) == (scheduler.share(3, 0).target, scheduler.share(1, 5).achieved)


def test_a_tenant_that_the_guard_does_not_know_disturbs_no_other(notes: Notes) -> None:
    problems: list[str] = []
    scheduler = Scheduler(notes, problem=problems.append)
    notes.groups[1, 0] = notes.groups[2, 0] = 1
    notes.gone = {3}
    for number in (1, 2, 3):
        scheduler.tenant(number, limits(gpu(weight=10)))
    for _ in range(3):
        update(scheduler)
    assert {(1, 0): 5000, (2, 0): 5000} == notes.slices
    assert len(problems) == 1
    assert "tenant 3" in problems[0]
    scheduler.forget(1)
    update(scheduler)
    assert notes.slices[2, 0] == 0


def test_a_tenant_that_published_nothing_is_not_read_and_its_gpu_not_decided_on(
    notes: Notes, two: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 512 idle tenants that took 16 % of a core."""
    decided: list[list[str]] = []
    decide = scheduler.decided

    def told(tenants: dict[str, Any], *others: Any) -> dict[str, Any]:
        decided.append(sorted(tenants))
        return decide(tenants, *others)

    monkeypatch.setattr(scheduler, "decided", told)
    two.tenant(3, limits(gpu(TWO)))
    update(two)
    assert decided == [[TWO]]
    notes.still.update((1, 2, 3))
    update(two)  # it sees what was published before
    notes.reads.clear()
    for _ in range(5):
        update(two)
    assert (notes.reads, decided) == ([], [[TWO]])
    notes.still.discard(2)
    notes.groups[2, 0] = 3
    update(two)
    assert (notes.reads, decided) == ([2], [[TWO], [ONE]])


def test_the_share_of_a_tenant_that_was_not_read_for_long_is_right(notes: Notes) -> None:
    clock = Clock()
    scheduler = Scheduler(notes, clock=clock)
    notes.groups[1, 0] = 1
    scheduler.tenant(1, limits(gpu(cap=500)))
    update(scheduler)
    notes.still.add(1)
    for _ in range(20):
        clock.now += 1.0
        update(scheduler)
    notes.still.clear()
    clock.now += 1.0
    notes.frozen_ns[1, 0] = 750_000_000
    update(scheduler)
    assert scheduler.share(1, 0).achieved == pytest.approx(0.25), "of the last second, not of all 21"


def test_what_comes_while_it_renews_is_in_force_with_the_next_renewal(notes: Notes, two: Scheduler) -> None:
    async def both() -> None:
        renewal = asyncio.ensure_future(two.renew())
        await asyncio.sleep(0)
        two.tenant(2, limits(gpu(weight=30)))
        two.forget(1)
        await two.renew()
        await renewal

    two.tenant(1, limits(gpu(cap=500)))
    asyncio.run(both())
    assert notes.slices[2, 0] == 0, "it is alone"
    assert two.share(1, 0) == NO_SHARE


def test_the_task_looks_at_once_and_leaves_everything_as_it_is(notes: Notes, two: Scheduler) -> None:
    """The agent's end changes nothing for containers that run."""
    two.tenant(1, limits(gpu(cap=700)))

    async def some_time() -> None:
        task = asyncio.ensure_future(two.run())
        for _ in range(100):
            if notes.phases:
                break
            await asyncio.sleep(LOOK / 2)
        notes.groups[2, 0] = 2
        two.poke()
        before = len(notes.calls)
        for _ in range(50):
            if len(notes.calls) > before:
                break
            await asyncio.sleep(0.001)
        assert len(notes.calls) > before, "it did not look at once"
        notes.calls.clear()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(some_time())
    assert [] == notes.calls
    assert [(1, 0)] == list(notes.phases)
    assert 0 not in notes.slices.values()


def test_it_ends_though_something_happens_at_that_moment() -> None:
    """A container ended while the agent was told to end, and the agent ran on."""

    async def ended() -> bool:
        one = Scheduler(Notes())
        task = asyncio.ensure_future(one.run())
        await asyncio.sleep(LOOK / 4)  # it waits
        one.poke()
        await asyncio.sleep(0)  # the event is set, and its waiter has not run
        task.cancel()
        await asyncio.wait([task], timeout=2)
        return task.done()

    assert all(asyncio.run(ended()) for _ in range(3))


def counted(notes: Notes, count: int, change: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    """What a change to one of so many idle tenants takes: reads of counters, and tenants of each decision."""
    one = Scheduler(notes)
    for number in range(1, count + 1):
        one.tenant(number, limits(gpu()), is_new=True)
    update(one)
    notes.still.update(range(1, count + 1))
    notes.reads.clear()
    decided: list[int] = []
    decide = scheduler.decided

    def told(tenants: dict[str, tuple[object, ...]], *others: Any) -> dict[str, Any]:
        decided.extend(map(len, tenants.values()))
        return decide(tenants, *others)  # type: ignore[arg-type] # as it came

    monkeypatch.setattr(scheduler, "decided", told)
    change(one)
    for _ in range(3):
        update(one)
    monkeypatch.setattr(scheduler, "decided", decide)
    return len(notes.reads), decided


@pytest.mark.parametrize(
    ("change", "reads", "decisions"),
    [
        (lambda one: one.tenant(1000, limits(gpu()), is_new=True), 3, []),
        (lambda one: one.tenant(5, limits(gpu(), paused=True)), 0, []),
        (lambda one: one.tenant(5, limits(gpu(weight=30))), 0, []),
        (lambda one: one.tenant(5, limits(gpu(cap=500))), 0, [1]),
        (lambda one: one.forget(5), 0, []),
    ],
    ids=["admission", "pause", "weight", "cap", "end"],
)
def test_what_happens_to_one_takes_as_much_with_200_others_as_with_10(
    change: Any, reads: int, decisions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was decided on together with all tenants of its GPU."""
    few, many = (counted(Notes(), count, change, monkeypatch) for count in (10, 200))
    assert few == many == (reads, decisions)
