"""Moves of limits: one tenant that takes none hinders no other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent.ranges import Ranges
from nvc.base.errors import AgentError, ContainerError
from nvc.share.store import start_time


class World:
    """Tenants by number, and how their supervisors take limits: those in ``stuck`` do not."""

    def __init__(self, *stuck: int) -> None:
        self.stuck = stuck
        self.moved: list[int] = []
        self.told: list[str] = []
        self.tenants = SimpleNamespace(by_number=lambda number: SimpleNamespace(number=number, members=(self,)))
        self.supervisors = SimpleNamespace(refresh=lambda number: None)
        self.pid, self.start_time = 1, start_time(1)
        self.locked = lambda tenant, act: None
        unused: Any = SimpleNamespace()
        self.part = Ranges(unused, unused)
        agent: Any = self
        self.part._agent = agent

    async def put_in_force(self, tenant: Any) -> None:
        if tenant.number in self.stuck:
            await asyncio.sleep(0.2)
            raise AgentError(f"{tenant.number} is stuck")
        self.moved.append(tenant.number)


def test_the_others_get_theirs_before_it_is_told() -> None:
    world = World(1, 3)
    with pytest.raises(AgentError, match="1 is stuck"):
        asyncio.run(world.part._put("GPU", {1: 10, 2: 20, 3: 30, 4: 40}))
    assert world.moved == [2, 4]


def test_other_gpus_go_on() -> None:
    """A tenant, its limit not taken, kept limits of all other GPUs, and those to be resumed, where they were."""
    divided: list[str] = []
    resumed: list[None] = []

    async def divide(uuid: str) -> None:
        divided.append(uuid)
        if uuid == "A":
            await asyncio.sleep(60)
        if uuid == "B":
            raise ContainerError("not in force")

    async def act() -> None:
        world = World()
        part: Any = world.part
        part._claims = SimpleNamespace(uuids=lambda: ["A", "B", "C"], is_stale=lambda: False)
        part._divide, part._look_for_lack = divide, lambda uuid: None
        part._resume_first = lambda: resumed.append(None)
        part._tell = lambda message, hint: world.told.append(message)
        part._begin(part._run())
        for _ in range(2):
            part.look()
            await asyncio.sleep(0.05)
        await part.stop()
        assert world.told == ["container error: not in force"] * 2

    asyncio.run(act())
    assert divided == ["A", "B", "C", "B", "C"]
    assert len(resumed) == 2
