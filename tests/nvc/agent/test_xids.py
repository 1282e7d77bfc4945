"""The agent's part about Xids: what it counts, of which GPU, and what it reads of the kernel's log."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent.journal import Journal
from nvc.agent.xids import Xids
from tests.support.inventories import gpu

FIRST = gpu(0, "00000000:3b:00.0", "GPU-00000000-0000-0000-0000-000000000001")


class Place:
    """An agent without tenants, and the pipe that is its kernel's log."""

    def __init__(self, devices: Path) -> None:
        self.told: list[dict[str, object]] = []
        journal = Journal(-1)
        journal.listen(self.told.append)
        os.mkfifo(devices / "kmsg")
        options = SimpleNamespace(devices=str(devices), directory=str(devices))
        self.agent: Any = SimpleNamespace(
            options=options, settings=SimpleNamespace(first_uid=1), journal=journal, inventory=(FIRST,), tenants=()
        )
        self.part = Xids()
        asyncio.run(self.part.start(self.agent))
        self.log = os.open(devices / "kmsg", os.O_WRONLY)

    def write(self, text: str, priority: int = 4) -> None:
        os.write(self.log, f"{priority},1,1,-;{text}\n SUBSYSTEM=pci\n".encode())

    def look(self) -> None:
        """At all that is there: a turn of the part ends after 10 ms, on a busy machine with its first line."""
        for _ in range(500):
            self.part.look()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_event_of_no_process_is_counted_for_its_gpu(place: Place) -> None:
    for _ in range(2):
        place.write("NVRM: Xid (PCI:0000:3B:00): 79, GPU has fallen off the bus.")
    place.write("usb 1-1: new device")
    place.look()
    assert place.part.xids(0, FIRST.uuid) == {79: 2}
    assert [(one["event"], one["gpu"], one["xid"], one["container"]) for one in place.told] == [
        ("xid", FIRST.uuid, 79, "")
    ] * 2
    asyncio.run(place.part.stop())
    place.look()


def test_another_gpu_is_named_by_its_bus(place: Place) -> None:
    place.write("NVRM: Xid (PCI:0000:4c:00): 31, pid=1, name=x, Ch 8")
    place.look()
    assert (place.told[0]["gpu"], place.told[0]["pid"]) == ("00000000:4c:00.0", 1)
    assert place.part.xids(0, FIRST.uuid) == {}


def test_without_a_kernel_log_it_is_silent_and_one_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    told: list[dict[str, object]] = []
    journal = Journal(-1)
    journal.listen(told.append)
    for devices, lines in ((tmp_path / "none", 0), (tmp_path, 1)):
        if lines:
            (tmp_path / "kmsg").symlink_to("kmsg")
        options = SimpleNamespace(devices=str(devices), directory=str(tmp_path))
        agent: Any = SimpleNamespace(options=options, settings=SimpleNamespace(first_uid=1), journal=journal)
        asyncio.run(Xids().start(agent))
        assert len(told) == lines


def test_a_flood_of_events_leaves_the_loop_its_turns(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 150 tenants the owner of one event took 7 ms: the agent did nothing else for seconds."""
    asked: list[int] = []

    def owner(pid: int) -> None:
        asked.append(pid)
        time.sleep(0.005)

    monkeypatch.setattr(place.part, "_owner", owner)
    for pid in range(100):
        place.write(f"NVRM: Xid (PCI:0000:3b:00): 31, pid={4_000_000 + pid}, name=x, Ch 8")
    place.part.look()
    assert 1 <= len(asked) <= 3, "each takes 5 ms of a turn's 10"
    place.look()
    assert len(place.told) == len(asked) == 100, "nothing is lost"
    for _ in range(20):
        place.write(f"NVRM: Xid (PCI:0000:3b:00): 13, pid={os.getpid()}, name=x, Ch 8")
    place.look()
    assert (len(place.told), len(asked)) == (120, 101), "one fault is several records of one process"


def test_numbers_are_bounded(place: Place) -> None:
    for number in range(200):
        place.write(f"NVRM: Xid (PCI:0000:3b:00): {number}, x")
    place.look()
    assert len(place.part.xids(0, FIRST.uuid)) == 64
