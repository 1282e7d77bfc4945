"""Requests to a monitor that hangs."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent.waiting import Threads
from nvc.base.errors import ContainerError


def tenant() -> Any:
    return SimpleNamespace(name="c1", turn=asyncio.Lock(), waiting=0, hung_at=0.0)


async def outcomes(threads: Threads, of: Any, act: Any, count: int) -> list[Any]:
    return await asyncio.gather(*(threads.run(of, act) for _ in range(count)), return_exceptions=True)


def test_so_many_wait_for_one_monitor_and_no_more() -> None:
    go = threading.Event()

    async def run() -> None:
        threads, hung, other = Threads(), tenant(), tenant()
        waiting = asyncio.ensure_future(outcomes(threads, hung, go.wait, Threads.OF_ONE))
        await asyncio.sleep(0.05)
        with pytest.raises(ContainerError, match="c1: its monitor does not answer"):
            await threads.run(hung, go.wait)
        await threads.run(other, lambda: None)
        go.set()
        assert await waiting == [None] * Threads.OF_ONE
        await threads.run(hung, go.wait)
        threads.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_what_waits_behind_one_that_waited_in_vain_is_refused_with_it() -> None:
    """Each waited six seconds of its own, one after the other."""
    asked: list[int] = []

    def hangs() -> None:
        asked.append(1)
        raise TimeoutError("the monitor does not answer")

    async def run() -> None:
        threads, hung = Threads(), tenant()
        first, *others = await outcomes(threads, hung, hangs, 5)
        assert isinstance(first, TimeoutError) and all(isinstance(one, ContainerError) for one in others)
        assert asked == [1]
        await asyncio.sleep(0.01)
        await threads.run(hung, lambda: asked.append(2))
        assert asked == [1, 2], "a later one is tried"
        threads.close()

    asyncio.run(asyncio.wait_for(run(), 20))
