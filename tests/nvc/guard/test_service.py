"""Services: how short the others' slices are beside them, when, and what a service may have of the time."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nvc.guard import service
from nvc.guard.scheduling import OWN_US, Schedule, Tenant, decide, expected, service_bounds, waits
from nvc.guard.service import (
    AWAY_US,
    CROWDED,
    DONE,
    IDLE,
    LEAST_US,
    OVER,
    SERVED,
    SERVICE_US,
    SHORT_US,
    SOON,
    SWITCH_US,
    ServiceUse,
)

MS, SECOND = 1_000_000, 1_000_000_000


def a_service(name: str = "service", latency: int = 1000, **more: object) -> Tenant:
    fields: dict[str, object] = {"groups": 1, "priority": "service", "is_measured": True, **more}
    return Tenant(name, latency=latency, **fields)  # type: ignore[arg-type]


def slices(*tenants: Tenant, **more: object) -> dict[str, int]:
    return dict(decide(tenants, **more).slices)  # type: ignore[arg-type]


@pytest.mark.parametrize("latency", [300, 1000, 10_000])
def test_a_single_neighbour_has_the_shortest_slice(latency: int) -> None:
    given = slices(a_service(latency=latency), Tenant("training", groups=1))
    assert given == {"service": SERVICE_US, "training": LEAST_US}


@pytest.mark.parametrize("latency", [700, 1000, 10_000])
def test_neighbours_have_short_slices_within_what_the_latency_leaves(latency: int) -> None:
    given = slices(a_service(latency=latency), Tenant("a", groups=1), Tenant("b", groups=1))
    each = min(SHORT_US, (latency - AWAY_US) // 2 - SWITCH_US)
    assert given == {"service": SERVICE_US, "a": each, "b": each}


def test_neighbours_share_it_by_weight_and_by_groups() -> None:
    given = slices(a_service(latency=2000), Tenant("a", 30, groups=1), Tenant("b", 10, groups=2))
    assert given == {"service": SERVICE_US, "a": 300, "b": 50}, "longer in all where the shortest would be too short"


def test_without_groups_of_a_service_nothing_is_short() -> None:
    others = Tenant("a", 30, groups=1), Tenant("b", 10, groups=1)
    assert slices(a_service(groups=0), *others) == {**slices(*others), "service": 0}
    assert slices(a_service()) == {"service": 0}, "alone it has libcuda's own"


def test_without_samples_its_slice_is_by_weight() -> None:
    """Nothing would tell that it has more than its part."""
    given = slices(a_service(weight=20, is_measured=False), Tenant("training", 10, groups=1))
    assert given["training"] == 1000 - AWAY_US - SWITCH_US, "as long as the latency allows: switches take less then"
    assert given["service"] == 2 * given["training"]


def test_an_idle_service_costs_several_neighbours_nothing() -> None:
    others = Tenant("a", 30, groups=1), Tenant("b", 10, groups=1)
    idle = slices(a_service(use=IDLE), *others)
    by_weight = slices(Tenant("service", groups=1), *others)
    assert idle == by_weight
    assert slices(a_service(use=IDLE), others[0])["a"] == LEAST_US, "a single neighbour has no switches"


def test_a_service_that_computed_more_than_its_part_is_by_weight_and_gives_back() -> None:
    other = Tenant("training", 30, groups=1)
    assert slices(a_service(use=OVER), other) == slices(Tenant("service", 5, groups=1), other)


def test_several_services_have_the_time_by_weight_and_wait_no_longer() -> None:
    tenants = (
        a_service("one", 4000, weight=20),
        a_service("two", 3000, weight=10),
        Tenant("training", groups=1),
    )
    schedule = decide(tenants)
    given = dict(schedule.slices)
    assert given["training"] == LEAST_US, "the services wait for each other, too"
    assert given["one"] == pytest.approx(2 * given["two"], rel=0.01)
    for name, (bound, state) in waits(tenants, schedule).items():
        assert state == SERVED
        assert bound <= {"one": 4000, "two": 3000}[name]


def test_the_target_is_by_weight_for_a_service_has_no_more_in_the_long_run() -> None:
    tenants = (a_service(weight=10), Tenant("training", 30, groups=1))
    assert expected(tenants, decide(tenants)) == pytest.approx({"service": 0.25, "training": 0.75}, abs=0.001)


def test_caps_beside_it_keep_their_turns() -> None:
    """A service's slice is shorter than a phase, in which the tenant with a cap must have its turn."""
    tenants = (a_service(), Tenant("capped", cap=200, groups=1))
    schedule = decide(tenants)
    (phase,) = schedule.phases
    assert dict(schedule.slices)["service"] <= (phase.until - phase.since) // 2


