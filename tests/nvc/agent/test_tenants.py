"""Thousands of containers that come and go: nothing of them stays in the agent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from nvc.agent.container_state import ContainerProcess
from nvc.agent.journal import Journal
from nvc.agent.keeping import Keeping
from nvc.agent.notify import Systemd
from nvc.agent.tenant_files import TENANTS, prepare
from nvc.agent.tenants import Tenants
from nvc.linux.guard import Guard
from nvc.share import store
from nvc.share.entry import StoredShare
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu

#: In one test: registered, hung up, gone.
CONTAINERS, AT_ONCE = 2000, 100
GPU = ResolvedGpu("GPU-11111111-2222-3333-4444-555555555555", 0, 1 << 30)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    """KiB."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


@pytest.mark.root
def test_containers_that_are_gone_leave_nothing(tmp_path: Path) -> None:
    directory, shares = str(tmp_path / "agent"), str(tmp_path / "share")
    prepare(directory)
    key, own = "c1", os.getpid()
    limits = Limits((GPU,), (), "580.105.08", key)
    store.create(StoredShare(key, key, own, store.start_time(own)), limits, b"", directory=shares)
    told: list[dict[str, object]] = []
    journal = Journal(-1)
    journal.listen(told.append)
    keeping = Keeping(directory, Systemd({}))
    with Guard(str(tmp_path)) as guard:
        tenants = Tenants(guard, keeping, journal, directory, shares, [])

        async def some(count: int) -> None:
            for _ in range(count):
                # Hung up from the beginning, as that of a container which ended: the read end of a pipe.
                end, other = os.pipe()
                os.close(other)
                await tenants.admit(ContainerProcess(key, own, own, "creating", "nvc", "", 0), end)
                tenants.look()
                for _ in range(500):
                    if not len(tenants):
                        break
                    await asyncio.sleep(0.0005)
                    tenants.look()

        asyncio.run(some(AT_ONCE))
        before = threads(), descriptors(), resident()
        asyncio.run(some(CONTAINERS - AT_ONCE))
        assert (threads(), descriptors()) == before[:2]
        assert resident() < before[2] + 4096
        assert len(tenants) == 0
    assert [event["event"] for event in told].count("gone") == CONTAINERS
    assert os.listdir(f"{directory}/{TENANTS}") == []
    assert keeping.get() == {}
    keeping.leave()
