"""Entries of containers that have ended: the agent removes them, and never one of a container that lives."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent import agent as agent_module
from nvc.agent import cgroups
from nvc.agent.ended import EndedShares
from nvc.agent.promised import PromisedRequests
from nvc.agent.state.records import Member
from nvc.share import entry as entry_module
from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.store import StoredShare, start_time
from tests.support import leftovers
from tests.support.admitted import AdmittedContainers, look

Make = Callable[[str, int], Member]


@pytest.fixture
def shares(tmp_path: Path) -> str:
    return str(tmp_path / "s")


@pytest.fixture
def make(shares: str) -> Make:
    def create(key: str, pid: int) -> Member:
        started = start_time(pid)
        store.create(StoredShare(key, key, pid, started), Limits(()), b"", directory=shares)
        return Member(key, key, pid, started)

    return create


@pytest.fixture
def process() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(["sleep", "infinity"]))
        return made[-1]

    yield begin
    for one in made:
        one.kill()
        one.wait()


Process = Callable[[], "subprocess.Popen[bytes]"]


def names(shares: str) -> list[str]:
    return sorted(name for name in os.listdir(shares) if not name.startswith("."))


def looked(ended: EndedShares, times: int = 1) -> None:
    async def look() -> None:
        for _ in range(times):
            ended.look()
            if ended._task is not None:
                await ended._task

    asyncio.run(look())


def test_an_ended_containers_entry_goes_and_no_other_is_opened(shares: str, make: Make, process: Process) -> None:
    one, ended = process(), EndedShares(shares)
    member = make("a", one.pid)
    make("b", os.getpid())
    Path(shares, "c").mkdir()
    one.kill()
    one.wait()
    assert names(shares) == ["a", "b", "c"]
    ended.add([member])
    looked(ended)
    assert names(shares) == ["b", "c"]


def test_a_container_that_was_started_again_under_its_name_keeps_its_entry(
    shares: str, make: Make, process: Process
) -> None:
    one, two, ended = process(), process(), EndedShares(shares)
    member = make("a", one.pid)
    one.kill()
    one.wait()
    again = make("a", two.pid)
    ended.add([member])
    looked(ended)
    assert names(shares) == ["a"]
    two.kill()
    two.wait()
    ended.add([again])
    looked(ended)
    assert names(shares) == []


def test_a_first_process_that_is_a_zombie_is_waited_for(shares: str, make: Make, process: Process) -> None:
    one, ended = process(), EndedShares(shares)
    ended.add([make("a", one.pid)])
    one.kill()
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    looked(ended, 3)
    assert names(shares) == ["a"]
    one.wait()
    looked(ended)
    assert names(shares) == []


def test_a_store_that_stays_locked_keeps_no_other_from_its_end(
    shares: str, make: Make, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_module, "_LOCK_TIMEOUT_S", 0.05)
    one, ended = process(), EndedShares(shares)
    ended.add([make("a", one.pid)])
    one.kill()
    one.wait()
    with store.Locked(shares):
        begun = time.monotonic()
        looked(ended)
        assert time.monotonic() - begun < 20
    assert names(shares) == ["a"], "what cleans all of the store is next"
    assert store.clean(shares) == ["a"]


@pytest.mark.root
def test_it_goes_with_its_tenant(tmp_path: Path) -> None:
    """Each start looked through the whole store for such ones."""
    read, write = os.pipe()
    with AdmittedContainers(tmp_path) as place:
        assert place.admit(read)
        place.container.kill()
        place.container.wait()
        os.close(write)
        assert place.are_gone()
        looked(place.tenants._ended)
        assert leftovers.until(lambda: names(place.shares) == [], seconds=30)
    os.close(read)


@pytest.mark.root
def test_it_goes_with_its_container_of_a_group(tmp_path: Path) -> None:
    ends = [os.pipe(), os.pipe()]
    with AdmittedContainers(tmp_path, "g") as place:
        assert place.admit(ends[0][0])
        assert not place.admit(ends[1][0], place.another("c2", "g", place.limits.replace(container="c2")))
        place.container.kill()
        place.container.wait()
        os.close(ends[0][1])

        async def until_gone() -> None:
            until = time.monotonic() + 10
            while names(place.shares) != ["c2"] and time.monotonic() < until:
                await look(place.tenants, place.supervisors)
                await asyncio.sleep(0.02)

        asyncio.run(until_gone())
        assert names(place.shares) == ["c2"]
        place.containers[1].kill()
        place.containers[1].wait()
        os.close(ends[1][1])
        assert place.are_gone()
    for first, _ in ends:
        os.close(first)


def test_the_agent_cleans_the_store_when_it_begins(
    shares: str, tmp_path: Path, make: Make, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of containers that ended while none ran, and of those without a guard; then once a minute."""
    monkeypatch.setattr(agent_module, "CLEAN", 0.05)
    monkeypatch.setattr(cgroups, "clean", lambda directory: None)
    one, two = process(), process()
    make("a", one.pid)
    make("b", os.getpid())
    make("c", two.pid)
    Path(shares, ".old-1").mkdir()
    one.kill()
    one.wait()
    told: list[str] = []
    agent: Any = SimpleNamespace(
        options=SimpleNamespace(shares=shares, directory=str(tmp_path / "agent")),
        promised=PromisedRequests(shares),
        journal=SimpleNamespace(write=lambda event, **fields: told.append(event)),
    )

    async def run() -> None:
        task = asyncio.ensure_future(agent_module.Agent._clean(agent))
        for there, end in ((["b", "c"], two), (["b"], None)):
            until = time.monotonic() + 10
            while names(shares) != there and time.monotonic() < until:
                await asyncio.sleep(0.01)
            assert names(shares) == there
            if end is not None:
                end.kill()
                end.wait()
        task.cancel()

    asyncio.run(run())
    assert (sorted(os.listdir(shares)), told) == (["b"], [])
    agent.promised.close()


def test_what_takes_its_name_while_the_lock_is_waited_for_stays(
    shares: str, make: Make, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, usual = process(), store.wait
    make("a", one.pid)
    one.kill()
    one.wait()

    def wait(descriptor: int, path: str, place: int = -1) -> None:
        monkeypatch.setattr(store, "wait", usual)
        make("a", os.getpid())
        usual(descriptor, path, place)

    monkeypatch.setattr(store, "wait", wait)
    assert store.clean(shares) == []
    assert names(shares) == ["a"]
