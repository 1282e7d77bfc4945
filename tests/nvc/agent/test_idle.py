"""Which tenant is idle: by the driver's samples and its calls, never where nothing is known."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent import activity, idle
from nvc.agent.activity import Thread
from nvc.agent.idle import EFFORT, Idleness, seconds
from nvc.agent.state.records import IDLE
from nvc.share.model import ResolvedGpu


class World:
    """An agent with one tenant. Its attributes are what is known of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.computed, self.calls, self.sampled = 100.0, 0, 5, 1
        monkeypatch.setattr(idle.time, "monotonic", lambda: self.now)
        limits = SimpleNamespace(gpus=(ResolvedGpu("G", 0, 1 << 30, idle=60),))
        self.tenant: Any = SimpleNamespace(number=1, limits=limits)
        self.part = Idleness()
        agent: Any = SimpleNamespace(tenants=[self.tenant], computed=lambda *_: (None, self.computed))
        agent.supervisors = SimpleNamespace(
            usage=self._usage, status=lambda _: SimpleNamespace(notifications=self.calls)
        )
        self.part._agent = agent

    def _usage(self) -> Any:
        return SimpleNamespace(gpus={"G": SimpleNamespace(sampled_ns=self.sampled)} if self.sampled >= 0 else {})

    def after(self, passed: float) -> bool:
        self.now += passed
        self.part.look()
        return self.part.is_idle(self.tenant)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_it_is_idle_after_its_time_without_computing(world: World) -> None:
    assert [world.after(passed) for passed in (0, 59, 1)] == [False, False, True]
    world.computed += 1
    assert [world.after(passed) for passed in (1, 59, 1)] == [False, False, True]


def test_a_call_of_the_driver_counts_as_well(world: World) -> None:
    assert not world.after(0)
    world.calls += 1
    assert [world.after(passed) for passed in (59, 59, 1)] == [False, False, True]


@pytest.mark.parametrize("sampled", [0, -1])
def test_without_samples_none_is_idle(world: World, sampled: int) -> None:
    world.sampled = sampled
    assert [world.after(passed) for passed in (0, 60, 600)] == [False, False, False]
    world.sampled = 1
    assert [world.after(passed) for passed in (0, 59, 1)] == [False, False, True]


def test_one_that_runs_again_is_not_idle_at_once(world: World) -> None:
    assert [world.after(passed) for passed in (0, 60)] == [False, True]
    world.part.ended(1)
    assert [world.after(passed) for passed in (1, 59, 1)] == [False, False, True]


def test_all_its_gpus_have_to_say_so(world: World) -> None:
    said, other = world.tenant.limits.gpus[0], ResolvedGpu("H", 1)
    world.tenant.limits = SimpleNamespace(gpus=(said, other))
    assert seconds(world.tenant) == 0
    world.tenant.limits = SimpleNamespace(gpus=(said, other.replace(idle=90)))
    assert seconds(world.tenant) == 90


def test_one_with_many_threads_costs_the_agent_little_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """4000 threads took 0.14 s of the processor, twenty times a second."""
    looked: dict[int, int] = {1: 0, 2: 0}

    def look(pids: list[int]) -> dict[tuple[int, int], Thread]:
        until = time.thread_time() + (0.1 if pids == [1] else 0)
        while time.thread_time() < until:
            pass
        looked[pids[0]] += 1
        return {}

    async def act() -> float:
        part = Idleness()
        record = SimpleNamespace(suspended=SimpleNamespace(cause=IDLE, is_changing=False))
        agent: Any = SimpleNamespace(tenants=[SimpleNamespace(number=number, record=record) for number in looked])
        agent.supervisors = SimpleNamespace(processes=lambda number: [(number, 0)])
        begun = time.monotonic()
        await part.start(agent)
        while looked[2] < 10:
            await asyncio.sleep(0.01)
        await part.stop()
        return time.monotonic() - begun

    monkeypatch.setattr(activity, "look", look)
    passed = asyncio.run(act())
    assert (looked[1] - 1) * 0.1 <= passed * EFFORT