def test_what_cannot_be_kept_is_told_by_its_bound() -> None:
    one = (a_service(), Tenant("a"), Tenant("b"), Tenant("c"))
    assert service_bounds(one)["service"] <= 1000
    four = (*one, Tenant("d"))
    assert service_bounds(four) == {"service": 4 * (LEAST_US + SWITCH_US) + AWAY_US}
    uneven = (a_service(), Tenant("a", 90), Tenant("b", 10))
    assert service_bounds(uneven)["service"] == 10 * LEAST_US + 2 * SWITCH_US + AWAY_US, (
        "weights of the others hold as well"
    )


def test_a_service_beside_too_many_groups_says_so() -> None:
    tenants = (a_service(), Tenant("crowd", groups=6))
    bound, state = waits(tenants, decide(tenants))["service"]
    assert (bound, state) == (6 * (LEAST_US + SWITCH_US) + AWAY_US, CROWDED)


TENANTS = st.lists(
    st.tuples(st.integers(1, 100), st.integers(1, 3), st.sampled_from([0, 0, 0, 1000, 3000, 100_000]), st.booleans()),
    min_size=2,
    max_size=6,
)


@given(TENANTS)
@example([(1, 1, 0, False), (1, 1, 1000, False), (1, 2, 1000, False)])
def test_whoever_is_there_each_service_waits_no_longer_than_it_may(rows: list[tuple[int, int, int, bool]]) -> None:
    """If the bounds that admission computes are within the latencies, the slices that are decided are as well."""
    tenants = tuple(
        Tenant(f"t{index}", weight, groups=groups, latency=latency, is_measured=measured)
        for index, (weight, groups, latency, measured) in enumerate(rows)
    )
    schedule = decide(tenants)
    can_be_kept = all(bound <= tenants[int(name[1:])].latency for name, bound in service_bounds(tenants).items())
    for name, (bound, state) in waits(tenants, schedule).items():
        assert not can_be_kept or (state == SERVED and bound <= tenants[int(name[1:])].latency), (name, schedule)
    if any(tenant.latency for tenant in tenants):
        assert min(length for _, length in schedule.slices) >= LEAST_US
        assert max(length for _, length in schedule.slices) <= SERVICE_US, "no longer than hardware keeps"


def test_policies_and_slices_of_libcudas_own_count_as_waits() -> None:
    tenants = (a_service(), Tenant("a", groups=2))
    schedule = Schedule((("service", 0), ("a", 0)), ())
    assert waits(tenants, schedule)["service"] == (2 * (OWN_US + SWITCH_US) + AWAY_US, CROWDED)


@pytest.mark.parametrize(
    ("alone", "p50", "p99"),
    # In milliseconds, what docs/internals/scheduling.md says of a neighbour's slice of LEAST_US.
    [(1.15, 0.24, 1.66), (4.27, 0.24, 1.43)],
)
def test_what_waits_make_of_slow_requests(alone: float, p50: float, p99: float) -> None:
    """Computed: requests at random times at 30 % load.

    Each waits for half a slice and the switch of 0.22 ms; one that comes while the GPU leaves the service, right behind
    another one, for all of it.
    """
    first, behind = (LEAST_US / 2 + SWITCH_US - 10) / 1000, (AWAY_US - 6 + LEAST_US + SWITCH_US - 10) / 1000
    found = [slowest(alone, *extra) for extra in ((0.0, 0.0), (first, behind))]
    assert found[1][0] - found[0][0] == pytest.approx(p50, abs=0.01)
    assert found[1][1] - found[0][1] == pytest.approx(p99, abs=0.1)


