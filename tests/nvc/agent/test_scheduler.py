"""The scheduler, over a guard that only takes notes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nvc.agent import scheduler
from nvc.agent.scheduled import NO_SHARE
from nvc.agent.scheduler import LOOK, Scheduler
from nvc.base.errors import ContainerError, InputError
from nvc.guard.pages import GpuStatus, TenantStatus
from nvc.guard.scheduling import DRIVER_EDGES, EDGES_A_PHASE, MOST_PERIOD_US, MOST_PHASES, OWN_US
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu

ONE, TWO = (f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in (1, 2))


class Notes:
    """groups, frozen_ns: by (tenant, GPU's index). calls: what was done, in order."""

    def __init__(self) -> None:
        self.groups: dict[tuple[int, int], int] = {}
        self.frozen_ns: dict[tuple[int, int], int] = {}
        self.gone: set[int] = set()
        self.calls: list[tuple[object, ...]] = []
        self.slices: dict[tuple[int, int], int] = {}
        #: By (tenant, GPU's index): period, since, until.
        self.phases: dict[tuple[int, int], tuple[int, int, int]] = {}
        #: Tenants that are busy; whose plan cannot be written.
        self.busy: set[int] = set()
        self.full: set[int] = set()
        #: Tenants that publish nothing; those that were read, in order.
        self.still: set[int] = set()
        self.stamps: dict[int, int] = {}
        self.reads: list[int] = []

    def stamp(self, tenant: int) -> object:
        self.stamps[tenant] = self.stamps.get(tenant, 0) + (tenant not in self.still)
        return self.stamps[tenant]

    def status(self, tenant: int) -> TenantStatus:
        self.reads.append(tenant)
        if tenant in self.gone:
            raise OSError(2, "status")
        if tenant in self.busy:
            raise OSError(16, "status")
        gpus = tuple(
            GpuStatus(0, 0, 0, self.groups.get((tenant, gpu), 0), 0, False, self.frozen_ns.get((tenant, gpu), 0))
            for gpu in range(2)
        )
        return TenantStatus(gpus, 0, 0, 0, 0, (), 0, 1, 1)

    def slice(self, tenant: int, gpu: int, microseconds: int) -> None:
        self.calls.append(("slice", tenant, gpu, microseconds))
        self.slices[tenant, gpu] = microseconds

    def phase(self, tenant: int, gpu: int, period: int, since: int, until: int) -> None:
        self.calls.append(("phase", tenant, gpu, period, since, until))
        if tenant in self.full:
            raise OSError(28, "phase")
        self.phases.pop((tenant, gpu), None)
        if period:
            self.phases[tenant, gpu] = period, since, until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def limits(*gpus: ResolvedGpu, paused: bool = False) -> Limits:
    return Limits(gpus, paused=paused)


def gpu(uuid: str = ONE, *, weight: int = 0, cap: int = 1000, priority: str = "normal") -> ResolvedGpu:
    return ResolvedGpu(uuid, -1, cap=cap, weight=weight, priority=priority)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def two(notes: Notes) -> Scheduler:
    """Two tenants with a group each on the first GPU, weights 30 and 10."""
    scheduler = Scheduler(notes, clock=Clock())
    for number, weight in ((1, 30), (2, 10)):
        notes.groups[number, 0] = 1
        scheduler.tenant(number, limits(gpu(weight=weight)))
    scheduler.update()
    return scheduler


def test_slices_follow_weights_and_are_written_once(notes: Notes, two: Scheduler) -> None:
    assert {(1, 0): 7500, (2, 0): 2500} == notes.slices
    before = list(notes.calls)
    two.update()
    assert before == notes.calls
    two.tenant(2, limits(gpu(weight=30)))
    two.update()
    assert {(1, 0): 5000, (2, 0): 5000} == notes.slices


def test_what_an_agent_before_left_is_written_over(notes: Notes) -> None:
    scheduler = Scheduler(notes)
    notes.groups[1, 0] = 1
    scheduler.tenant(1, limits(gpu()))
    scheduler.update()
    assert [("phase", 1, 0, 0, 0, 0), ("slice", 1, 0, OWN_US), ("slice", 1, 0, 0)] == notes.calls
    scheduler.update()
    assert len(notes.calls) == 3


def test_groups_that_come_and_go_change_slices(notes: Notes, two: Scheduler) -> None:
    notes.groups[2, 0] = 3
    two.update()
    assert notes.slices[1, 0] == pytest.approx(9 * notes.slices[2, 0], rel=0.01)
    notes.groups[2, 0] = 0
    notes.calls.clear()
    two.update()
    # Alone again: libcuda's own, written over the last one, and left from then on.
    assert [("slice", 1, 0, OWN_US), ("slice", 1, 0, 0), ("slice", 2, 0, OWN_US), ("slice", 2, 0, 0)] == notes.calls


def test_caps_become_a_plan_and_an_empty_one_ends_it(notes: Notes, two: Scheduler) -> None:
    two.tenant(1, limits(gpu(cap=700)))
    two.tenant(2, limits(gpu(cap=300)))
    two.update()
    assert {(1, 0): (50_000, 0, 35_000), (2, 0): (50_000, 35_000, 50_000)} == notes.phases
    before = list(notes.calls)
    two.update()
    assert before == notes.calls, "written once"
    two.tenant(1, limits(gpu()))
    two.tenant(2, limits(gpu()))
    two.update()
    assert {} == notes.phases


def test_a_tenant_with_two_gpus_is_on_on_both_at_the_same_time(notes: Notes) -> None:
    scheduler = Scheduler(notes)
    scheduler.tenant(1, limits(gpu(ONE, cap=250)))
    scheduler.tenant(2, limits(gpu(ONE, cap=500), gpu(TWO, cap=500)))
    scheduler.tenant(3, limits(gpu(TWO, cap=500)))
    scheduler.update()
    assert notes.phases[2, 0] == notes.phases[2, 1] == (50_000, 0, 25_000)
    assert (notes.phases[1, 0][1], notes.phases[3, 0][1]) == (25_000, 25_000)
    # A neighbour that comes moves neither.
    scheduler.tenant(4, limits(gpu(ONE, cap=100)))
    before = dict(notes.phases)
    scheduler.update()
    assert {key: notes.phases[key] for key in before} == before
    assert notes.phases[4, 0] == (50_000, 37_500, 42_500)


def test_every_gpu_has_its_own_schedule_and_policy(notes: Notes) -> None:
    scheduler = Scheduler(notes, slots=4)
    for number in (1, 2):
        notes.groups[number, 0] = notes.groups[number, 1] = 1
        scheduler.tenant(number, limits(gpu(ONE, weight=number), gpu(TWO, weight=number)))
    scheduler.set_policy("0", TWO)
    scheduler.update()
    assert ("weighted", "fair") == (scheduler.policy(ONE), scheduler.policy(TWO))
    assert {(1, 1): (50_000, 0, 12_500), (2, 1): (50_000, 12_500, 25_000)} == notes.phases
    assert notes.slices[2, 0] == pytest.approx(2 * notes.slices[1, 0], abs=2)
    assert notes.slices[2, 1] == notes.slices[1, 1]
    scheduler.set_policy("native")
    scheduler.update()
    assert {} == notes.phases
    assert set(notes.slices.values()) == {0}
    with pytest.raises(InputError, match="scheduling policy"):
        scheduler.set_policy("quick")


def test_a_paused_tenant_takes_no_part_of_the_time(notes: Notes, two: Scheduler) -> None:
    two.tenant(2, limits(gpu(weight=10), paused=True))
    two.update()
    assert notes.slices[1, 0] == 0
    assert two.share(2, 0).target == 0


def test_shares_are_the_target_and_less_for_a_tenant_that_was_off(notes: Notes) -> None:
    clock = Clock()
    scheduler = Scheduler(notes, clock=clock)
    notes.groups[1, 0] = notes.groups[2, 0] = 1
    scheduler.tenant(1, limits(gpu(cap=500)))
    scheduler.tenant(2, limits(gpu(cap=250)))
    scheduler.update()
    assert (0.5, 0.25) == (scheduler.share(1, 0).target, scheduler.share(2, 0).target)
    clock.now += 2
    notes.frozen_ns = {(1, 0): 1_200_000_000, (2, 0): 1_000_000_000}
    scheduler.update()
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
        scheduler.update()
    assert {(1, 0): 5000, (2, 0): 5000} == notes.slices
    assert len(problems) == 1
    assert "tenant 3" in problems[0]
    scheduler.forget(1)
    scheduler.update()
    assert notes.slices[2, 0] == 0


def test_a_cap_that_came_past_admission_is_kept_while_the_driver_takes_its_edges(notes: Notes) -> None:
    problems: list[str] = []
    scheduler = Scheduler(notes, problem=problems.append)
    for number in range(MOST_PHASES + 1):
        scheduler.tenant(number, limits(gpu(cap=1)))
    scheduler.update()
    assert len(notes.phases) == MOST_PHASES + 1
    assert all(scheduler.share(number, 0).cap_in_force for number in range(MOST_PHASES + 1))
    assert problems == []


def test_more_phases_than_the_driver_takes_leave_the_plan_before_in_force(notes: Notes) -> None:
    most = DRIVER_EDGES * MOST_PERIOD_US // 1_000_000 // EDGES_A_PHASE
    problems: list[str] = []
    scheduler = Scheduler(notes, problem=problems.append)
    for number in range(most):
        scheduler.tenant(number, limits(gpu(cap=1)))
    scheduler.update()
    phases = dict(notes.phases)
    assert len(phases) == most
    scheduler.tenant(most, limits(gpu(cap=1)))
    for _ in range(2):
        scheduler.update()
    assert phases == notes.phases
    assert [scheduler.share(number, 0).cap_in_force for number in (0, most)] == [True, False]
    assert len(problems) == 1
    assert f"the plan before, of {most} tenants, stays in force" in problems[0]
    scheduler.forget(1)
    scheduler.update()
    assert (most, 0) in notes.phases
    assert [scheduler.share(number, 0).cap_in_force for number in (0, most)] == [True, True]


@pytest.mark.parametrize("count", [65, 129, 300])
def test_each_of_many_tenants_has_its_cap_in_force(notes: Notes, count: int) -> None:
    scheduler = Scheduler(notes)
    for number in range(count):
        scheduler.check(limits(gpu(cap=100)))
        scheduler.tenant(number, limits(gpu(cap=100)))
    scheduler.update()
    assert all(scheduler.share(number, 0).cap_in_force for number in range(count))
    for period, since, until in notes.phases.values():
        assert (until - since) / period == pytest.approx(0.1, abs=0.01)
    before = {place: until - since for place, (_, since, until) in notes.phases.items()}
    scheduler.tenant(count - 1, limits(gpu(cap=50)))
    scheduler.update()
    period, since, until = notes.phases.pop((count - 1, 0))
    assert (until - since) / period == pytest.approx(0.05, abs=0.01)
    assert all(until - since == before[place] for place, (_, since, until) in notes.phases.items())


def test_a_cap_that_cannot_be_written_is_not_in_force_until_it_is(notes: Notes) -> None:
    """It was said to be, and never tried again."""
    scheduler = Scheduler(notes)
    notes.full = {1}
    for number in (1, 2):
        scheduler.tenant(number, limits(gpu(cap=300)))
    scheduler.update()
    assert [scheduler.share(number, 0).cap_in_force for number in (1, 2)] == [False, True]
    notes.calls.clear()
    notes.full.clear()
    scheduler.update()
    assert [call[:2] for call in notes.calls] == [("phase", 1)], "the other one's is left alone"
    assert [scheduler.share(number, 0).cap_in_force for number in (1, 2)] == [True, True]
    notes.calls.clear()
    scheduler.update()
    assert notes.calls == []


def test_a_policy_whose_phases_could_not_be_kept_is_refused(notes: Notes) -> None:
    scheduler = Scheduler(notes)
    for number in range(MOST_PHASES + 1):
        scheduler.tenant(number, limits(gpu()))
    scheduler.check_policy("fair", TWO)
    scheduler.check_policy("weighted")
    for uuid in ("", ONE):
        with pytest.raises(ContainerError, match=r"policy fair cannot be kept: 501 containers") as caught:
            scheduler.check_policy("0", uuid)
        assert "weighted" in caught.value.hint


def test_a_gpu_that_loses_much_of_its_time_to_switches_is_told(notes: Notes) -> None:
    problems: list[str] = []
    scheduler = Scheduler(notes, problem=problems.append)
    for number in range(40):
        notes.groups[number, 0] = 1
        scheduler.tenant(number, limits(gpu(cap=100 if number else 10)))
    scheduler.update()
    assert problems == [], "one or four of them are on at a time"
    for number in range(1, 40):
        scheduler.tenant(number, limits(gpu()))
    scheduler.update()
    assert len(problems) == 1
    assert "switches among 40 groups take 30% of its time beside its smallest cap" in problems[0]


def test_a_plan_that_cannot_be_written_disturbs_no_other(notes: Notes) -> None:
    problems: list[str] = []
    scheduler = Scheduler(notes, problem=problems.append)
    notes.full = {1}
    for number in (1, 2):
        scheduler.tenant(number, limits(gpu(cap=300)))
    scheduler.update()
    assert [(2, 0)] == list(notes.phases)
    assert ["tenant 1: its cap is not written: [Errno 28] phase"] == problems


def test_a_tenant_that_is_busy_keeps_its_cap(notes: Notes) -> None:
    scheduler = Scheduler(notes)
    notes.groups[1, 0] = notes.groups[2, 0] = 1
    for number in (1, 2):
        scheduler.tenant(number, limits(gpu(cap=300)))
    scheduler.update()
    phases = dict(notes.phases)
    assert len(phases) == 2
    notes.busy = {1}
    scheduler.update()
    assert phases == notes.phases


def test_a_cap_that_could_not_be_kept_is_refused_before_it_is_there(notes: Notes) -> None:
    scheduler = Scheduler(notes)
    for number in range(MOST_PHASES):
        scheduler.tenant(number, limits(gpu(cap=10)))
    scheduler.tenant(MOST_PHASES, limits(gpu()))
    scheduler.update()
    assert len(notes.phases) == MOST_PHASES
    scheduler.check(limits(gpu()))
    scheduler.check(limits(gpu(TWO, cap=10)))
    scheduler.check(limits(gpu(cap=20)), 7)
    with pytest.raises(ContainerError, match=r"its cap cannot be kept: 500 containers with a cap are there"):
        scheduler.check(limits(gpu(TWO, cap=10), gpu(cap=10)))
    scheduler.set_policy("soft")
    scheduler.check(limits(gpu(cap=10)))
    scheduler.set_policy("fair")
    with pytest.raises(ContainerError, match=r"501 containers"):
        scheduler.check(limits(gpu()))


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
    two.update()
    assert decided == [[TWO]]
    notes.still.update((1, 2, 3))
    two.update()  # it sees what was published before
    notes.reads.clear()
    for _ in range(5):
        two.update()
    assert (notes.reads, decided) == ([], [[TWO]])
    notes.still.discard(2)
    notes.groups[2, 0] = 3
    two.update()
    assert (notes.reads, decided) == ([2], [[TWO], [ONE]])


def test_gpus_that_a_tenant_connects_are_decided_on_together(notes: Notes, two: Scheduler) -> None:
    for number in (3, 4):
        two.tenant(number, limits(gpu(cap=300), gpu(TWO, cap=300)))
    two.update()
    two.tenant(5, limits(gpu(TWO, cap=300)))
    two.update()
    assert notes.phases[3, 0][1] == notes.phases[3, 1][1] and notes.phases[4, 0][1] == notes.phases[4, 1][1]
    assert len({phase[0] for phase in notes.phases.values()}) == 1, "they have one period"


def test_the_share_of_a_tenant_that_was_not_read_for_long_is_right(notes: Notes) -> None:
    clock = Clock()
    scheduler = Scheduler(notes, clock=clock)
    notes.groups[1, 0] = 1
    scheduler.tenant(1, limits(gpu(cap=500)))
    scheduler.update()
    notes.still.add(1)
    for _ in range(20):
        clock.now += 1.0
        scheduler.update()
    notes.still.clear()
    clock.now += 1.0
    notes.frozen_ns[1, 0] = 750_000_000
    scheduler.update()
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


def test_a_change_of_memory_is_not_refused_for_caps_that_are_too_many_already(notes: Notes) -> None:
    """Two containers that pass admission at once may be one too many; their memory could not be changed."""
    scheduler = Scheduler(notes)
    for number in range(MOST_PHASES + 1):
        scheduler.tenant(number, limits(gpu(cap=10)))
    scheduler.check(limits(gpu(cap=10)), 7)
    scheduler.check(limits(gpu(cap=20)), 7)
    with pytest.raises(ContainerError, match="its cap cannot be kept"):
        scheduler.check(limits(gpu(cap=10)))
    scheduler.tenant(999, limits(gpu()))
    with pytest.raises(ContainerError, match="its cap cannot be kept"):
        scheduler.check(limits(gpu(cap=10)), 999)


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


def test_the_next_agent_changes_no_phase_that_is_to_stay(notes: Notes, two: Scheduler) -> None:
    for number in (1, 2):
        two.tenant(number, limits(gpu(cap=300)))
    two.update()
    phases = dict(notes.phases)
    after = Scheduler(notes)
    notes.calls.clear()
    for number in (1, 2):
        after.tenant(number, limits(gpu(cap=300)))
        after.update()
        assert ("phase", number, 0, 0, 0, 0) not in notes.calls, "it would be on for a moment"
    assert phases == notes.phases


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
