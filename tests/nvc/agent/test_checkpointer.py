"""The processes that make CUDA's checkpoint calls: how many there are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nvc.agent import checkpointer
from nvc.agent.checkpointer import Checkpointers


class Helper:
    """Counts those that live."""

    living = most = 0

    def __init__(self, *_: object) -> None:
        pass

    async def start(self) -> None:
        Helper.living += 1
        Helper.most = max(Helper.most, Helper.living)

    async def ask(self, seconds: float, **request: Any) -> dict[str, int]:
        return {"state": 0}

    async def end(self) -> None:
        Helper.living -= 1


def test_a_container_with_many_users_has_few_processes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is some 100 MiB that the container is not charged for, and its processes' groups are its own choice."""
    monkeypatch.setattr(checkpointer, "_Helper", Helper)
    monkeypatch.setattr(checkpointer, "_identity", lambda pid: (pid, pid, "", "/"))

    async def inside() -> None:
        async with Checkpointers(str(tmp_path / "lock")) as calls:
            for pid in (*range(100), 99, 98):
                assert await calls.state(pid) == 0

    asyncio.run(inside())
    assert Helper.most <= 8
    assert Helper.living == 0
