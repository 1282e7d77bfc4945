"""Services in the agent's scheduler: what is written for them and the others, what is refused, and hints."""

from __future__ import annotations

import random
import time

import pytest

from nvc.agent.computed import ComputedTime
from nvc.agent.scheduler import Scheduler
from nvc.base.errors import ContainerError
from nvc.guard.service import (
    AWAY_US,
    DONE,
    IDLE,
    IDLE_NS,
    LEAST_US,
    OVER,
    SERVED,
    SERVICE_US,
    SHORT_US,
    SOON,
    SWITCH_US,
    ServiceUse,
)
from nvc.guard.usage import GpuUsage
from tests.support.scheduled import ONE, Clock, Notes, gpu, limits, update

#: All that its latency allows: the others' slices while nothing tells what the service computes.
ALLOWED = 1000 - AWAY_US - SWITCH_US


#: Seconds between two answers of the prober.
STEP_S = 0.5


class Played:
    """A service (1) beside a neighbour that computes without end (2), by samples of 200 ms and an exact trace."""

    def __init__(self, weight: float) -> None:
        self._weight, self._chance, self._known, self.use = weight, random.Random(1), ComputedTime(), ServiceUse(0)
        self._sampled, self._named, self._traced = 0, {1: 0, 2: 0}, {1: 0, 2: 0}
        self._steps = self._left = self.now = self.over = 0
        self.computed = 0.0

    def step(self, load: float) -> None:
        """load: of requests of 4.2 ms that come by chance, 1.0: without end."""
        half = self._weight / 2
        is_over = self.use.use(self.now) == OVER
        most = STEP_S * (half / (half + 1 - self._weight) if is_over else 0.98)
        wanted = self._left * 1e-9 + sum(self._chance.random() < load for _ in range(119)) * 0.0042
        mine = most if load == 1.0 else min(wanted, most)
        self._left = 0 if load == 1.0 else round((wanted - mine) * 1e9)
        self._steps += 1
        for _ in range(2 + self._steps % 2):
            self._sampled += 200_000_000
            self._named[1 if self._chance.random() < mine / STEP_S else 2] += 200_000_000
        self._traced = {1: self._traced[1] + round(mine * 1e9), 2: self._traced[2] + round((STEP_S - mine) * 1e9)}
        self.now += round(STEP_S * 1e9)
        counted = self._sampled, self._sampled, dict(self._named), self.now, 0, dict(self._traced)
        self._known.update(GpuUsage("", self.now, 0, 0, 0, {}, *counted), {1: 1, 2: 2}, {1, 2}, {}, {})
        self.use.sampled(self.now, self._known.busy_ns(1) if self._known.has_samples else None, self._weight)
        self.over += self.use.use(self.now) == OVER
        self.computed += mine


def with_service(notes: Notes, *weights: int, latency: int = 1000) -> Scheduler:
    """A service, number 1, and tenants of these weights with a group each."""
    scheduler = Scheduler(notes, clock=Clock())
    for number, one in enumerate([gpu(latency=latency), *(gpu(weight=weight) for weight in weights)], 1):
        notes.groups[number, 0] = 1
        scheduler.tenant(number, limits(one))
    update(scheduler)
    return scheduler


