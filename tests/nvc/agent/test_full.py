"""A full /run: the agent and its tenants say so, and go on as soon as there is room."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.agent.container_state import ContainerProcess
from nvc.agent.journal import Journal
from nvc.agent.keeping import Keeping
from nvc.agent.notify import Systemd
from nvc.agent.registrations import Registrations
from nvc.agent.state.records import TENANTS, prepare
from nvc.agent.tenants import Tenants
from nvc.base.errors import AgentError
from nvc.bindings.guard import Guard
from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare
from tests.support import leftovers, registered
from tests.support.isolation import in_namespaces

pytestmark = pytest.mark.root

MAIN = "import sys; from nvc.cli.main import main; sys.exit(main(sys.argv[1:], 'nvc-py'))"
KEY = "c1"
GPU = ResolvedGpu("GPU-11111111-2222-3333-4444-555555555555", 0, 1 << 30)


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


@contextlib.contextmanager
def agents(
    place: Path, size: str
) -> Iterator[tuple[Callable[[Guard], Tenants], Keeping, list[dict[str, object]], Path]]:
    """What makes the tenants of a guard, as each agent does; what is kept between them; what they tell; where."""
    directory, shares, own = place / "agent", str(place / "share"), os.getpid()
    small(directory, f"size={size}")
    prepare(str(directory))
    limits = Limits((GPU,), (), "580.105.08", KEY)
    store.create(StoredShare(KEY, KEY, own, store.start_time(own)), limits, b"", directory=shares)
    told: list[dict[str, object]] = []
    journal = Journal(-1)
    journal.listen(told.append)
    keeping = Keeping(str(directory), Systemd({}))
    registered.register(Registrations(str(directory)), KEY, own)
    try:
        yield lambda guard: Tenants(guard, keeping, journal, str(directory), shares, []), keeping, told, directory
    finally:
        keeping.leave()


def with_tenants(place: Path, act: Callable[[Tenants, list[dict[str, object]], Path], None]) -> None:
    with agents(place, "64k") as (tenants, _, told, directory), Guard(str(place)) as guard:
        act(tenants(guard), told, directory)


def admit(tenants: Tenants) -> None:
    """A listener whose other end is gone: the read end of a pipe. Nothing is ended: we have no filter."""
    end, other = os.pipe()
    os.close(other)
    asyncio.run(tenants.admit(ContainerProcess(KEY, os.getpid(), os.getpid(), "creating", "nvc", "", 0), end))


def refused_and_then_not(tenants: Tenants, told: list[dict[str, object]], directory: Path) -> None:
    filler = fill(directory)
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        admit(tenants)
    assert [event["event"] for event in told] == ["refused"] * 3, told
    assert "no space left on device" in str(told[0]["message"])
    assert str(directory) in str(told[0]["message"])
    assert "room in /run" in str(told[0]["hint"])
    assert (len(tenants), os.listdir(directory / TENANTS)) == (0, [])
    assert len(os.listdir("/proc/self/fd")) == descriptors
    filler.unlink()
    admit(tenants)
    assert [event["event"] for event in told[3:]] == ["tenant", "listener"]


def test_a_container_is_refused_with_the_reason_and_the_next_is_not(tmp_path: Path) -> None:
    in_namespaces(with_tenants, tmp_path, refused_and_then_not, pid=True)


def ends_after_its_files(tenants: Tenants, told: list[dict[str, object]], directory: Path) -> None:
    admit(tenants)
    shutil.rmtree(directory / TENANTS)
    assert leftovers.until(lambda: looked(tenants) == 0, seconds=30)
    assert [event["event"] for event in told] == ["tenant", "listener", "gone"], told
    admit(tenants)
    assert told[-1]["event"] == "refused" and f"{TENANTS}/2.json: no such file" in str(told[-1]["message"])
    assert "restart nvc-agent" in str(told[-1]["hint"])


def taken_over_later(place: Path, size: str) -> None:
    own = os.getpid()
    listener, _other = os.pipe()
    with agents(place, size) as (tenants, keeping, told, directory):
        with Guard(str(place)) as guard:
            process = ContainerProcess(KEY, own, own, "creating", "nvc", "", 0)
            asyncio.run(tenants(guard).admit(process, listener))
        filler = fill(directory)
        with Guard(str(place)) as guard, pytest.raises(AgentError, match="no space left on device") as raised:
            tenants(guard).take_over(keeping.get())
        assert "make room in /run" in raised.value.hint
        filler.unlink()
        with Guard(str(place)) as guard:
            again = tenants(guard)
            again.take_over(keeping.get())
            assert len(again) == 1, told


@pytest.mark.parametrize("size", ["1m", "128k"])
def test_a_container_waits_for_an_agent_that_has_room_for_its_ledger(tmp_path: Path, size: str) -> None:
    # Its listener was closed instead: every call of it was answered ENOSYS from then on. Where little room was left,
    # the agent got SIGBUS from holes of the ledger before it.
    in_namespaces(taken_over_later, tmp_path, size, pid=True)


def looked(tenants: Tenants) -> int:
    tenants.look()
    return len(tenants)


def test_a_container_is_gone_also_where_its_files_were_removed(tmp_path: Path) -> None:
    # Half of it was done: the scheduler was not told, and kept its weight and cap.
    in_namespaces(with_tenants, tmp_path, ends_after_its_files, pid=True)


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
    ("inodes", "missing"), [(1, "tenants"), (2, "lock"), (3, "keeper.lock"), (4, "keeper"), (5, "listen")]
)
def test_an_agent_that_cannot_make_its_files_says_which(tmp_path: Path, inodes: int, missing: str) -> None:
    code, said = in_namespaces(agent, tmp_path, inodes, pid=True)
    assert code == 1
    keeper = "keeper: " if missing.startswith("keeper") else ""
    assert f"agent error: {keeper}{tmp_path}/agent/{missing}: no space left on device" in said, said
    assert ("must be writable and have room" if keeper else "hint: make room in /run") in said, said
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


def keeper() -> int:
    """The pid of the one in this pid namespace; 0: there is none. One that ended is there too: it is not reaped."""
    for name in os.listdir("/proc"):
        try:
            status = Path("/proc", name, "stat").read_text() if name.isdigit() else ""
        except OSError:
            continue
        if "(nvc-keeper)" in status and ") Z " not in status:
            return int(name)
    return 0


#: Sockets of a keeper's: its own, its agent's, and the two that it keeps.
HOLDS = 4


def holds() -> int:
    """How many sockets the keeper has; 0: there is none."""
    directory = Path("/proc", str(keeper()), "fd")
    try:
        return sum(os.readlink(directory / name).startswith("socket:") for name in os.listdir(directory))
    except OSError:
        return 0


def killed_keeper(place: Path) -> str:
    """What the agent said, whose keeper was killed twice with not a byte and not a file free."""
    directory = place / "agent"
    small(directory, "size=64k,nr_inodes=16")
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"proc", b"/proc", b"proc", 0, None) == 0
    process = subprocess.Popen(command(place), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = ""
    while '"ready"' not in lines:
        lines += process.stderr.readline()
    fill(directory)
    with pytest.raises(OSError, match="No space left"):
        for number in range(20):
            (directory / f"file{number}").touch()
    assert leftovers.until(lambda: holds() == HOLDS, seconds=40)
    for _ in range(2):
        before = keeper()
        os.kill(before, signal.SIGKILL)
        assert leftovers.until(lambda before=before: keeper() != before, seconds=40)  # type: ignore[misc]
        assert leftovers.until(lambda: holds() == HOLDS, seconds=40), "another one, with everything"
    process.terminate()
    lines += process.communicate(timeout=20)[1]
    assert process.returncode == 0, lines
    return lines


def test_a_keeper_that_is_killed_is_replaced_though_run_is_full(tmp_path: Path) -> None:
    said = in_namespaces(killed_keeper, tmp_path, pid=True)
    assert said.count('"keeper-gone"') == 2, said
    assert '"end"' in said, said
    assert "Traceback" not in said, said
