"""Caps, as the scheduler plans them, over a guard that only takes notes: in force, refused, not written."""

from __future__ import annotations

import pytest

from nvc.agent.scheduler import Scheduler
from nvc.base.errors import ContainerError
from nvc.guard.scheduling import DRIVER_EDGES, EDGES_A_PHASE, MOST_PERIOD_US, MOST_PHASES, PERIOD_US
from tests.support.scheduled import ONE, TWO, Notes, gpu, limits, two_tenants, update


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def two(notes: Notes) -> Scheduler:
    return two_tenants(notes)


def test_caps_become_a_plan_and_an_empty_one_ends_it(notes: Notes, two: Scheduler) -> None:
    two.tenant(1, limits(gpu(cap=700)))
    two.tenant(2, limits(gpu(cap=300)))
    update(two)
    assert {(1, 0): (PERIOD_US, 0, 32_900), (2, 0): (PERIOD_US, 32_900, PERIOD_US)} == notes.phases
    before = list(notes.calls)
    update(two)
    assert before == notes.calls, "written once"
    two.tenant(1, limits(gpu()))
    two.tenant(2, limits(gpu()))
    update(two)
    assert {} == notes.phases


def test_a_tenant_with_two_gpus_is_on_on_both_at_the_same_time(notes: Notes) -> None:
    scheduler = Scheduler(notes)
    scheduler.tenant(1, limits(gpu(ONE, cap=250)))
    scheduler.tenant(2, limits(gpu(ONE, cap=500), gpu(TWO, cap=500)))
    scheduler.tenant(3, limits(gpu(TWO, cap=500)))
    update(scheduler)
    assert notes.phases[2, 0] == notes.phases[2, 1] == (PERIOD_US, 0, PERIOD_US // 2)
    assert (notes.phases[1, 0][1], notes.phases[3, 0][1]) == (PERIOD_US // 2, PERIOD_US // 2)
    # A neighbour that comes moves neither.
    scheduler.tenant(4, limits(gpu(ONE, cap=100)))
    before = dict(notes.phases)
    update(scheduler)
    assert {key: notes.phases[key] for key in before} == before
    assert notes.phases[4, 0] == (PERIOD_US, 35_250, 39_950)


def test_a_cap_that_came_past_admission_is_kept_while_the_driver_takes_its_edges(notes: Notes) -> None:
    problems: list[str] = []
    scheduler = Scheduler(notes, problem=problems.append)
    for number in range(MOST_PHASES + 1):
        scheduler.tenant(number, limits(gpu(cap=1)))
    update(scheduler)
    assert len(notes.phases) == MOST_PHASES + 1
    assert all(scheduler.share(number, 0).cap_in_force for number in range(MOST_PHASES + 1))
    assert problems == []


def test_more_phases_than_the_driver_takes_leave_the_plan_before_in_force(notes: Notes) -> None:
    most = DRIVER_EDGES * MOST_PERIOD_US // 1_000_000 // EDGES_A_PHASE
    problems: list[str] = []
    scheduler = Scheduler(notes, problem=problems.append)
    for number in range(most):
        scheduler.tenant(number, limits(gpu(cap=1)))
    update(scheduler)
    phases = dict(notes.phases)
    assert len(phases) == most
    scheduler.tenant(most, limits(gpu(cap=1)))
    for _ in range(2):
        update(scheduler)
    assert phases == notes.phases
    assert [scheduler.share(number, 0).cap_in_force for number in (0, most)] == [True, False]
    assert len(problems) == 1
    assert f"the plan before, of {most} tenants, stays in force" in problems[0]
    scheduler.forget(1)
    update(scheduler)
    assert (most, 0) in notes.phases
    assert [scheduler.share(number, 0).cap_in_force for number in (0, most)] == [True, True]


@pytest.mark.parametrize("count", [65, 129, 300])
def test_each_of_many_tenants_has_its_cap_in_force(notes: Notes, count: int) -> None:
    scheduler = Scheduler(notes)
    for number in range(count):
        scheduler.check(limits(gpu(cap=100)))
        scheduler.tenant(number, limits(gpu(cap=100)))
    update(scheduler)
    assert all(scheduler.share(number, 0).cap_in_force for number in range(count))
    for period, since, until in notes.phases.values():
        assert (until - since) / period == pytest.approx(0.1, abs=0.01)
    before = {place: until - since for place, (_, since, until) in notes.phases.items()}
    scheduler.tenant(count - 1, limits(gpu(cap=50)))
    update(scheduler)
    period, since, until = notes.phases.pop((count - 1, 0))
    assert (until - since) / period == pytest.approx(0.05, abs=0.01)
    assert all(until - since == before[place] for place, (_, since, until) in notes.phases.items())


def test_a_cap_that_cannot_be_written_is_not_in_force_until_it_is(notes: Notes) -> None:
    """It was said to be, and never tried again."""
    scheduler = Scheduler(notes)
    notes.full = {1}
    for number in (1, 2):
        scheduler.tenant(number, limits(gpu(cap=300)))
    update(scheduler)
    assert [scheduler.share(number, 0).cap_in_force for number in (1, 2)] == [False, True]
    notes.calls.clear()
    notes.full.clear()
    update(scheduler)
    assert [call[:2] for call in notes.calls] == [("phase", 1)], "the other one's is left alone"
    assert [scheduler.share(number, 0).cap_in_force for number in (1, 2)] == [True, True]
    notes.calls.clear()
    update(scheduler)
    assert notes.calls == []


def test_a_policy_whose_phases_could_not_be_kept_is_refused(notes: Notes) -> None:
    scheduler = Scheduler(notes)
    for number in range(MOST_PHASES + 1):
        scheduler.tenant(number, limits(gpu()))
    scheduler.check_policy("fair", TWO)
    scheduler.check_policy("weighted")
    for uuid in ("", ONE):
        with pytest.raises(ContainerError, match=f"policy fair cannot be kept: {MOST_PHASES + 1} containers") as caught:
            scheduler.check_policy("0", uuid)
        assert "weighted" in caught.value.hint


def test_a_gpu_that_loses_much_of_its_time_to_switches_is_told(notes: Notes) -> None:
    problems: list[str] = []
    scheduler = Scheduler(notes, problem=problems.append)
    for number in range(40):
        notes.groups[number, 0] = 1
        scheduler.tenant(number, limits(gpu(cap=100 if number else 10)))
    update(scheduler)
    assert problems == [], "one or four of them are on at a time"
    for number in range(1, 40):
        scheduler.tenant(number, limits(gpu()))
    update(scheduler)
    assert len(problems) == 1
    assert "switches among 40 groups take 30% of its time beside its smallest cap" in problems[0]


def test_a_plan_that_cannot_be_written_disturbs_no_other(notes: Notes) -> None:
    problems: list[str] = []
    scheduler = Scheduler(notes, problem=problems.append)
    notes.full = {1}
    for number in (1, 2):
        scheduler.tenant(number, limits(gpu(cap=300)))
    update(scheduler)
    assert [(2, 0)] == list(notes.phases)
    assert ["tenant 1: its cap is not written: [Errno 28] phase"] == problems


def test_a_tenant_that_is_busy_keeps_its_cap(notes: Notes) -> None:
    scheduler = Scheduler(notes)
    notes.groups[1, 0] = notes.groups[2, 0] = 1
    for number in (1, 2):
        scheduler.tenant(number, limits(gpu(cap=300)))
    update(scheduler)
    phases = dict(notes.phases)
    assert len(phases) == 2
    notes.busy = {1}
    update(scheduler)
    assert phases == notes.phases


def test_a_cap_that_could_not_be_kept_is_refused_before_it_is_there(notes: Notes) -> None:
    scheduler = Scheduler(notes)
    for number in range(MOST_PHASES):
        scheduler.tenant(number, limits(gpu(cap=10)))
    scheduler.tenant(MOST_PHASES, limits(gpu()))
    update(scheduler)
    assert len(notes.phases) == MOST_PHASES
    scheduler.check(limits(gpu()))
    scheduler.check(limits(gpu(TWO, cap=10)))
    scheduler.check(limits(gpu(cap=20)), 7)
    with pytest.raises(ContainerError, match=f"its cap cannot be kept: {MOST_PHASES} containers with a cap are there"):
        scheduler.check(limits(gpu(TWO, cap=10), gpu(cap=10)))
    scheduler.set_policy("soft")
    scheduler.check(limits(gpu(cap=10)))
    scheduler.set_policy("fair")
    with pytest.raises(ContainerError, match=f"{MOST_PHASES + 1} containers"):
        scheduler.check(limits(gpu()))


def test_gpus_that_a_tenant_connects_are_decided_on_together(notes: Notes, two: Scheduler) -> None:
    for number in (3, 4):
        two.tenant(number, limits(gpu(cap=300), gpu(TWO, cap=300)))
    update(two)
    two.tenant(5, limits(gpu(TWO, cap=300)))
    update(two)
    assert notes.phases[3, 0][1] == notes.phases[3, 1][1] and notes.phases[4, 0][1] == notes.phases[4, 1][1]
    assert len({phase[0] for phase in notes.phases.values()}) == 1, "they have one period"


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


def test_the_next_agent_changes_no_phase_that_is_to_stay(notes: Notes, two: Scheduler) -> None:
    for number in (1, 2):
        two.tenant(number, limits(gpu(cap=300)))
    update(two)
    phases = dict(notes.phases)
    after = Scheduler(notes)
    notes.calls.clear()
    for number in (1, 2):
        after.tenant(number, limits(gpu(cap=300)))
        update(after)
        assert ("phase", number, 0, 0, 0, 0) not in notes.calls, "it would be on for a moment"
    assert phases == notes.phases
