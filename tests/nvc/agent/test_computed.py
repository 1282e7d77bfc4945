"""Computed time: how the busy time of a GPU is divided among tenants, by which process samples found."""

from __future__ import annotations

import pytest

from nvc.agent.computed import ComputedTime, is_in_step
from nvc.guard.scheduling import MOST_PERIOD_US, PERIOD_US
from nvc.guard.usage import GpuUsage

SECOND = 10**9
OWNERS = {11: 1, 12: 1, 21: 2}
#: Tenants with groups.
BOTH = (1, 2)


def gpu(
    asked: float,
    sampled: float,
    busy: float,
    computed: dict[int, float],
    traced: dict[int, float] | None = None,
    untraced: float = 0.0,
) -> GpuUsage:
    """Seconds. traced: there is a trace of the engine, for as long as there are samples; untraced: of that, unknown."""
    times = {pid: int(part * SECOND) for pid, part in computed.items()}
    found = GpuUsage("GPU-1", int(asked * SECOND), 0, 0, 0, {}, int(sampled * SECOND), int(busy * SECOND), times)
    if traced is None:
        return found
    on = {pid: int(part * SECOND) for pid, part in traced.items()}
    return found.replace(traced_ns=int((sampled + 1) * SECOND), untraced_ns=int(untraced * SECOND), traced=on)


def begun() -> ComputedTime:
    made = ComputedTime()
    made.update(gpu(100, 0, 0, {}), OWNERS, BOTH, {}, {})
    return made


def test_each_tenant_has_the_sum_of_its_processes() -> None:
    one = begun()
    one.update(gpu(104, 4, 3.5, {11: 1, 12: 0.5, 21: 2}), OWNERS, BOTH, {}, {})
    assert (one.part(1), one.part(2), one.part(3)) == (0.375, 0.5, 0.0)
    assert (one.busy_ns(1), one.busy_ns(2)) == (1_500_000_000, 2_000_000_000)


def test_what_was_computed_before_the_agent_counts_for_none() -> None:
    one = ComputedTime()
    one.update(gpu(100, 50, 50, {11: 50}), OWNERS, BOTH, {}, {})
    assert one.part(1) is None
    one.update(gpu(104, 54, 52, {11: 52}), OWNERS, BOTH, {}, {})
    assert one.part(1) == 0.5


def test_busy_time_without_a_process_goes_where_the_rest_goes() -> None:
    one = begun()
    one.update(gpu(102, 2, 1, {}), OWNERS, BOTH, {}, {})
    assert one.part(1) == 0.0
    one.update(gpu(104, 4, 2, {11: 0.25}), OWNERS, BOTH, {}, {})
    assert one.part(1) == 0.5
    one.update(gpu(106, 6, 3, {11: 0.25}), OWNERS, BOTH, {}, {})
    one.update(gpu(108, 8, 5, {11: 0.5, 99: 0.75}), OWNERS, BOTH, {}, {})
    assert one.part(1) == 0.25, "two fifths of 5 busy seconds: as samples named it"
    assert one.busy_ns(1) == 3 * SECOND, "what was counted stays"


@pytest.mark.parametrize("in_step", [True, False])
def test_one_that_computes_alone_has_all_whatever_samples_name(in_step: bool) -> None:
    """A cap of 30 % on an H100: each sample came when the tenant was off, and it was shown with 0 %."""
    one = begun()
    for second in range(1, 11):
        one.update(
            gpu(100 + second, second, 0.3 * second, {}), OWNERS, (1,), {1: 700_000_000 * second}, {}, in_step=in_step
        )
    assert one.part(1) == pytest.approx(0.3)
    one.update(gpu(112, 12, 4, {21: 0.5}), OWNERS, (1,), {}, {})
    assert (one.part(1), one.part(2)) == pytest.approx((0.24, 0.1)), "another one, which has ended since, had the rest"


