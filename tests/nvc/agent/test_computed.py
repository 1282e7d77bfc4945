"""Computed time: how the busy time of a GPU is divided among tenants, by which process samples found."""

from __future__ import annotations

from nvc.agent.computed import ComputedTime
from nvc.guard.usage import GpuUsage

SECOND = 10**9
OWNERS = {11: 1, 12: 1, 21: 2}


def gpu(asked: float, sampled: float, busy: float, computed: dict[int, float]) -> GpuUsage:
    """Seconds."""
    times = {pid: int(part * SECOND) for pid, part in computed.items()}
    return GpuUsage("GPU-1", int(asked * SECOND), 0, 0, 0, {}, int(sampled * SECOND), int(busy * SECOND), times)


def begun() -> ComputedTime:
    made = ComputedTime()
    made.update(gpu(100, 0, 0, {}), OWNERS)
    return made


def test_each_tenant_has_the_sum_of_its_processes() -> None:
    one = begun()
    one.update(gpu(104, 4, 3.5, {11: 1, 12: 0.5, 21: 2}), OWNERS)
    assert (one.part(1), one.part(2), one.part(3)) == (0.375, 0.5, 0.0)
    assert (one.busy_ns(1), one.busy_ns(2)) == (1_500_000_000, 2_000_000_000)


def test_what_was_computed_before_the_agent_counts_for_none() -> None:
    one = ComputedTime()
    one.update(gpu(100, 50, 50, {11: 50}), OWNERS)
    assert one.part(1) is None
    one.update(gpu(104, 54, 52, {11: 52}), OWNERS)
    assert one.part(1) == 0.5


def test_busy_time_without_a_process_goes_where_the_rest_goes() -> None:
    """A capped tenant is off when every second sample is taken; the GPU was busy for half of each all the same."""
    one = begun()
    one.update(gpu(102, 2, 1, {}), OWNERS)
    assert one.part(1) == 0.0
    one.update(gpu(104, 4, 2, {11: 0.25}), OWNERS)
    assert one.part(1) == 0.5
    one.update(gpu(106, 6, 3, {11: 0.25}), OWNERS)
    one.update(gpu(108, 8, 5, {11: 0.5, 99: 0.75}), OWNERS)
    assert one.busy_ns(1) == 2_750_000_000, "a quarter of the 3 seconds since; the rest is of a process of no tenant"


def test_a_process_that_has_ended_is_still_its_tenants() -> None:
    one = begun()
    one.update(gpu(101, 1, 1, {11: 1}), OWNERS)
    one.update(gpu(103, 3, 3, {11: 3}), {})
    assert one.part(1) == 1.0
    one.update(gpu(104, 4, 4, {21: 1}), OWNERS)
    one.update(gpu(105, 5, 5, {11: 1, 21: 1}), {11: 2, 21: 2})
    assert (one.busy_ns(1), one.busy_ns(2)) == (3 * SECOND, 2 * SECOND), "its number is another one's now"


def test_the_ratio_is_of_the_last_ten_seconds() -> None:
    one = begun()
    for second in range(1, 31):
        one.update(gpu(100 + second, second, min(second, 15), {11: min(second, 15)}), OWNERS)
    assert one.part(1) == 0.0
    assert one.busy_ns(1) == 15 * SECOND


def test_too_few_samples_and_none_for_long_are_no_measurement() -> None:
    one = begun()
    one.update(gpu(101, 1, 1, {11: 1}), OWNERS)
    assert one.part(1) is None, "a second is too short"
    one.update(gpu(103, 3, 3, {11: 3}), OWNERS)
    assert one.part(1) == 1.0
    one.update(gpu(109, 3, 3, {11: 3}), OWNERS)
    assert one.part(1) is None, "the driver takes no samples any more"
    assert one.busy_ns(1) == 3 * SECOND


def test_another_prober_begins_at_nothing() -> None:
    one = begun()
    one.update(gpu(104, 4, 4, {11: 4}), OWNERS)
    one.update(gpu(106, 0.5, 0.5, {11: 0.5}), OWNERS)
    assert one.part(1) is None
    one.update(gpu(109, 3.5, 2, {11: 2}), OWNERS)
    assert one.part(1) == 0.5
    assert one.busy_ns(1) == 5_500_000_000


def test_without_answers_there_is_no_ratio_and_what_was_counted_stays() -> None:
    one = begun()
    one.update(gpu(104, 4, 4, {11: 4}), OWNERS)
    one.lost()
    assert (one.part(1), one.busy_ns(1)) == (None, 4 * SECOND)
    one.update(gpu(130, 30, 30, {11: 30}), OWNERS)
    assert (one.part(1), one.busy_ns(1)) == (None, 4 * SECOND), "what happened meanwhile counts for none"
    one.update(gpu(134, 34, 33, {11: 33}), OWNERS)
    assert (one.part(1), one.busy_ns(1)) == (0.75, 7 * SECOND)


def test_a_tenant_that_is_over_is_forgotten() -> None:
    one = begun()
    one.update(gpu(104, 4, 4, {11: 4}), OWNERS)
    one.gone(1)
    assert one.busy_ns(1) == 0
