"""Thousands of containers that come and go: nothing of them stays in the agent."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Self

import pytest

from nvc.agent.container_state import ContainerProcess
from nvc.agent.journal import Journal
from nvc.agent.keeping import Keeping
from nvc.agent.notify import Systemd
from nvc.agent.part import Part
from nvc.agent.state.records import TENANTS, prepare
from nvc.agent.tenants import Tenants
from nvc.base.errors import ContainerError
from nvc.bindings.guard import Guard
from nvc.linux import seccomp
from nvc.share import store
from nvc.share.entry import StoredShare
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from tests.support import leftovers, registered
from tests.support.isolation import in_namespaces

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


KEY, OWN = "c1", os.getpid()
FIRST = ContainerProcess(KEY, OWN, OWN, "creating", "nvc", "", 0)


def hung_up() -> int:
    """As the listener of a process that ended: the read end of a pipe."""
    end, other = os.pipe()
    os.close(other)
    return end


class Place:
    """Tenants with one container's share, what they tell, and the keeper. A context manager."""

    def __init__(self, path: Path) -> None:
        self.directory = str(path / "agent")
        shares = str(path / "share")
        prepare(self.directory)
        limits = Limits((GPU,), (), "580.105.08", KEY)
        store.create(StoredShare(KEY, KEY, OWN, store.start_time(OWN)), limits, b"", directory=shares)
        self.told: list[dict[str, object]] = []
        journal = Journal(-1)
        journal.listen(self.told.append)
        self.keeping = Keeping(self.directory, Systemd({}))
        self._guard = Guard(str(path))
        self.tenants = Tenants(self._guard, self.keeping, journal, self.directory, shares, [])
        registered.register(self.tenants.registrations, KEY, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.close()
        self.keeping.leave()


@pytest.mark.root
def test_containers_that_are_gone_leave_nothing(tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        tenants = place.tenants

        async def some(count: int) -> None:
            for _ in range(count):
                await tenants.admit(FIRST, hung_up())
                tenants.look()
                for _ in range(20_000):
                    if not len(tenants):
                        break
                    await asyncio.sleep(0.0005)
                    tenants.look()

        own = threads()
        asyncio.run(some(AT_ONCE))
        # A thread that was waited for is there until the kernel has ended it, also one of a test before.
        assert leftovers.until(lambda: threads() <= own, seconds=30)
        before = descriptors(), resident()
        asyncio.run(some(CONTAINERS - AT_ONCE))
        assert leftovers.until(lambda: threads() <= own, seconds=30)
        assert descriptors() <= before[0]
        assert resident() < before[1] + 4096
        assert len(tenants) == 0
        assert [event["event"] for event in place.told].count("gone") == CONTAINERS
        assert os.listdir(f"{place.directory}/{TENANTS}") == []
        assert place.keeping.get() == {}


@pytest.mark.root
def test_processes_put_into_a_container_that_stays_leave_nothing(tmp_path: Path) -> None:
    # Their listeners stayed open until the container ended: a probe that is executed every few seconds used up the
    # agent's descriptors within days.
    with Place(tmp_path) as place:
        tenants = place.tenants
        first, other = os.pipe()
        asyncio.run(tenants.admit(FIRST, first))
        before = descriptors()
        for _ in range(100):
            asyncio.run(tenants.admit(FIRST.replace(status="running"), hung_up()))
            for _ in range(20_000):
                if descriptors() <= before:
                    break
                time.sleep(0.002)
                tenants.look()
            assert descriptors() <= before
        (tenant,) = tenants
        assert list(tenant.listeners.values()) == [first]
        kept = place.keeping.get()
        assert list(kept) == list(tenant.listeners)
        for descriptor in (*kept.values(), other):
            os.close(descriptor)


class Full(Part):
    """Takes no further tenant with a cap."""

    def check(self, limits: Limits) -> None:
        raise ContainerError("GPU 0: its cap cannot be kept", hint="take another GPU")


@pytest.mark.root
def test_a_container_whose_cap_cannot_be_kept_is_refused_with_the_reason(tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        tenants = place.tenants
        tenants._parts.append(Full())
        listener, other = os.pipe()
        asyncio.run(tenants.admit(FIRST, listener))
        os.close(other)
        assert len(tenants) == 0
        (told,) = (event for event in place.told if event["event"] == "refused")
        assert (told["container"], told["message"], told["hint"]) == (
            KEY,
            "container error: GPU 0: its cap cannot be kept",
            "take another GPU",
        )
        assert os.listdir(f"{place.directory}/{TENANTS}") == []


@pytest.mark.root
def test_too_many_processes_in_a_container_at_once_are_told_as_that(tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        others = []
        for _ in range(65):
            listener, other = os.pipe()
            others.append(other)
            asyncio.run(place.tenants.admit(FIRST, listener))
        (refused,) = (event for event in place.told if event["event"] == "refused")
        assert "64 processes that were put into it are there, and it can have no more" in str(refused["message"])
        assert "when some have ended" in str(refused["hint"])
        for other in others:
            os.close(other)


def filtered() -> int:
    """A process that has a filter and does nothing but sleep."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        seccomp.install()
        os.write(told, b"x")
        time.sleep(60)
        os._exit(0)
    os.close(told)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    return child


def strangers(path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a process lives that got the pid of a refused one, which ended while its share was waited for."""
    with Place(path) as place:
        number = filtered()
        found = []

        async def end(tenants: Tenants, process: ContainerProcess) -> None:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
            found.append(filtered())
            raise ContainerError("no share")

        monkeypatch.setattr(Tenants, "_entry", end)
        asyncio.run(place.tenants.admit(FIRST.replace(pid=number, first=os.getpid()), hung_up()))
        assert found == [number]
        lives = os.waitpid(number, os.WNOHANG) == (0, 0)
        if lives:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
        return lives


@pytest.mark.root
def test_a_process_that_gets_the_pid_of_a_refused_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_namespaces(strangers, tmp_path, monkeypatch, pid=True)
