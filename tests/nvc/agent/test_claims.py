"""What a tenant counts as holding of a GPU, where its supervisor is the tenant's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent import ranges
from nvc.agent.claims import Claims
from nvc.agent.dividing import shortage, victims
from nvc.agent.ranges import Ranges
from nvc.agent.state.records import TenantRecord
from nvc.agent.tenant import Tenant
from nvc.guard.usage import GpuUsage
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu

GIB = 1 << 30
UUID = "GPU-11111111-2222-3333-4444-555555555555"


class Node:
    """A GPU of 80 GiB, with tenants: number -> what its supervisor says, and what the driver reports, in GiB."""

    def __init__(self) -> None:
        self.tenants: list[Tenant] = []
        self.says: dict[int, int] = {}
        self.has: dict[int, int] = {}
        self.asked = 10**9
        self.supervisors = SimpleNamespace(usage=self._usage, status=self._status)
        idleness: Any = SimpleNamespace(is_idle=lambda tenant: False)
        agent: Any = self
        self.claims = Claims(agent, idleness)

    def tenant(self, number: int, request: int, limit: int, most: int, priority: str = "normal") -> Tenant:
        sizes = (limit * GIB, 1000, 0, priority, False, 0, request * GIB, most * GIB)
        limits = Limits((ResolvedGpu(UUID, 0, *sizes),), (), "1", str(number))
        made = Tenant(TenantRecord(number, str(number), str(number), 0, 0, 0.0), limits)
        self.tenants.append(made)
        self.says[number] = self.has[number] = 0
        return made

    def reported(self, tenant: Tenant, uuid: str) -> int:
        return self.has[tenant.number] * GIB

    def _usage(self) -> Any:
        self.asked += 1
        used = sum(self.has.values()) * GIB
        return SimpleNamespace(gpus={UUID: GpuUsage(UUID, self.asked, used, 80 * GIB, 0, {})})

    def _status(self, number: int) -> Any:
        return SimpleNamespace(gpus=(SimpleNamespace(memory=self.says[number] * GIB),), reasons=())

    def lack(self) -> int:
        """In GiB, after several answers of the driver."""
        for _ in range(4):
            sight = self.claims.sight(UUID)
        assert sight is not None
        return shortage(sight.most, sight.claims) // GIB

    def victims(self) -> list[int]:
        sight = self.claims.sight(UUID)
        assert sight is not None
        return [claim.number for claim in victims(sight.claims)]


def test_a_supervisor_that_says_more_than_it_can_have_suspends_nobody() -> None:
    node = Node()
    node.tenant(1, 8, 20, 80, "high")
    node.tenant(2, 8, 60, 80, "low")
    node.says[2] = node.has[2] = 50
    node.says[1], node.has[1] = 80, 1
    assert node.lack() <= 0


def test_what_was_allocated_while_a_limit_was_lowered_counts() -> None:
    node = Node()
    one = node.tenant(1, 8, 60, 80)
    node.says[1] = node.has[1] = 10
    node.lack()
    one.limits = one.limits.replace(gpus=(one.limits.gpus[0].replace(memory=11 * GIB),))
    node.says[1] = node.has[1] = 30
    sight = node.claims.sight(UUID)
    assert sight is not None
    assert sight.claims[0].used == 30 * GIB


def test_a_supervisor_that_hides_memory_is_reclaimed_from() -> None:
    """And no other is, for what its tenant holds already."""
    node = Node()
    node.tenant(1, 8, 60, 80, "low")
    node.tenant(2, 8, 20, 80, "low")
    node.tenant(3, 30, 30, 60)
    node.says[2] = node.has[2] = 12
    node.has[1] = 50
    assert node.lack() == 50 + 12 + 30 - 80
    assert node.victims() == [1, 2]


def test_what_the_driver_said_before_memory_was_freed_is_not_held() -> None:
    node = Node()
    node.tenant(1, 8, 60, 80)
    node.says[1] = node.has[1] = 50
    node.lack()
    node.says[1] = 4
    assert node.victims() == []


def test_a_container_that_starts_anew_keeps_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for memory when the time of the one before, of the same name, is over."""
    monkeypatch.setattr(ranges, "_LOCK_S", 0.01)

    async def act() -> None:
        node = Node()
        unused: Any = SimpleNamespace()
        made = Ranges(unused, unused)
        made._claims = node.claims
        await made.making_room("key", Limits((ResolvedGpu(UUID, 0, 8 * GIB),), (), "1", "one"))
        again = Limits((ResolvedGpu(UUID, 0, 9 * GIB),), (), "1", "one")
        node.claims.coming["key"] = again
        await asyncio.sleep(0.1)
        assert node.claims.coming == {"key": again}
        made._forget("key", again)
        assert not node.claims.coming

    asyncio.run(act())
