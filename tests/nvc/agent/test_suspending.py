"""Which processes a suspend touches while others end and begin."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent.suspending import _Tenant
from nvc.bindings.checkpoint import RUNNING


class Calls:
    """CUDA's, which note the processes that they touched. ends: what ends, while the first process is waited for."""

    def __init__(self, processes: dict[int, tuple[int, ...]], ends: int) -> None:
        self.processes, self.ends = processes, ends
        self.touched: set[int] = set()

    async def state(self, pid: int) -> int:
        return RUNNING

    async def _touch(self, pid: int, *_: float) -> None:
        self.touched.add(pid)
        self.processes.pop(self.ends, None)

    lock = checkpoint = restore = unlock = _touch


@pytest.fixture
def calls() -> Calls:
    return Calls({11: (1,), 12: (1,)}, ends=12)


def test_a_number_that_may_be_another_containers_by_now_is_not_touched(calls: Calls) -> None:
    """A lock waits for up to 600 s; the hostile process behind it in the list ends, and a neighbour gets its number."""
    supervisors = SimpleNamespace(refresh=lambda _: None, processes=lambda _: tuple(calls.processes.items()))
    agent: Any = SimpleNamespace(supervisors=supervisors)
    tenant: Any = SimpleNamespace(number=1, name="c1")
    made: Any = calls

    assert asyncio.run(_Tenant(agent, tenant, made).suspend(10.0, 1)) == 1
    assert calls.touched == {11}