def slowest(alone: float, first: float, behind: float) -> tuple[float, float]:
    """p50 and p99 of requests of ``alone`` ms that each wait ``first``, or ``behind`` another one."""
    chance, now, free, took = random.Random(1), 0.0, 0.0, []
    for _ in range(100_000):
        now += chance.expovariate(0.3 / (alone * 1.06))  # as the bench: by what it can serve
        free = max(now, free) + alone + (first if now >= free else behind)
        took.append(free - now)
    took.sort()
    return took[len(took) // 2], took[len(took) * 99 // 100]


# What it does.


def played(load: float, weight: float, seconds: int, seed: int) -> tuple[list[float], list[bool]]:
    """Simulated seconds: the part that a service gets in each, and whether it was over at its end.

    load: what it asks for, 1.0: it computes without end; the neighbour always does. A sample each 200 ms is of the one
    that is on then; an answer of the driver comes each half second.
    """
    chance, use = random.Random(seed), ServiceUse(0)
    now, computed, parts, overs = 0, 0, [], []
    for _ in range(seconds):
        got = 0.0
        for half in range(2):
            less = weight / 2 / (weight / 2 + 1 - weight)
            share = min(load, less if use.use(now) == OVER else 0.98)
            samples = 3 if half else 2
            computed += sum(chance.random() < share for _ in range(samples)) * 200 * MS
            now += 500 * MS
            got += share / 2
            use.sampled(now, computed, weight)
        parts.append(got)
        overs.append(use.use(now) == OVER)
    return parts, overs


@pytest.mark.parametrize(("weight", "most"), [(0.5, 0.51), (0.2, 0.22)])
def test_a_service_without_end_gets_no_more_than_its_part(weight: float, most: float) -> None:
    """Of the others' reservations. Samples come each 200 ms, so in ten seconds it can be ahead by chance."""
    parts, _ = played(1.0, weight, 2000, 1)
    ahead = sorted(sum(parts[at : at + 10]) - 10 * weight for at in range(1990))
    assert ahead[-1] <= 2.5
    assert ahead[len(ahead) * 9 // 10] <= 1.0
    assert sum(parts) / len(parts) < most


def test_a_service_within_its_part_is_served_first_nearly_always() -> None:
    _, overs = played(0.25, 0.5, 2000, 2)
    assert sum(overs) / len(overs) < 0.02


def test_a_service_rests_after_ten_seconds_and_wakes_by_work_calls_and_hints() -> None:
    use = ServiceUse(0)
    for second in range(1, 10):
        use.sampled(second * SECOND, 0, 0.5)
        assert use.use(second * SECOND) == ""
    use.sampled(11 * SECOND, 0, 0.5)
    assert use.use(11 * SECOND) == IDLE
    use.sampled(12 * SECOND, 200 * MS, 0.5)
    assert use.use(12 * SECOND) == ""
    use.hint(DONE, 13 * SECOND)
    use.called(13 * SECOND - 1)  # what it did before is done
    assert use.use(13 * SECOND) == IDLE
    use.hint(SOON, 14 * SECOND)
    assert (use.use(23 * SECOND), use.use(25 * SECOND)) == ("", IDLE)
    use.called(26 * SECOND)
    assert use.use(30 * SECOND) == ""


def test_without_samples_it_never_rests() -> None:
    use = ServiceUse(0)
    for second in range(1, 60):
        use.sampled(second * SECOND, None, 0.5)
        assert (use.use(second * SECOND), use.is_measured) == ("", False)
    assert service.STATES == (SERVED, IDLE, OVER, CROWDED)