def test_in_step_with_phases_of_several_nothing_is_measured() -> None:
    """What samples name is no part of the time."""
    one = begun()
    one.update(gpu(104, 4, 4, {11: 4}), OWNERS, BOTH, {}, {})
    assert one.part(1) == 1.0
    for second in (5, 6, 7, 8):
        one.update(gpu(100 + second, second, second, {11: second}), OWNERS, BOTH, {}, {}, in_step=True)
        assert (one.part(1), one.part(2), one.busy_ns(1)) == (None, None, 4 * SECOND)
    one.update(gpu(109, 9, 9, {11: 9}), OWNERS, (1, 0), {}, {}, in_step=True)
    assert one.part(1) is None, "a process of no tenant may compute"
    one.update(gpu(112, 12, 12, {11: 12}), OWNERS, (1,), {}, {}, in_step=True)
    assert (one.part(1), one.busy_ns(1)) == (1.0, 7 * SECOND)


def test_a_process_that_has_ended_is_still_its_tenants() -> None:
    one = begun()
    one.update(gpu(101, 1, 1, {11: 1}), OWNERS, BOTH, {}, {})
    one.update(gpu(103, 3, 3, {11: 3}), {}, BOTH, {}, {})
    assert one.part(1) == 1.0
    one.update(gpu(104, 4, 4, {21: 1}), OWNERS, BOTH, {}, {})
    one.update(gpu(105, 5, 5, {11: 1, 21: 1}), {11: 2, 21: 2}, BOTH, {}, {})
    assert (one.busy_ns(1), one.busy_ns(2)) == (3 * SECOND, 2 * SECOND), "its number is another one's now"


def test_the_ratio_is_of_the_last_ten_seconds() -> None:
    one = begun()
    for second in range(1, 31):
        one.update(gpu(100 + second, second, min(second, 15), {11: min(second, 15)}), OWNERS, BOTH, {}, {})
    assert one.part(1) == 0.0
    assert one.busy_ns(1) == 15 * SECOND


def test_too_few_samples_and_none_for_long_are_no_measurement() -> None:
    one = begun()
    one.update(gpu(101, 1, 1, {11: 1}), OWNERS, BOTH, {}, {})
    assert one.part(1) is None, "a second is too short"
    one.update(gpu(103, 3, 3, {11: 3}), OWNERS, BOTH, {}, {})
    assert one.part(1) == 1.0
    one.update(gpu(109, 3, 3, {11: 3}), OWNERS, BOTH, {}, {})
    assert one.part(1) is None, "the driver takes no samples any more"
    assert one.busy_ns(1) == 3 * SECOND


def test_another_prober_begins_at_nothing() -> None:
    one = begun()
    one.update(gpu(104, 4, 4, {11: 4}), OWNERS, BOTH, {}, {})
    one.update(gpu(106, 0.5, 0.5, {11: 0.5}), OWNERS, BOTH, {}, {})
    assert one.part(1) is None
    one.update(gpu(109, 3.5, 2, {11: 2}), OWNERS, BOTH, {}, {})
    assert one.part(1) == 0.5
    assert one.busy_ns(1) == 5_500_000_000


def test_without_answers_there_is_no_ratio_and_the_next_one_counts_what_was_meanwhile() -> None:
    one = begun()
    one.update(gpu(104, 4, 4, {11: 4}), OWNERS, BOTH, {}, {})
    one.lost()
    assert (one.part(1), one.busy_ns(1)) == (None, 4 * SECOND)
    one.update(gpu(106, 6, 5, {11: 5}), OWNERS, BOTH, {}, {})
    assert one.busy_ns(1) == 5 * SECOND
    one.update(gpu(114, 14, 12, {11: 12}), OWNERS, BOTH, {}, {})
    assert (one.part(1), one.busy_ns(1)) == (0.8, 12 * SECOND)


def test_a_tenant_that_is_over_is_forgotten() -> None:
    one = begun()
    one.update(gpu(104, 4, 4, {11: 4}), OWNERS, BOTH, {}, {})
    one.gone(1)
    assert one.busy_ns(1) == 0
    one.update(gpu(105, 5, 5, {11: 5}), {}, BOTH, {}, {})
    assert one.busy_ns(1) == 0, "nor what its last process computes while it is ended"


