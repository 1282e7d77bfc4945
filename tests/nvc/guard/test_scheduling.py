"""Slices and phases, from shares."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.errors import InputError
from nvc.guard.scheduling import (
    EDGES,
    HIGH_US,
    LONGEST_US,
    MOST_PERIOD_US,
    MOST_PHASES,
    PERIOD_US,
    POLICIES,
    SHORTEST_US,
    Schedule,
    Tenant,
    decide,
    edges,
    expected,
    lost,
    parse_policy,
)
from nvc.share.model import CAP_WHOLE

SWITCH_US = 215


def shares(schedule: Schedule, tenants: tuple[Tenant, ...]) -> dict[str, float]:
    """What saturated tenants get of the time that is not lost to switching, in points."""
    slices = dict(schedule.slices)
    whole = {tenant.name: slices[tenant.name] * tenant.groups for tenant in tenants}
    return {name: 100 * length / sum(whole.values()) for name, length in whole.items()}


@pytest.mark.parametrize("weights", [(50, 50), (70, 30), (90, 10), (60, 30, 10), (1, 1), (1, 16), (16, 1, 1, 1)])
def test_time_goes_by_weight(weights: tuple[int, ...]) -> None:
    tenants = tuple(Tenant(f"t{index}", weight, groups=1) for index, weight in enumerate(weights))
    got = shares(decide(tenants), tenants)
    for tenant in tenants:
        assert abs(got[tenant.name] - 100 * tenant.weight / sum(weights)) < 0.1


def test_a_tenant_with_three_processes_has_no_more_than_one_with_one() -> None:
    tenants = (Tenant("one", 1, groups=1), Tenant("three", 1, groups=3))
    assert shares(decide(tenants), tenants) == pytest.approx({"one": 50, "three": 50}, abs=0.1)


def test_a_tenant_without_groups_takes_nothing_from_the_others() -> None:
    tenants = (Tenant("a", 30, groups=1), Tenant("b", 10, groups=1))
    idle = Tenant("idle", 1000)
    assert dict(decide((*tenants, idle)).slices) == {**dict(decide(tenants).slices), "idle": 0}


def test_a_tenant_that_is_alone_keeps_its_own_slices() -> None:
    assert decide((Tenant("a", 70, groups=1),)).slices == (("a", 0),)


def test_a_high_tenant_keeps_97_points_beside_a_saturating_low_one() -> None:
    slices = dict(decide((Tenant("high", priority="high", groups=1), Tenant("low", priority="low", groups=1))).slices)
    assert slices["high"] / (slices["high"] + slices["low"] + 2 * SWITCH_US) >= 0.97


def test_a_round_gives_95_points_of_the_gpu_to_work() -> None:
    for weights in ((50, 50), (70, 30), (90, 10)):
        slices = dict(decide(tuple(Tenant(str(i), w, groups=1) for i, w in enumerate(weights))).slices)
        assert sum(slices.values()) / (sum(slices.values()) + len(slices) * SWITCH_US) >= 0.95


tenant_lists = st.lists(
    st.builds(
        Tenant,
        st.just(""),
        st.integers(0, 1000),
        st.integers(1, 1000),
        st.sampled_from(("low", "normal", "high")),
        st.integers(0, 8),
        st.booleans(),
    ),
    max_size=12,
).map(lambda found: tuple(tenant.replace(name=f"t{index}") for index, tenant in enumerate(found)))


@given(tenant_lists, st.sampled_from(POLICIES), st.integers(1, 64))
def test_every_schedule_can_be_carried_out(tenants: tuple[Tenant, ...], policy: str, slots: int) -> None:
    schedule = decide(tenants, policy, slots)
    assert {name for name, _ in schedule.slices} | set(schedule.frozen) == {tenant.name for tenant in tenants}
    assert all(0 <= length <= LONGEST_US for _, length in schedule.slices)
    for phase in schedule.phases:
        assert 0 <= phase.since < schedule.period
        assert 0 <= phase.until - phase.since <= schedule.period


@given(tenant_lists)
def test_phases_have_the_length_of_the_cap_and_do_not_overlap_while_there_is_room(tenants: tuple[Tenant, ...]) -> None:
    schedule = decide(tenants, "fixed")
    caps = {tenant.name: tenant.cap for tenant in tenants if not tenant.paused and tenant.cap < CAP_WHOLE}
    assert {phase.name: phase.until - phase.since for phase in schedule.phases} == {
        name: schedule.period * cap // CAP_WHOLE for name, cap in caps.items()
    }
    if sum(caps.values()) <= CAP_WHOLE:
        ends = sorted((phase.since, phase.until) for phase in schedule.phases)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(ends))


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=10))
def test_no_slice_is_too_short_unless_another_would_be_too_long(weights: list[int]) -> None:
    slices = dict(decide(tuple(Tenant(str(i), w, groups=1) for i, w in enumerate(weights))).slices)
    assert min(slices.values()) >= SHORTEST_US - 1 or max(slices.values()) >= LONGEST_US - 1


def test_policies_are_named_settings() -> None:
    tenants = (Tenant("a", 3, 500, groups=1), Tenant("b", 1, groups=1))
    fair = decide(tenants, "fair", slots=4)
    assert [phase.until - phase.since for phase in fair.phases] == [PERIOD_US // 4] * 2
    assert shares(decide(tenants, "preemptive"), tenants) == {"a": 50, "b": 50}
    assert decide(tenants, "preemptive").phases == decide(tenants, "soft").phases == ()
    assert shares(decide(tenants, "soft"), tenants) == {"a": 75, "b": 25}
    assert decide(tenants, "native").slices == (("a", 0), ("b", 0))
    assert [phase.name for phase in decide(tenants, "fixed").phases] == ["a"]


def test_a_paused_tenant_is_off_and_takes_no_time() -> None:
    schedule = decide((Tenant("a", paused=True, groups=1), Tenant("b", groups=1), Tenant("c", groups=1)))
    assert schedule.frozen == ("a",)
    assert {name for name, _ in schedule.slices} == {"b", "c"}


def test_policies_are_known_by_number_and_by_name() -> None:
    assert [parse_policy(str(number)) for number in range(6)] == list(POLICIES)
    assert parse_policy("soft") == "soft"
    for text in ("6", "", "FAIR", "-1", "٣"):
        with pytest.raises(InputError, match="scheduling policy"):
            parse_policy(text)


def test_high_priority_is_not_longer_than_hardware_keeps() -> None:
    assert HIGH_US <= LONGEST_US


def test_many_groups_make_a_longer_round_so_that_95_points_are_work() -> None:
    for groups in range(2, 20):
        tenants = tuple(Tenant(str(number), 10, groups=1) for number in range(groups))
        length = sum(dict(decide(tenants).slices).values())
        assert length / (length + groups * SWITCH_US) >= 0.95


def test_a_tenant_keeps_its_place_when_others_go_and_come() -> None:
    def capped(name: str, cap: int) -> Tenant:
        return Tenant(name, cap=cap, groups=1)

    first = decide((capped("a", 200), capped("b", 300), capped("c", 300)))
    assert [(phase.since, phase.until) for phase in first.phases] == [(0, 9_400), (9_400, 23_500), (23_500, 37_600)]
    without = decide((capped("b", 300), capped("c", 300)), before=first.phases)
    assert without.phases == first.phases[1:]
    # It fits behind c, round the period's end. Beside a and c alone there would be no room in one piece.
    back = decide((capped("b", 300), capped("c", 300), capped("d", 400)), before=without.phases)
    assert [(phase.name, phase.since, phase.until) for phase in back.phases] == [
        ("b", 9_400, 23_500),
        ("c", 23_500, 37_600),
        ("d", 37_600, 56_400),
    ]
    anew = decide((capped("a", 200), capped("c", 300), capped("e", 400)), before=first.phases)
    assert [phase.since for phase in anew.phases] == [0, 9_400, 23_500]


def test_a_small_cap_beside_others_has_phases_of_two_rounds() -> None:
    free = tuple(Tenant(str(number), 10, groups=1) for number in range(3))
    schedule = decide((*free, Tenant("small", 10, cap=100, groups=1)))
    (phase,) = schedule.phases
    assert schedule.period == 4 * PERIOD_US
    slices = dict(schedule.slices)
    assert phase.until - phase.since >= 2 * sum(slices.values())
    assert decide((Tenant("small", 10, cap=100, groups=1),)).period == PERIOD_US, "alone there is no other to wait for"


def test_others_of_a_capped_high_tenant_do_not_switch_all_the_time_while_it_is_off() -> None:
    others = tuple(Tenant(str(number), groups=1) for number in range(3))
    slices = dict(decide((Tenant("high", cap=500, priority="high", groups=1), *others)).slices)
    assert min(slices[str(number)] for number in range(3)) >= 4000


def test_what_is_expected_is_by_weight_cap_and_the_other_tenants() -> None:
    def shares_of(*tenants: Tenant, policy: str = "weighted") -> dict[str, float]:
        return {name: round(part, 3) for name, part in expected(tenants, decide(tenants, policy)).items()}

    one, two = Tenant("a", 30, groups=1), Tenant("b", 10, groups=2)
    assert shares_of(one) == {"a": 1}
    assert shares_of(one, two) == {"a": 0.75, "b": 0.25}
    assert shares_of(one, two, policy="native") == {"a": 0.333, "b": 0.667}
    assert shares_of(one, Tenant("idle")) == {"a": 1, "idle": 0}
    assert shares_of(one.replace(cap=700), two.replace(cap=200)) == {"a": 0.7, "b": 0.2}
    assert shares_of(one.replace(cap=400), two.replace(weight=30)) == {"a": 0.2, "b": 0.8}
    assert shares_of(one.replace(cap=800), two.replace(cap=800)) == {"a": 0.5, "b": 0.5}
    assert shares_of(one.replace(paused=True), two) == {"a": 0, "b": 1}


def test_a_thousand_tenants_with_a_phase_are_laid_in_time() -> None:
    tenants = tuple(Tenant(f"t{number}", groups=1) for number in range(1000))
    first = decide(tenants, "fair", 1000)
    later = decide(
        (*tenants[500:], *(Tenant(f"n{number}", groups=1) for number in range(500))), "fair", 1000, before=first.phases
    )
    assert first.phases[500:] == later.phases[:500]
    length = first.period // 1000
    assert [*range(0, first.period, length)] == sorted(phase.since for phase in later.phases)


@pytest.mark.parametrize("period", [10_000, 15_000, 50_000, 150_000, 200_000])
@pytest.mark.parametrize("count", [65, 129, 300, 301, MOST_PHASES])
def test_each_of_many_caps_has_its_part_and_edges_that_the_driver_takes(count: int, period: int) -> None:
    cap = max(1, 1000 // count)
    schedule = decide(tuple(Tenant(str(number), cap=cap, groups=1) for number in range(count)), period=period)
    assert len(schedule.phases) == count
    for phase in schedule.phases:
        assert (phase.until - phase.since) / schedule.period == pytest.approx(cap / 1000, abs=0.0001)
    assert edges(schedule.period, count) <= EDGES
    assert schedule.period <= MOST_PERIOD_US
    ends = [(phase.since, phase.until) for phase in sorted(schedule.phases, key=lambda phase: phase.since)]
    assert all(until <= since for (_, until), (since, _) in itertools.pairwise(ends))


def test_edges_are_counted_by_period_and_phases() -> None:
    assert edges(200_000, 300) == 3000, "what 300 caps at 200 ms would need"
    assert edges(MOST_PERIOD_US, MOST_PHASES) == EDGES
    assert edges(MOST_PERIOD_US, MOST_PHASES + 1) > EDGES
    assert edges(50_000, 0) == 0


@pytest.mark.parametrize(("free", "cap", "most"), [(15, 100, 0.16), (15, 50, 0.18), (15, 25, 0.31), (60, 10, 0.31)])
def test_a_small_cap_beside_many_others_leaves_the_gpu_to_work(free: int, cap: int, most: float) -> None:
    """With periods of 200 ms at most, and slices of 250 us, a quarter to a half of it went into switches."""
    tenants = (*(Tenant(str(number), groups=1) for number in range(free)), Tenant("small", cap=cap, groups=1))
    schedule = decide(tenants)
    assert lost(tenants, schedule) <= most
    if most < 0.3:
        (phase,) = schedule.phases
        assert phase.until - phase.since >= 2 * sum(length for _, length in schedule.slices)


def test_only_those_that_are_on_at_a_time_share_a_round() -> None:
    tenants = tuple(Tenant(str(number), cap=100, groups=1) for number in range(300))
    schedule = decide(tenants)
    assert lost(tenants, schedule) <= 0.2
    length = schedule.phases[0].until - schedule.phases[0].since
    assert length >= 2 * 30 * (min(length for _, length in schedule.slices) - 1), "30 of them are on at a time"
