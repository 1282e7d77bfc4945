"""What goes through hundreds of tenants lets others have their turn of the agent's loop."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nvc.agent import waiting
from nvc.agent.agent import Agent
from nvc.agent.owners import Owners
from nvc.agent.probing import Probing
from nvc.guard.channel import HEAD
from nvc.guard.held import HeldTenant
from nvc.guard.supervisors import USERS
from nvc.guard.usage import GpuUsage
from tests.support import many_tenants
from tests.support.many_tenants import GIB, UUIDS

TENANTS = 40


class Turns:
    """Of the loop, as a task counts them that does nothing else."""

    count = 0

    async def of(self, act: Coroutine[None, None, None]) -> int:
        """Turns that others had meanwhile."""

        async def others() -> None:
            while True:
                self.count += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        await asyncio.sleep(0)
        before = self.count
        await act
        task.cancel()
        return self.count - before


class Ending:
    """A tenant's monitor that answers at once, and its counters. A HeldTenant."""

    def __init__(self, turns: Turns, steps: Counter[int]) -> None:
        self.connection, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turns, self._steps = turns, steps
        self.counters = SimpleNamespace(status=lambda: SimpleNamespace(notifications=0, reasons=()))

    def begin_end(self) -> None:
        self._steps[self._turns.count] += 1
        self._other.send(HEAD.pack(0, 0))

    def end(self) -> None:
        self._steps[self._turns.count] += 1
        self.close()

    def close(self) -> None:
        self.connection.close()
        self._other.close()


def test_tenants_that_end_at_once_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tenants with an answer of their monitor were let go of in one turn."""
    monkeypatch.setattr(waiting, "TURN_S", 0.0)
    tenants = many_tenants.make(tmp_path, TENANTS).tenants
    turns, steps = Turns(), Counter[int]()

    async def act() -> None:
        ends = (tenants._rest_of_end(one, cast("HeldTenant", Ending(turns, steps))) for one in tenants)
        await asyncio.gather(*ends)

    asyncio.run(turns.of(act()))
    assert sum(steps.values()) == 2 * TENANTS
    assert max(steps.values()) == 1


def _probing(agent: Agent, directory: Path) -> Probing:
    made = Probing()
    made._agent = agent
    made._prober = cast("Any", SimpleNamespace(name=lambda pids: None, gone=lambda number: None))
    made._owners = Owners(str(directory), USERS)
    return made


def test_a_balance_lets_others_have_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 500 tenants it kept the loop for 50 ms. One that ends meanwhile leaves nothing behind."""
    monkeypatch.setattr(waiting, "TURN_S", 0.0)
    agent = many_tenants.make(tmp_path, TENANTS)
    probing = _probing(agent, tmp_path)
    pids = dict.fromkeys(range(1 << 22, (1 << 22) + TENANTS), GIB)  # beyond the largest that there can be
    gpu = GpuUsage(UUIDS[0], 10**9, TENANTS * GIB, 80 * GIB, 0, pids)
    last = list(agent.tenants)[-1]

    async def end() -> None:
        await asyncio.sleep(0)
        del agent.tenants._by_number[last.number]
        probing.gone(last)

    async def act() -> None:
        await asyncio.gather(probing._balance_all([gpu], 0.0), end())

    assert asyncio.run(Turns().of(act())) >= 2 * TENANTS - 2, "each tenant, each process"
    assert len(probing._reported) == TENANTS - 1
    assert last.number not in probing._owners._seen
    assert probing._findings[UUIDS[0]] is not None


def test_a_process_whose_tenant_ends_meanwhile_is_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = many_tenants.make(tmp_path, 2)
    owners = Owners(str(tmp_path), USERS)
    monkeypatch.setattr("nvc.agent.owners._Places.of", lambda self, pid, above: pid - (1 << 22))
    steps = owners.steps([(1 << 22) + 1, (1 << 22) + 2], agent.tenants, {})
    next(steps)
    next(steps)
    owners.gone(1)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == {(1 << 22) + 1: 0, (1 << 22) + 2: 2}
    assert list(owners._known) == [(1 << 22) + 2]