def test_no_tenant_has_more_than_its_channels_were_on() -> None:
    """What samples gave it beyond that is of those that they named too, and that can have it."""
    one = begun()
    for second in range(1, 11):
        off = {1: 700_000_000 * second, 2: 200_000_000 * second}
        one.update(gpu(100 + second, second, second, {11: 0.5 * second, 21: 0.5 * second}), OWNERS, (1, 2, 3), off, {})
    assert [one.part(tenant) for tenant in (1, 2, 3)] == pytest.approx([0.3, 0.7, 0])
    assert (one.busy_ns(1), one.busy_ns(2)) == pytest.approx((3 * SECOND, 7 * SECOND))


def test_nor_more_than_the_cap_that_was_in_force_all_the_time() -> None:
    one = begun()
    for second in range(1, 15):
        caps = {1: 0.4 if second < 3 else 0.25, 2: 0.75}
        usage = gpu(100 + second, second, second, {11: 0.5 * second, 21: 0.5 * second})
        one.update(usage, OWNERS, BOTH, {}, caps)
        if second == 12:
            assert one.part(1) == pytest.approx(0.4), "it had that much at first"
    assert (one.part(1), one.part(2)) == pytest.approx((0.25, 0.75))


def test_busy_time_beyond_what_all_were_on_is_theirs_all_the_same() -> None:
    """The GPU is busy while it switches."""
    one = begun()
    one.update(gpu(104, 4, 4, {11: 1, 21: 1}), OWNERS, BOTH, {1: 3 * SECOND, 2: 2 * SECOND}, {})
    assert (one.part(1), one.part(2)) == pytest.approx((1 / 3, 2 / 3))
    assert one.busy_ns(1) + one.busy_ns(2) == pytest.approx(4 * SECOND)


def test_what_a_tenant_had_that_is_over_is_not_the_others() -> None:
    one = begun()
    one.update(gpu(104, 4, 4, {11: 2, 21: 2}), OWNERS, BOTH, {}, {})
    one.gone(1)
    one.update(gpu(106, 6, 5, {11: 2, 21: 3}), OWNERS, (2, 0), {}, {})
    assert (one.part(1), one.part(2)) == (0.0, pytest.approx(0.5))


def traced(seconds: int, rates: dict[int, tuple[float, float]], busy: float = 1.0, **more: float) -> ComputedTime:
    """So many seconds with work of several. rates: pid -> what samples name it for, and its time on the engine."""
    one = ComputedTime()
    for second in range(seconds + 1):
        named, on = ({pid: rate[place] * second for pid, rate in rates.items()} for place in (0, 1))
        unknown = more.get("untraced", 0.0) * second
        one.update(gpu(100 + second, second, busy * second, named, on, unknown), OWNERS, BOTH, {}, {})
    return one


def test_of_a_busy_gpu_each_has_what_the_trace_says() -> None:
    """Fifty samples are some points off; switches, a twentieth of the time, are busy and no tenant's."""
    one = traced(10, {11: (0.62, 0.475), 21: (0.38, 0.475)})
    assert (one.part(1), one.part(2)) == pytest.approx((0.5, 0.5))
    assert (one.busy_ns(1), one.busy_ns(2)) == pytest.approx((5 * SECOND, 5 * SECOND))
    one = traced(10, {11: (0.2, 0.1), 12: (0.4, 0.4), 21: (0.4, 0.45)})
    assert (one.part(1), one.part(2)) == pytest.approx((10 / 19, 9 / 19)), "of all of a tenant's processes"
    one = traced(10, {11: (1.0, 0.9), 21: (0.0, 0.05)})
    assert (one.part(1), one.part(2)) == pytest.approx((18 / 19, 1 / 19)), "one that no sample found too"


def test_a_context_that_stays_on_the_engine_has_not_computed() -> None:
    one = begun()
    for second in range(1, 11):
        usage = gpu(100 + second, second, 0.3 * second, {11: 0.3 * second}, {11: second})
        one.update(usage, OWNERS, (1,), {}, {})
    assert one.part(1) == pytest.approx(0.3), "alone it has what the GPU was busy"
    one = traced(10, {11: (0.2, 0.1), 21: (0.2, 0.9)}, busy=0.4)
    assert (one.part(1), one.part(2)) == pytest.approx((0.1, 0.3)), (
        "beside others, what samples say and the trace allows"
    )
    one = traced(10, {11: (0.05, 0.5), 21: (0.25, 0.5)}, busy=0.3)
    assert (one.part(1), one.part(2)) == pytest.approx((0.05, 0.25))


