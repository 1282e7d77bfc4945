"""Ending a container whose monitor and supervisor are gone: its processes, and no other's."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.agent import ending
from nvc.agent.state import records
from nvc.agent.state.records import TenantRecord
from nvc.share.store import start_time

GONE = TenantRecord(1, "c", "c", 0, 0, 1.5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "agent"
    records.prepare(str(made))
    (made / "tenants/1").mkdir()
    return made


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as made:
        yield made
        made.kill()


@pytest.fixture
def kill(tmp_path: Path) -> Path:
    """A cgroup.kill of a cgroup that has a process."""
    made = tmp_path / "cgroup"
    made.mkdir()
    (made / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (made / "cgroup.kill").touch()
    return made / "cgroup.kill"


def test_the_first_process_is_ended(directory: Path, process: subprocess.Popen[bytes]) -> None:
    record = GONE.replace(pid=process.pid, start_time=start_time(process.pid))
    assert ending.end(str(directory), record)
    assert process.wait(20) == -signal.SIGKILL
    assert not ending.end(str(directory), record), "none is left"


def test_a_process_that_got_its_number_goes_on(directory: Path, process: subprocess.Popen[bytes]) -> None:
    assert not ending.end(str(directory), GONE.replace(pid=process.pid, start_time=start_time(process.pid) - 1))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)


def test_its_own_cgroup_is_ended(directory: Path, kill: Path) -> None:
    (directory / "tenants/1/cgroup").write_text(f"{kill.stat().st_ino} {kill}\n")
    assert ending.end(str(directory), GONE)
    assert kill.read_text() == "1"


@pytest.mark.parametrize(
    "written", ["", "\n", "x {path}\n", "{other} {path}\n", "{inode}\n", "{inode} /nowhere/kill\n"]
)
def test_another_cgroup_is_not(directory: Path, kill: Path, written: str) -> None:
    inode = kill.stat().st_ino
    (directory / "tenants/1/cgroup").write_text(written.format(inode=inode, other=inode + 1, path=kill))
    assert not ending.end(str(directory), GONE)
    assert kill.read_text() == ""


def test_a_cgroup_without_processes_was_none_that_had_to_be_ended(directory: Path, kill: Path) -> None:
    (directory / "tenants/1/cgroup").write_text(f"{kill.stat().st_ino} {kill}\n")
    kill.with_name("cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert not ending.end(str(directory), GONE)
