"""Computed time beside caps: the driver's samples of a simulated GPU whose phases the guard's own code keeps.

What the samples say of ten seconds is compared with what each tenant was on the GPU.
"""

from __future__ import annotations

import pytest

from nvc.agent.computed import SAMPLE_US, ComputedTime
from nvc.guard.scheduling import PERIOD_US, SWITCH_US, Tenant
from nvc.guard.usage import GpuUsage
from tests.nvc.guard.test_histories import Bed, a_bed, started

#: Points; beside a tenant without a cap, which phases leave it to samples to tell apart from those that are on.
POINTS, POINTS_BESIDE = 3.0, 10.0
#: Where a sample falls together with the end of a phase in most periods: once or twice in all offsets, and by how much.
RARE, RARE_TIMES = 2, 1.5
#: Seconds between two answers of the prober.
ANSWER_S = 0.5
OFFSETS = 47
#: A ring of the driver's samples is of 14 seconds.
SECONDS = 10.5


class Prober:
    """As native/supervisor/prober_time.c adds up samples."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._last = self.sampled = self.busy = 0
        self.computed: dict[int, int] = {}
        self.named: set[int] = set()

    def answer(self, now: float) -> GpuUsage:
        for stamp, part, tenant in (map(int, word.split(":")) for word in self._bed.ask("samples").split()):
            if stamp <= self._last:
                continue
            if self._last:
                busy = (stamp - self._last) * part // 10000
                self.sampled, self.busy = self.sampled + stamp - self._last, self.busy + busy
                if tenant >= 0:
                    self.computed[tenant] = self.computed.get(tenant, 0) + busy
                    self.named.add(tenant)
            self._last = stamp
        return GpuUsage("", int(now * 1e9), 0, 0, 0, {}, self.sampled, self.busy, dict(self.computed))


def off(bed: Bed) -> dict[int, int]:
    """For how many nanoseconds the channels of each were off."""
    return {int(name): int(ns) for name, ns in (word.split(":") for word in bed.ask("off").split())}


def measured(bed: Bed, offset: int) -> tuple[dict[int, tuple[float, float]], set[int]]:
    """Tenant -> points by the samples, and points that it had; and which were ever on the GPU at a sample.

    offset: microseconds that pass before.
    """
    bed.run(offset / 1000)
    prober, computed = Prober(bed), ComputedTime()
    switch = SWITCH_US / bed.schedule.period
    limits = {int(name): one.cap / 1000 - switch for name, one in bed.tenants.items() if one.cap < 1000}
    names = {int(name): int(name) for name in bed.tenants}
    total = dict.fromkeys(bed.tenants, 0.0)
    for step in range(int(SECONDS / ANSWER_S) + 1):
        computed.update(prober.answer(100 + step * ANSWER_S), names, tuple(names), off(bed), limits)
        for name, time in bed.window(ANSWER_S * 1000).items():
            total[name] += time
    wall = 10 * (SECONDS + ANSWER_S)
    return {one: (100 * (computed.part(one) or 0), total[str(one)] / wall) for one in names}, prober.named


def caps(*parts: int) -> tuple[Tenant, ...]:
    return tuple(Tenant(str(number), cap=part, groups=1) for number, part in enumerate(parts, 1))


@pytest.mark.parametrize(
    "tenants",
    [
        caps(700, 300),
        caps(300, 300),
        caps(500, 300, 200),
        caps(600, 100, 100),
        caps(250, 250, 250, 250),
        caps(400, 200, 100, 100, 50),
        caps(*[125] * 8),
        caps(*[50] * 8),
        (*caps(300), Tenant("2", groups=1)),
        (*caps(600, 200), Tenant("3", groups=1)),
    ],
    ids=lambda tenants: ",".join(str(one.cap) for one in tenants),
)
def test_samples_say_what_each_of_several_tenants_with_caps_had(tenants: tuple[Tenant, ...]) -> None:
    """Over ten seconds, wherever in the period the first sample comes."""
    most = POINTS_BESIDE if any(one.cap == 1000 for one in tenants) else POINTS
    wrong: dict[tuple[int, int], tuple[float, float]] = {}
    with a_bed(spread=60, late=200) as bed:
        started(bed, *tenants)
        for number in range(OFFSETS):
            found, named = measured(bed, number * bed.schedule.period // OFFSETS + SAMPLE_US)
            assert named == {int(one.name) for one in tenants}, "each was found"
            wrong.update({(number, one): both for one, both in found.items() if abs(both[0] - both[1]) > most})
    assert len(wrong) <= RARE, wrong
    assert all(abs(said - had) < RARE_TIMES * most for said, had in wrong.values()), wrong


def test_caps_of_several_are_kept_within_six_tenths_of_a_point_and_never_exceeded() -> None:
    """A stop and a start at the end of a phase wait for each other in the driver: an H100 had 0.7 less too."""
    with a_bed(spread=60, late=200) as bed:
        started(bed, *caps(500, 300, 200))
        assert bed.schedule.period == PERIOD_US
        had = bed.window(20_000)
    got = [time / 200 + 100 * SWITCH_US / PERIOD_US for time in had.values()]
    assert got == pytest.approx([49.7, 29.7, 19.7], abs=0.3), "with one switch a period"
