"""Services in the agent's scheduler: what is written for them and the others, what is refused, and hints."""

from __future__ import annotations

import time

import pytest

from nvc.agent.scheduler import Scheduler
from nvc.base.errors import ContainerError
from nvc.guard.service import DONE, IDLE, IDLE_NS, LEAST_US, SERVED, SERVICE_US, SHORT_US, SOON, SWITCH_US
from tests.support.scheduled import ONE, Clock, Notes, gpu, limits

#: All that its latency allows: the others' slices while nothing tells what the service computes.
ALLOWED = 1000 - SWITCH_US


def with_service(notes: Notes, *weights: int, latency: int = 1000) -> Scheduler:
    """A service, number 1, and tenants of these weights with a group each."""
    scheduler = Scheduler(notes, clock=Clock())
    for number, one in enumerate([gpu(latency=latency), *(gpu(weight=weight) for weight in weights)], 1):
        notes.groups[number, 0] = 1
        scheduler.tenant(number, limits(one))
    scheduler.update()
    return scheduler


def measured(scheduler: Scheduler, *, computes: bool = True) -> None:
    """Samples of some seconds in which the service computed a tenth of the time, or nothing."""
    now = time.monotonic_ns()
    for back in range(4, -1, -1):
        at = now - back * 500_000_000
        scheduler.sampled(ONE, at, {1: (at - now) // 10 + 10**9 if computes else 0})
    scheduler.update()


def test_the_others_slices_are_short_and_its_own_long_once_it_is_measured() -> None:
    notes = Notes()
    scheduler = with_service(notes, 10)
    assert notes.slices == {(1, 0): ALLOWED, (2, 0): ALLOWED}, "by weight: nothing says how much it computes"
    measured(scheduler)
    assert notes.slices == {(1, 0): SERVICE_US, (2, 0): SHORT_US}
    share = scheduler.share(1, 0)
    assert (share.bound_us, share.service, share.target) == (SHORT_US + SWITCH_US, SERVED, 0.5)
    assert (scheduler.share(2, 0).bound_us, scheduler.share(2, 0).service) == (0, "")
    scheduler.sampled(ONE, time.monotonic_ns(), None)  # the driver has no samples any more
    scheduler.update()
    assert notes.slices == {(1, 0): ALLOWED, (2, 0): ALLOWED}


def test_hints_make_slices_short_and_long() -> None:
    notes = Notes()
    scheduler = with_service(notes, 10, 10, latency=2000)
    measured(scheduler)
    short = dict(notes.slices)
    assert short[2, 0] == short[3, 0] == SHORT_US
    scheduler.hint(1, DONE)
    scheduler.update()
    assert notes.slices[2, 0] == notes.slices[3, 0] == 5000
    assert (scheduler.share(1, 0).service, scheduler.share(1, 0).bound_us) == (IDLE, 2 * (5000 + SWITCH_US))
    scheduler.hint(1, SOON)
    scheduler.update()
    assert notes.slices == short
    scheduler.hint(7, SOON)  # of nobody


def test_a_service_without_work_for_a_while_rests_beside_several(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, now = Notes(), time.monotonic_ns()
    scheduler = with_service(notes, 10, 10, latency=2000)

    def sampled(after: int, computed: int) -> str:
        monkeypatch.setattr(time, "monotonic_ns", lambda: now + after)
        scheduler.sampled(ONE, now + after, {1: computed})
        scheduler.update()
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
    assert f"would wait {4 * (LEAST_US + SWITCH_US) / 1000:g} ms" in str(caught.value)
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