def test_time_of_which_the_trace_knows_nothing_may_be_anybodys() -> None:
    one = traced(10, {11: (0.6, 0.4), 21: (0.4, 0.5)}, untraced=0.1)
    assert (one.part(1), one.part(2)) == pytest.approx((0.5, 0.5))
    one = traced(10, {11: (0.6, 0.1), 21: (0.4, 0.1)}, untraced=0.8)
    assert (one.part(1), one.part(2)) == pytest.approx((0.6, 0.4))
    one = begun()
    for second in range(1, 11):
        usage = gpu(100 + second, second, second, {11: 0.2 * second, 21: 0.8 * second})
        if second > 3:  # the trace has begun then
            usage = usage.replace(traced_ns=(second - 3) * SECOND, traced={21: (second - 3) * SECOND})
        one.update(usage, OWNERS, BOTH, {}, {})
    assert (one.part(1), one.part(2)) == pytest.approx((0.2, 0.8))


def test_a_trace_that_samples_contradict_is_none() -> None:
    """A driver that does not trace any more: as if the one that was on last were on still."""
    one = traced(10, {11: (0.5, 1.0), 21: (0.5, 0.0)})
    assert (one.part(1), one.part(2)) == pytest.approx((0.5, 0.5))
    one = traced(10, {11: (0.05, 0.0), 21: (0.1, 0.0), 99: (0.0, 1.0)}, busy=0.15)
    assert (one.part(1), one.part(2)) == pytest.approx((0.05, 0.1)), "nor one with numbers of another pid namespace"


def test_one_that_pauses_while_samples_are_taken_has_what_the_trace_says() -> None:
    """A neighbour had all of its time: so large a difference was taken for a trace of other processes."""
    one = traced(10, {11: (1.0, 0.5), 21: (0.0, 0.45)})
    assert (one.part(1), one.part(2)) == pytest.approx((10 / 19, 9 / 19))
    one = traced(10, {11: (1.0, 0.1), 21: (0.0, 0.85)})
    assert (one.part(1), one.part(2)) == pytest.approx((2 / 19, 17 / 19))


def test_in_step_with_phases_the_trace_measures() -> None:
    one = ComputedTime()
    for second in range(11):
        usage = gpu(100 + second, second, 0.9 * second, {11: second}, {11: 0.6 * second, 21: 0.3 * second})
        one.update(usage, OWNERS, BOTH, {}, {}, in_step=True)
    assert (one.part(1), one.part(2)) == pytest.approx((0.6, 0.3))
    one.update(gpu(112, 12, 11, {11: 12}), OWNERS, BOTH, {}, {}, in_step=True)
    assert one.part(1) is None, "without it nothing does"


def test_what_a_tenant_that_is_over_had_on_the_engine_is_not_the_others() -> None:
    one = traced(5, {11: (0.5, 0.5), 21: (0.5, 0.5)})
    one.gone(1)
    for second in range(6, 11):
        usage = gpu(100 + second, second, second, {11: 2.5, 21: second - 2.5}, {11: 2.5, 21: second - 2.5})
        one.update(usage, OWNERS, (2, 0), {}, {})
    assert (one.part(1), one.part(2)) == (0.0, pytest.approx(0.75))
    one = traced(20, {11: (0.5, 0.5), 21: (0.5, 0.5)})
    one.gone(1)
    for second in range(1, 6):
        named, on = {11: 10, 21: 10 + 0.4 * second, 99: 0.6 * second}, {11: 10, 21: 10 + 0.6 * second, 99: 0.4 * second}
        one.update(gpu(120 + second, 20 + second, 20 + second, named, on), OWNERS, (2, 0), {}, {})
    assert one.part(2) == pytest.approx(0.55), "by the trace: half of five seconds, and 0.6 of five"


def test_samples_are_in_step_with_some_periods_only() -> None:
    period = PERIOD_US
    while period <= MOST_PERIOD_US:
        assert not is_in_step(period), period
        period *= 2
    assert not is_in_step(MOST_PERIOD_US)
    assert all(map(is_in_step, (10_000, 15_000, 40_000, 50_000, 50_010, 100_000, 150_000, 200_000, 800_000, 1_000_000)))
