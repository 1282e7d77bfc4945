"""Phases of tenants that have several GPUs: the same time on all of them."""

from __future__ import annotations

import time
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from nvc.guard.phases import Phase, _apart, _Ring
from nvc.guard.scheduling import Schedule, Tenant, decide, decide_all
from nvc.share.model import CAP_WHOLE

GPUS = ("GPU-a", "GPU-b", "GPU-c")
FIXED = dict.fromkeys(GPUS, "fixed")
Machine = dict[str, tuple[Tenant, ...]]


def machine(tenants: Iterable[tuple[int, tuple[int, ...]]]) -> Machine:
    """Of (cap, indices of its GPUs)."""
    found: Machine = dict.fromkeys(GPUS, ())
    for number, (cap, places) in enumerate(tenants):
        for place in places:
            found[GPUS[place]] += (Tenant(f"t{number}", cap=cap, groups=1),)
    return found


def phases(schedules: dict[str, Schedule], uuid: str) -> dict[str, Phase]:
    return {phase.name: phase for phase in schedules[uuid].phases}


def on(phase: Phase, period: int, at: int) -> bool:
    return (at - phase.since) % period < phase.until - phase.since


tenants_of_gpus = st.lists(
    st.tuples(st.integers(1, 1000), st.sets(st.integers(0, 2), min_size=1).map(lambda found: tuple(sorted(found)))),
    max_size=10,
)


@given(tenants_of_gpus, tenants_of_gpus)
def test_a_tenant_is_on_at_the_same_time_on_all_its_gpus(
    first: list[tuple[int, tuple[int, ...]]], then: list[tuple[int, tuple[int, ...]]]
) -> None:
    before = decide_all(machine(first), FIXED)
    schedules = decide_all(machine(then), FIXED, before={uuid: one.phases for uuid, one in before.items()})
    for number, (cap, places) in enumerate(then):
        if cap == CAP_WHOLE:
            continue
        period = {schedules[GPUS[place]].period for place in places}
        (phase,) = {phases(schedules, GPUS[place])[f"t{number}"] for place in places}
        assert len(period) == 1
        assert phase.until - phase.since == min(period) * cap // CAP_WHOLE and 0 <= phase.since < min(period)


@given(tenants_of_gpus)
def test_phases_do_not_overlap_while_all_together_find_room(tenants: list[tuple[int, tuple[int, ...]]]) -> None:
    """One after the other, on whichever GPU, is always a way to lay them."""
    if sum(cap for cap, _ in tenants if cap < CAP_WHOLE) > CAP_WHOLE:
        return
    schedules = decide_all(machine(tenants), FIXED)
    for schedule in schedules.values():
        for begin in {phase.since for phase in schedule.phases}:
            assert sum(on(phase, schedule.period, begin) for phase in schedule.phases) == 1


@given(tenants_of_gpus)
def test_gpus_that_no_tenant_connects_are_as_ever(tenants: list[tuple[int, tuple[int, ...]]]) -> None:
    alone = [(cap, places[:1]) for cap, places in tenants]
    found = machine(alone)
    assert decide_all(found, FIXED) == {uuid: decide(found[uuid], "fixed") for uuid in GPUS}


def test_a_job_of_two_ranks_has_its_cap_beside_a_neighbour_on_one_gpu() -> None:
    """Both GPUs on together for half of the time, where each began when its own neighbours let it."""
    found = machine([(250, (0,)), (500, (0, 1)), (500, (1,))])
    apart = {uuid: phases({uuid: decide(found[uuid], "fixed")}, uuid)["t1"] for uuid in GPUS[:2]}
    assert apart[GPUS[0]].since != apart[GPUS[1]].since, "what each GPU decides by itself"
    schedules = decide_all(found, FIXED)
    assert phases(schedules, GPUS[0])["t1"] == phases(schedules, GPUS[1])["t1"]
    for uuid in GPUS[:2]:
        period = schedules[uuid].period
        for at in range(0, period, 100):
            assert sum(on(phase, period, at) for phase in schedules[uuid].phases) <= 1


def test_places_are_kept_when_others_go() -> None:
    found = machine([(200, (0, 1)), (300, (0, 1)), (100, (2,)), (400, (1, 2))])
    first = decide_all(found, FIXED)
    left = {uuid: tuple(tenant for tenant in one if tenant.name != "t0") for uuid, one in found.items()}
    then = decide_all(left, FIXED, before={uuid: one.phases for uuid, one in first.items()})
    for uuid in GPUS:
        kept = {phase for phase in first[uuid].phases if phase.name != "t0"}
        assert set(then[uuid].phases) == kept


def test_many_tenants_of_all_gpus_are_laid_in_time() -> None:
    found = {uuid: tuple(Tenant(f"t{number}", cap=4, groups=1) for number in range(250)) for uuid in GPUS}
    begin = time.perf_counter()
    first = decide_all(found, FIXED)
    decide_all(found, FIXED, before={uuid: one.phases for uuid, one in first.items()})
    assert time.perf_counter() - begin < 10  # a fifth of a second where a processor is free
    assert len({phase.since for phase in first[GPUS[0]].phases}) == 250


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 60)), max_size=12))
def test_of_phases_that_do_not_overlap_the_two_beside_it_decide(wanted: list[tuple[int, int]]) -> None:
    """Each was compared with all others: 500 caps took 50 ms."""
    ring, placed = _Ring(100), list[Phase]()
    for number, (since, length) in enumerate(wanted):
        phase = Phase(str(number), since, since + length)
        has_room = all(_apart(phase, one, 100) for one in placed)
        assert ring.has_room(phase) == has_room
        if has_room:
            ring.put(phase)
            placed.append(phase)
    assert sorted(one.since for one in placed) == [one.since for one in ring.phases]
