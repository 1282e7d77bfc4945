"""Attached processes among the agent's tenants, over a guard that takes notes, or that does not take everything."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from nvc.agent.attached import Attachments, Held
from nvc.agent.scheduler import Scheduler
from nvc.base.errors import InputError
from nvc.bindings.guard import Guard
from nvc.guard.attached import AttachedGroup, AttachedProcess
from nvc.share import store

UUID = "GPU-00000000-0000-0000-0000-000000000001"


class NotingGuard:
    """attached: numbers that it has. full: it takes no more. plans: phases by UUID."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.full = False
        self.plans: dict[bytes, Sequence[tuple[int, int, int, int]]] = {}

    def attach(self, number: int, pidfd: int, node: tuple[int, int], channels: object) -> None:
        if self.full:
            raise OSError(12, "guard_attach: Cannot allocate memory")
        self.known.add(number)

    def detach(self, number: int) -> None:
        self.known.discard(number)

    def attached(self, number: int) -> tuple[int, bool, int]:
        if number not in self.known:
            raise OSError(2, "guard_attached_status")
        return 1, False, 0

    def plan(self, uuid: bytes, period: int, phases: Sequence[tuple[int, int, int, int]], valid: int) -> None:
        self.plans[uuid] = phases

    def renew(self, valid: int) -> bool:
        return True


class Known(Attachments):
    """Whose processes are known without a driver."""

    def _find(
        self, pid: int | None, container: str | None, probes: int, guarded: Collection[int]
    ) -> list[AttachedProcess]:
        found = pid or 0
        groups = (AttachedGroup(0, 1, 2, 2048),)
        return [AttachedProcess(found, store.start_time(found), 0, 1, "probes", UUID, groups, ())]

    def _copies(self, process: AttachedProcess) -> Held:
        return {}


class OfContainer(Attachments):
    """Every container has this process."""

    def _pids(self, pid: int | None, container: str | None) -> tuple[int, ...]:
        return (os.getpid(),)


class Place:
    def __init__(self, path: Path) -> None:
        self.guard = NotingGuard()
        self.directory = path / "attach"
        self.attachments = Known(cast("Guard", self.guard), directory=str(self.directory))
        self.scheduler = Scheduler(self.attachments)

    def attach(self, pid: int, **fields: Any) -> None:
        given: dict[str, Any] = {"weight": 0, "cap": "50%", **fields}
        asyncio.run(self.attachments.attach(self.scheduler, pid, None, **given))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as made:
        yield made
        made.kill()


@pytest.mark.root
def test_what_could_not_be_attached_is_not_listed(place: Place, process: subprocess.Popen[bytes]) -> None:
    # It stayed in the list, and in the records, and nothing scheduled it.
    place.guard.full = True
    with pytest.raises(OSError, match="guard_attach"):
        place.attach(process.pid)
    assert place.attachments.report(place.scheduler) == []
    assert os.listdir(place.directory) == []
    place.guard.full = False
    place.attach(process.pid)
    assert [one.pid for one in place.attachments.report(place.scheduler)] == [process.pid]


@pytest.mark.root
def test_a_record_that_cannot_be_read_is_none(place: Place, process: subprocess.Popen[bytes]) -> None:
    place.directory.mkdir()
    record = place.directory / f"{process.pid}-{store.start_time(process.pid)}.json"
    for damaged in (b"", b"{", b'{"pid":1}', b"\xff"):
        record.write_bytes(damaged)
        place.attach(process.pid)
        assert record.read_bytes().startswith(b'{"pid":')
        place.attachments.detach(place.scheduler, process.pid, None)
        assert os.listdir(place.directory) == []


@pytest.mark.root
def test_the_phase_of_a_process_that_ended_is_free(place: Place, process: subprocess.Popen[bytes]) -> None:
    # It was looked for only when the status was asked for.
    place.attach(process.pid)
    (phases,) = place.guard.plans.values()
    assert len(phases) == 1
    process.kill()
    process.wait()
    place.attachments.look(place.scheduler)
    assert list(place.guard.plans.values()) == [()]
    assert (place.guard.known, os.listdir(place.directory)) == (set(), [])


@pytest.mark.root
def test_a_guarded_process_is_not_attached_however_it_is_named(tmp_path: Path) -> None:
    attachments = OfContainer(cast("Guard", NotingGuard()), directory=str(tmp_path))
    for pid, container in ((os.getpid(), None), (None, "4f0c91d2a7b3")):
        with pytest.raises(InputError, match=f"process {os.getpid()} is of a container with a share"):
            asyncio.run(
                attachments.attach(Scheduler(attachments), pid, container, 0, "50%", guarded=frozenset((os.getpid(),)))
            )
