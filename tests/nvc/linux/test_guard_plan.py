"""Plans of the guard's own library, without a driver."""

from __future__ import annotations

import pytest

from nvc.bindings.guard import Guard
from nvc.guard.scheduling import Tenant, decide
from nvc.share import limits
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from tests.support.native import build

UUID = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize("count", [65, 129, 300])
def test_a_plan_has_room_for_every_tenant(count: int) -> None:
    build("libnvc-guard.so")
    schedule = decide(tuple(Tenant(str(number), cap=100, groups=1) for number in range(count)))
    with Guard("/nowhere") as guard:
        # Two of them are there, and are off for nine tenths of the time.
        encoded = limits.encode(Limits((ResolvedGpu(UUID, 0, cap=100),), (), "580.159.04"))
        for number in (0, count - 1):
            guard.add(number, encoded, 1)
        phases = [(int(phase.name), 0, phase.since, phase.until) for phase in schedule.phases]
        guard.plan(limits.uuid_bytes(UUID), schedule.period, phases, 10_000)
        assert guard.renew(10_000)
        guard.plan(limits.uuid_bytes(UUID), 0, [], 1000)


def test_a_plan_that_cannot_be_leaves_the_one_before() -> None:
    build("libnvc-guard.so")
    with Guard("/nowhere") as guard:
        guard.add(1, limits.encode(Limits((ResolvedGpu(UUID, 0, cap=10),), (), "580.159.04")), 1)
        guard.plan(limits.uuid_bytes(UUID), 50_000, [(1, 0, 0, 500)], 10_000)
        with pytest.raises(OSError, match="guard_phases_set"):
            guard.plan(limits.uuid_bytes(UUID), 50_000, [(1, 0, 0, 500), (1, 0, 0, 500)], 10_000)
        assert guard.renew(10_000)
