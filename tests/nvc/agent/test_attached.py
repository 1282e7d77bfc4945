"""Attached processes among the agent's tenants, with their supervisors; finding them needs a driver and is not done."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.attached import Attachments, Held
from nvc.agent.scheduler import Scheduler
from nvc.base.errors import ContainerError, InputError
from nvc.guard.attached import AttachedGroup, AttachedProcess
from nvc.guard.scheduling import MOST_PHASES, PERIOD_US
from nvc.guard.supervisors import Supervisors
from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from tests.support.native import build

UUID = "GPU-00000000-0000-0000-0000-000000000001"


class Known(Attachments):
    """Whose processes are known without a driver."""

    def _find(
        self, pid: int | None, container: str | None, probes: int, guarded: Collection[int]
    ) -> list[AttachedProcess]:
        found = pid or 0
        groups = (AttachedGroup(0, 1, 2, 2048),)
        return [AttachedProcess(found, store.start_time(found), 0, 1, "probes", UUID, groups, ())]

    #: Ends while it is looked at.
    ending: subprocess.Popen[bytes] | None = None

    def _copies(self, process: AttachedProcess) -> Held:
        if self.ending is not None:
            self.ending.kill()
            self.ending.wait()
        return {}


class OfContainer(Attachments):
    """Every container has this process."""

    def _pids(self, pid: int | None, container: str | None) -> tuple[int, ...]:
        return (os.getpid(),)


class Place:
    def __init__(self, path: Path, supervisors: Supervisors) -> None:
        self.supervisors = supervisors
        self.directory = path / "attach"
        self.attachments = Known(supervisors, directory=str(self.directory))
        self.scheduler = Scheduler(self.attachments)

    def phases(self) -> list[tuple[int, int, int]]:
        """Of its supervisors' plans."""
        return [one.plan.phase(0) for one in self.supervisors._tenants.values()]

    def attach(self, pid: int, **fields: Any) -> None:
        given: dict[str, Any] = {"weight": 0, "cap": "50%", **fields}
        asyncio.run(self.attachments.attach(self.scheduler, pid, None, **given))


@pytest.fixture
def supervisors(tmp_path: Path) -> Iterator[Supervisors]:
    build("nvc-monitor", "nvc-supervisor")
    with Supervisors(str(tmp_path)) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path, supervisors: Supervisors) -> Place:
    return Place(tmp_path, supervisors)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as made:
        yield made
        made.kill()


@pytest.mark.root
def test_what_could_not_be_attached_is_not_listed(place: Place, process: subprocess.Popen[bytes]) -> None:
    # It stayed in the list, and in the records, and nothing scheduled it.
    with subprocess.Popen(["sleep", "60"]) as other:
        place.attachments.ending = other
        with pytest.raises(OSError, match="no such process"):
            place.attach(other.pid)
    assert place.attachments.report(place.scheduler) == []
    assert (os.listdir(place.directory), place.phases()) == ([], [])
    place.attachments.ending = None
    place.attach(process.pid)
    assert [one.pid for one in place.attachments.report(place.scheduler)] == [process.pid]


@pytest.mark.root
def test_a_cap_that_could_not_be_kept_is_not_attached(place: Place, process: subprocess.Popen[bytes]) -> None:
    for number in range(MOST_PHASES):
        place.scheduler.tenant(number, Limits((ResolvedGpu(UUID, -1, cap=10),)))
    with pytest.raises(ContainerError, match=f"its cap cannot be kept: {MOST_PHASES} containers with a cap are there"):
        place.attach(process.pid)
    assert place.attachments.report(place.scheduler) == []
    for number in range(MOST_PHASES):
        place.scheduler.forget(number)
    place.attach(process.pid)
    assert len(place.attachments.report(place.scheduler)) == 1


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
    assert place.phases() == [(PERIOD_US, 0, PERIOD_US // 2)]
    (pids,) = (place.supervisors.pids(number) for number in place.supervisors._tenants)
    process.kill()
    process.wait()
    place.attachments.look(place.scheduler)
    assert (place.phases(), os.listdir(place.directory)) == ([], [])
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.root
def test_a_guarded_process_is_not_attached_however_it_is_named(tmp_path: Path, supervisors: Supervisors) -> None:
    attachments = OfContainer(supervisors, directory=str(tmp_path))
    for pid, container in ((os.getpid(), None), (None, "4f0c91d2a7b3")):
        with pytest.raises(InputError, match=f"process {os.getpid()} is of a container with a share"):
            asyncio.run(
                attachments.attach(Scheduler(attachments), pid, container, 0, "50%", guarded=frozenset((os.getpid(),)))
            )
