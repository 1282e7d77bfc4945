"""Reclaiming: whose turn it is where a tenant cannot be suspended, and what is said where none can."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent import ranges
from nvc.agent.claims import Sight
from nvc.agent.dividing import Claim
from nvc.agent.ranges import Ranges
from nvc.base.errors import ContainerError

GIB = 1 << 30
LIMITS: Any = SimpleNamespace(gpus=(SimpleNamespace(uuid="G"),))


class World:
    """Two tenants above their requests, and 20 GiB that lack. refuses: numbers of those that cannot be suspended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *refuses: int) -> None:
        monkeypatch.setattr(ranges, "_LACKS_S", 0.0)
        self.claims = {
            number: Claim(number, 8 * GIB, 40 * GIB, 40 * GIB, 40 * GIB, priority=priority)
            for number, priority in ((1, "low"), (2, "normal"))
        }
        self.refuses, self.suspended, self.written = refuses, list[int](), list[str]()
        self.ranged = True
        idleness: Any = SimpleNamespace(is_idle=lambda _: False)
        self.part = Ranges(self, idleness)  # type: ignore[arg-type]
        tenants = {number: SimpleNamespace(number=number, name=f"c{number}") for number in self.claims}
        journal = SimpleNamespace(write=lambda event, **fields: self.written.append(str(fields.get("message"))))
        agent: Any = SimpleNamespace(journal=journal, tenants=SimpleNamespace(by_number=tenants.get))
        self.part._agent = agent
        claims: Any = SimpleNamespace(
            coming={},
            uuids=lambda: ["G"],
            has_range=lambda _: self.ranged,
            is_stale=lambda: False,
            sight=lambda _: Sight(
                80 * GIB, 80 * GIB, 80 * GIB, (*self.claims.values(), Claim(-1, 20 * GIB, 20 * GIB, 20 * GIB, 0))
            ),
        )
        self.part._claims = claims
        monkeypatch.setattr(self.part, "_divide", self._nothing)

    async def _nothing(self, _: str) -> None:
        """Limits are where they are."""

    async def suspend(self, tenant: Any, timeout: float, **_: object) -> None:
        if tenant.number in self.refuses:
            raise ContainerError(f"container {tenant.name}: its work does not end")
        self.suspended.append(tenant.number)
        self.claims[tenant.number] = self.claims[tenant.number].replace(used=0, sleeps=True)

    def make_room(self) -> None:
        async def run() -> None:
            await self.part.making_room("new", LIMITS)

        asyncio.run(run())


def test_the_next_one_is_suspended_where_the_first_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1)
    world.make_room()
    assert world.suspended == [2]
    assert world.written == ["container error: container c1: its work does not end; its memory is not reclaimed"]


def test_no_more_are_suspended_than_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.make_room()
    assert world.suspended == [1]


def test_a_container_that_was_promised_what_cannot_be_had_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1, 2)
    with pytest.raises(
        ContainerError, match=r"20480 MiB lack for a container that starts: new: .*c1.*; .*c2: its work"
    ):
        world.make_room()
    assert world.part._claims.coming == {}, "what it was promised is free again"


def test_without_a_range_nothing_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain shares may be more than the GPU has: it starts."""
    world = World(monkeypatch, 1, 2)
    world.ranged = False
    world.make_room()
    assert world.suspended == []


def test_a_problem_is_written_once_while_it_lasts_and_forgotten_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers come and go for as long as the agent runs, and what cannot be done names them."""
    world = World(monkeypatch)
    now = [0.0]
    monkeypatch.setattr(ranges, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for number in range(1000):
        now[0] = number * 60.0
        world.part._tell("the store cannot be read")
        world.part._tell(f"container c{number}: its work does not end")
        assert len(world.part._told) <= 2 + ranges._OVER_S / 60
    assert world.written[:3] == [
        "the store cannot be read",
        "container c0: its work does not end",
        "container c1: its work does not end",
    ]
    assert len(world.written) == 1001
    now[0] += ranges._OVER_S + 1
    world.part._tell("the store cannot be read")
    assert world.written[1001:] == ["the store cannot be read"]
