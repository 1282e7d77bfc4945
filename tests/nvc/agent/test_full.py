"""A full /run: the agent and its tenants say so, and go on as soon as there is room."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.agent import cgroups
from nvc.agent.state.records import CONTAINERS, TENANTS, prepare
from tests.support import leftovers
from tests.support.acceptors import acceptor, successors, watchdogs
from tests.support.admitted import AdmittedContainers
from tests.support.isolation import in_namespaces
from tests.support.native import build

pytestmark = pytest.mark.root

MAIN = "import sys; from nvc.cli.main import main; sys.exit(main(sys.argv[1:], 'nvc-py'))"


def small(directory: Path, options: str) -> None:
    """A small tmpfs there."""
    directory.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"none", str(directory).encode(), b"tmpfs", 0, f"mode=711,{options}".encode()) == 0


def fill(directory: Path) -> Path:
    """Take every byte of it. The file that does so."""
    path = directory / "filler"
    with open(path, "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    return path


def with_containers(place: Path, act: Callable[[AdmittedContainers, Path], None]) -> None:
    small(place / "agent", "size=128k")
    with AdmittedContainers(place) as containers:
        act(containers, place / "agent")


def admit(containers: AdmittedContainers) -> bool:
    """A listener whose other end is gone. Nothing is ended: no process has a filter."""
    end, other = os.pipe()
    os.close(other)
    try:
        return containers.admit(end)
    finally:
        os.close(end)


def refused_and_then_not(containers: AdmittedContainers, directory: Path) -> None:
    filler = fill(directory)
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert not admit(containers)
    assert containers.events() == ["refused"] * 3, containers.told
    told = containers.told[0]
    assert "no space left on device" in str(told["message"])
    assert str(directory) in str(told["message"])
    assert "room in /run" in str(told["hint"])
    assert [os.listdir(directory / name) for name in (TENANTS, CONTAINERS)] == [[], []]
    assert (len(containers.tenants), len(os.listdir("/proc/self/fd"))) == (0, files)
    filler.unlink()
    assert admit(containers)
    assert containers.events()[3:] == ["tenant"]


def test_a_container_is_refused_with_the_reason_and_the_next_is_not(tmp_path: Path) -> None:
    in_namespaces(with_containers, tmp_path, refused_and_then_not, pid=True)


def without_room_for_its_plan(containers: AdmittedContainers, directory: Path) -> None:
    filler = fill(directory)
    os.truncate(filler, os.stat(filler).st_size - 12288)
    assert not admit(containers)
    assert containers.events() == ["refused"], containers.told
    assert "No space left on device" in str(containers.told[0]["message"])
    assert [os.listdir(directory / name) for name in (TENANTS, CONTAINERS)] == [[], []]
    filler.unlink()
    assert admit(containers)


def test_a_container_without_room_for_its_plan_leaves_nothing(tmp_path: Path) -> None:
    in_namespaces(with_containers, tmp_path, without_room_for_its_plan, pid=True)


def ends_after_its_files(containers: AdmittedContainers, directory: Path) -> None:
    assert admit(containers)
    shutil.rmtree(directory / TENANTS)
    assert containers.are_gone()
    assert containers.events() == ["tenant", "gone"], containers.told
    assert not admit(containers)
    told = containers.told[-1]
    assert told["event"] == "refused" and f"{TENANTS}/2.json: no such file" in str(told["message"])
    assert "restart nvc-agent" in str(told["hint"])


def test_a_container_is_gone_also_where_its_files_were_removed(tmp_path: Path) -> None:
    # Half of it was done: the scheduler was not told, and kept its weight and cap.
    in_namespaces(with_containers, tmp_path, ends_after_its_files, pid=True)


def taken_over_and_changed(containers: AdmittedContainers, directory: Path) -> None:
    listener, other = os.pipe()
    assert containers.admit(listener)
    fill(directory)
    again = containers.agent()
    again.take_over()
    (tenant,) = again
    containers.set(memory=1 << 29)
    assert leftovers.until(lambda: containers.tenants.refresh(tenant), seconds=20)
    assert containers.events() == ["tenant", "tenant", "limits"], containers.told
    for number in (listener, other):
        os.close(number)


def test_tenants_are_found_and_changed_without_room(tmp_path: Path) -> None:
    in_namespaces(with_containers, tmp_path, taken_over_and_changed, pid=True)


def agent(place: Path, inodes: int) -> tuple[int, str]:
    directory = place / "agent"
    small(directory, f"nr_inodes={inodes}")
    return started(place)


def command(place: Path) -> list[str]:
    words = ("agent", "--directory", str(place / "agent"), "--store", str(place / "share"))
    return [sys.executable, "-c", MAIN, *words]


def started(place: Path) -> tuple[int, str]:
    """Exit code and stderr."""
    done = subprocess.run(command(place), capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("inodes", "missing"),
    [
        *((1, "tenants"), (2, "containers"), (3, "pending"), (4, "lock"), (5, "contention"), (6, "control")),
        *((7, "admit"), (8, "registrations"), (9, "registrations"), (10, "accept.lock"), (11, "listen")),
    ],
)
def test_an_agent_that_cannot_make_its_files_says_which(tmp_path: Path, inodes: int, missing: str) -> None:
    build("nvc-monitor", "nvc-supervisor")
    probe = tmp_path / "probe"
    probe.mkdir()
    cgroups.prepare(str(probe))
    if inodes > 8:  # with one link to a tree of cgroups; a machine has none, one or two
        inodes += len(list(probe.glob("cgroups*"))) - 1
    cgroups.remove(str(probe))
    code, said = in_namespaces(agent, tmp_path, inodes, pid=True)
    assert code == 1
    assert f" error: {tmp_path}/agent/{missing}: no space left on device" in said, said
    assert "hint: make room in /run" in said, said
    assert "internal" not in said and "Traceback" not in said, said


def read_only(place: Path) -> tuple[int, str]:
    directory = place / "agent"
    small(directory, "size=64k")
    prepare(str(directory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"none", str(directory).encode(), None, 0x21, None) == 0  # MS_REMOUNT | MS_RDONLY
    return started(place)


def test_an_agent_whose_directory_cannot_be_written_says_so(tmp_path: Path) -> None:
    code, said = in_namespaces(read_only, tmp_path, pid=True)
    assert code == 1
    assert f"agent error: {tmp_path}/agent/lock: read-only file system" in said, said
    assert "hint: the agent's directory must be writable" in said, said
    assert "Traceback" not in said, said


def killed_acceptor(place: Path) -> str:
    """What the agent said. Its acceptor was killed twice, with what would replace it; no byte and no file was free."""
    directory = place / "agent"
    small(directory, "size=64k,nr_inodes=16")
    process = subprocess.Popen(command(place), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = ""
    while '"ready"' not in lines:
        lines += process.stderr.readline()
    assert leftovers.until(lambda: acceptor(directory)[0] != 0, seconds=20)
    fill(directory)
    with pytest.raises(OSError, match="No space left"):
        for number in range(20):
            (directory / f"file{number}").touch()
    for _ in range(2):
        assert leftovers.until(lambda: successors(str(directory)) != [], seconds=20)
        before = acceptor(directory)
        os.kill(before[0], signal.SIGSTOP)  # or it makes another successor
        for pid in [*successors(str(directory)), *watchdogs(str(directory)), before[0]]:
            os.kill(pid, signal.SIGKILL)
        assert leftovers.until(lambda: acceptor(directory)[0] not in (0, before[0]), seconds=20)  # noqa: B023
        assert acceptor(directory)[1] == before[1], "of the same socket"
    process.terminate()
    lines += process.communicate(timeout=20)[1]
    assert process.returncode == 0, lines
    assert acceptor(directory) == (0, 0)
    return lines


def test_an_acceptor_that_is_killed_is_replaced_though_run_is_full(tmp_path: Path) -> None:
    build("nvc-monitor", "nvc-supervisor")
    said = in_namespaces(killed_acceptor, tmp_path, pid=True)
    assert said.count('"acceptor"') == 3, said
    assert '"end"' in said, said
    assert "Traceback" not in said, said
