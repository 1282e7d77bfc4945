"""Containers on cgroup version 1, or before Linux 5.14: what is below their own cgroup, and what has its path later."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.agent import ending
from nvc.agent.admission import Acceptors
from nvc.agent.journal import Journal
from nvc.agent.state.records import TenantRecord
from nvc.guard.supervisors import Supervisors
from nvc.share.store import start_time
from tests.nvc.agent.test_acceptor import Alone, alone, contained, directory
from tests.nvc.guard.test_supervisors import SHARE, devices
from tests.support import leftovers
from tests.support.contained import Contained
from tests.system.test_supervisor import lie, watchdog

__all__ = ["alone", "contained", "devices", "directory"]
ROOT = Path("/sys/fs/cgroup/freezer")
pytestmark = [pytest.mark.root, pytest.mark.skipif(not ROOT.is_dir(), reason="no hierarchy of version 1")]

Sleep = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def cgroup(tmp_path: Path) -> Iterator[Path]:
    """The freezer's cgroup of a container."""
    made = ROOT / f"nvc-test-{os.getpid()}-{tmp_path.name[-3:]}"
    made.mkdir()
    yield made
    for place in (made / "below/further", made / "below", made):
        with contextlib.suppress(FileNotFoundError):
            assert leftovers.until(lambda: _remove(place), seconds=20)  # noqa: B023


def _remove(place: Path) -> bool:
    with contextlib.suppress(OSError):
        place.rmdir()
    return not place.exists()


@pytest.fixture
def sleep(cgroup: Path) -> Iterator[Sleep]:
    """A process with mounts of its own, in this cgroup at or below the container's."""
    made: list[subprocess.Popen[bytes]] = []

    def start(below: str) -> subprocess.Popen[bytes]:
        (cgroup / below).mkdir(parents=True, exist_ok=True)
        made.append(subprocess.Popen(["unshare", "--mount", "sleep", "300"]))
        pid = made[-1].pid
        assert leftovers.until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", seconds=20)
        (cgroup / below / "cgroup.procs").write_text(str(pid))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.wait()


def test_what_is_below_its_cgroup_ends_with_it(tmp_path: Path, devices: str, cgroup: Path, sleep: Sleep) -> None:
    first = sleep("")
    with Supervisors(devices, str(tmp_path)) as made:
        made.add(1, SHARE, 1, first=(first.pid, start_time(first.pid)))
        others = sleep("below"), sleep("below/further")
        os.kill(made.pids(1)[1], signal.SIGKILL)
        assert [one.wait(20) for one in (first, *others)] == [-signal.SIGKILL] * 3


def test_it_ends_by_the_agent_where_its_guard_is_gone(tmp_path: Path, devices: str, cgroup: Path, sleep: Sleep) -> None:
    first = sleep("")
    with Supervisors(devices, str(tmp_path)) as made:
        made.add(1, SHARE, 1, first=(first.pid, start_time(first.pid)))
        others = sleep(""), sleep("below")
        victims = {*made.pids(1), watchdog(made.pids(1)[0])}
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        assert ending.end(str(tmp_path), TenantRecord(1, "c", "c", first.pid, start_time(first.pid), 1.5))
        assert [one.wait(20) for one in (first, *others)] == [-signal.SIGKILL] * 3


def test_a_later_cgroup_of_its_path_is_another_container_s(
    tmp_path: Path, devices: str, cgroup: Path, sleep: Sleep
) -> None:
    first = sleep("")
    with Supervisors(devices, str(tmp_path)) as made:
        made.add(1, SHARE, 1, first=(first.pid, start_time(first.pid)))
        _, supervisor = made.pids(1)
        first.kill()
        first.wait()
        assert leftovers.until(lambda: _remove(cgroup), seconds=20)
        stranger = sleep("")
        os.kill(supervisor, signal.SIGSTOP)
        lie(supervisor, stranger.pid)
        os.kill(supervisor, signal.SIGKILL)
        assert leftovers.until(lambda: made.lost() == [1], seconds=20), "it has ended what it ends"
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(0.3)


def test_what_is_in_the_cgroup_of_a_killed_acceptor_s_container_is_ended(
    alone: Alone, contained: Callable[..., Contained], cgroup: Path, sleep: Sleep
) -> None:
    """Children of its first process without a pid namespace ran on, with calls that answer ENOSYS."""
    os.kill(alone.process.pid, signal.SIGSTOP)
    first = contained()
    (cgroup / "cgroup.procs").write_text(str(first.pid))
    os.kill(alone.process.pid, signal.SIGCONT)
    pending = alone.directory / f"pending/{alone.process.pid}"
    assert leftovers.until(lambda: pending.exists() and len(pending.read_text().splitlines()) == 2, seconds=20)
    child = sleep("")
    told: list[dict[str, object]] = []
    journal = Journal(-1)
    journal.listen(told.append)
    acceptors = Acceptors(str(alone.directory), journal)
    alone.process.kill()
    alone.process.wait(20)
    acceptors.look()
    assert [first.process.wait(20), child.wait(20)] == [-signal.SIGKILL] * 2
    assert [event["pid"] for event in told if event["event"] == "refused"] == [first.pid]
    acceptors.close()