def measured(scheduler: Scheduler, *, computes: bool = True) -> None:
    """Samples of some seconds in which the service computed a tenth of the time, or nothing."""
    now = time.monotonic_ns()
    for back in range(4, -1, -1):
        at = now - back * 500_000_000
        scheduler.sampled(ONE, at, {1: (at - now) // 10 + 10**9 if computes else 0})
    update(scheduler)


def test_the_others_slices_are_short_and_its_own_long_once_it_is_measured() -> None:
    notes = Notes()
    scheduler = with_service(notes, 10)
    assert notes.slices == {(1, 0): ALLOWED, (2, 0): ALLOWED}, "by weight: nothing says how much it computes"
    measured(scheduler)
    assert notes.slices == {(1, 0): SERVICE_US, (2, 0): LEAST_US}
    share = scheduler.share(1, 0)
    assert (share.bound_us, share.service, share.target) == (LEAST_US + SWITCH_US + AWAY_US, SERVED, 0.5)
    assert (scheduler.share(2, 0).bound_us, scheduler.share(2, 0).service) == (0, "")
    scheduler.sampled(ONE, time.monotonic_ns(), None)  # the driver has no samples any more
    update(scheduler)
    assert notes.slices == {(1, 0): ALLOWED, (2, 0): ALLOWED}


def test_hints_make_slices_short_and_long() -> None:
    notes = Notes()
    scheduler = with_service(notes, 10, 10, latency=2000)
    measured(scheduler)
    short = dict(notes.slices)
    assert short[2, 0] == short[3, 0] == SHORT_US
    scheduler.hint(1, DONE)
    update(scheduler)
    assert notes.slices[2, 0] == notes.slices[3, 0] == 5000
    assert (scheduler.share(1, 0).service, scheduler.share(1, 0).bound_us) == (IDLE, 2 * (5000 + SWITCH_US) + AWAY_US)
    scheduler.hint(1, SOON)
    update(scheduler)
    assert notes.slices == short
    scheduler.hint(7, SOON)  # of no tenant


def test_a_service_without_work_for_a_while_rests_beside_several(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, now = Notes(), time.monotonic_ns()
    scheduler = with_service(notes, 10, 10, latency=2000)

    def sampled(after: int, computed: int) -> str:
        monkeypatch.setattr(time, "monotonic_ns", lambda: now + after)
        scheduler.sampled(ONE, now + after, {1: computed})
        update(scheduler)
        return scheduler.share(1, 0).service

    assert sampled(0, 0) == SERVED
    assert sampled(IDLE_NS + 10**8, 0) == IDLE
    assert notes.slices[2, 0] == 5000
    assert sampled(IDLE_NS + 2 * 10**8, 10**8) == SERVED
    assert notes.slices[2, 0] == SHORT_US


def test_one_more_tenant_than_the_latency_allows_is_refused() -> None:
    scheduler = with_service(Notes(), 10, 10, 10)
    with pytest.raises(ContainerError) as caught:
        scheduler.check(limits(gpu()))
    assert f"would wait {(4 * (LEAST_US + SWITCH_US) + AWAY_US) / 1000:g} ms" in str(caught.value)
    scheduler.check(limits(gpu(priority="high")), number=2)  # one that is there changes


def test_a_share_that_a_service_cannot_have_is_refused() -> None:
    scheduler = with_service(Notes(), 10, 10, 10)
    with pytest.raises(ContainerError, match="cannot be kept"):
        scheduler.check(limits(gpu(latency=800)), number=1)
    with pytest.raises(ContainerError, match="cannot be kept"):
        scheduler.check(limits(gpu(weight=1000)), number=2)
    scheduler.check(limits(gpu(latency=1500)), number=1)


@pytest.mark.parametrize("policy", ["fair", "native"])
def test_policies_that_serve_none_first_are_refused_beside_a_service(policy: str) -> None:
    scheduler = with_service(Notes(), 10)
    with pytest.raises(ContainerError, match="is a service"):
        scheduler.check_policy(policy)
    other = Scheduler(Notes(), policy=policy)
    with pytest.raises(ContainerError, match="is a service"):
        other.check(limits(gpu(latency=1000)))
    scheduler.check_policy("soft")


@pytest.mark.parametrize(
    ("load", "weight", "most_over", "part"),
    [(0.3, 0.5, 0.0, 0.3), (0.45, 0.5, 0.0, 0.45), (1.0, 0.5, 0.9, 0.5), (1.0, 0.2, 0.95, 0.2)],
)
def test_by_the_trace_a_service_within_its_part_is_always_served_first(
    load: float, weight: float, most_over: float, part: float
) -> None:
    """By samples alone one of 0.3 gave time back every 80 s or so, for 2 s, and its requests waited for 0.6 s."""
    played = Played(weight)
    for _ in range(4000):
        played.step(load)
    assert played.over <= most_over * 4000
    assert played.computed == pytest.approx(4000 * STEP_S * part, rel=0.02)
    for _ in range(24):
        played.step(0.0)
    assert played.use.use(played.now) == IDLE, "within two seconds more than samples would take"
