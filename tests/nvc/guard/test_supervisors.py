"""Monitors and supervisors of tenants, as the agent starts, finds and ends them: the real programs, no containers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc import __version__
from nvc.agent.tenants import LISTENERS
from nvc.guard import channel
from nvc.guard.channel import HEAD, connect
from nvc.guard.supervisors import Supervisors
from nvc.share import limits
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import start_time
from tests.support import leftovers
from tests.support.firsts import FirstProcess
from tests.support.native import build
from tests.support.opened import opened

pytestmark = pytest.mark.root

#: Starts another container's first process: its pid and start time.
Firsts = Callable[[], tuple[int, int]]

GPU = ResolvedGpu("GPU-11111111-2222-3333-4444-555555555555", 0, 1 << 30)


def share(driver: str = "580.105.08", **fields: object) -> bytes:
    return limits.encode(Limits((GPU.replace(**fields),), (), driver, "test"))


SHARE, LESS = share(), share(memory=1 << 29)


@pytest.fixture
def devices(tmp_path: Path) -> str:
    """A directory without the driver's nodes: no call of the driver is made here."""
    build("nvc-monitor", "nvc-supervisor")
    made = tmp_path / "dev"
    made.mkdir()
    return str(made)


@pytest.fixture
def alone(devices: str) -> Iterator[Supervisors]:
    """Without a directory: its tenants end with it."""
    with Supervisors(devices) as made:
        yield made


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    """Whose tenants are ended at the end."""
    made = tmp_path / "agent"
    made.mkdir()
    yield str(made)
    for place in made.glob("tenants/*/monitor"):
        with connect(str(place)) as left:
            left.send(HEAD.pack(channel.REMOVE, 0))
            left.recv(100)


@pytest.fixture
def first() -> Iterator[subprocess.Popen[bytes]]:
    """A container's first process, with another beside it: pid 1 of a pid namespace."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "sleep 300 & sleep 301"]
    with subprocess.Popen(words, start_new_session=True) as made:
        yield made
        made.kill()


@pytest.fixture
def firsts() -> Iterator[Firsts]:
    made: list[FirstProcess] = []

    def start() -> tuple[int, int]:
        made.append(FirstProcess())
        return made[-1].key

    yield start
    for one in made:
        one.close()


def start(devices: str, directory: str, number: int, first: tuple[int, int]) -> tuple[int, int]:
    """A tenant of a process that is gone when this returns: its monitor's and supervisor's pids."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            guard = Supervisors(devices, directory)
            guard.add(number, SHARE, 1, first=first)
            os.write(tell, b"%d %d" % guard.pids(number))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(tell)
    os.waitpid(child, 0)
    with open(told, "rb") as file:
        monitor, supervisor = map(int, file.read().split())
    return monitor, supervisor


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []


def of_container(first: subprocess.Popen[bytes]) -> list[int]:
    """The pids of its three processes, its pid 1 first."""
    assert leftovers.until(lambda: len(children(first.pid)) == 1, seconds=20)
    (own,) = children(first.pid)
    assert leftovers.until(lambda: len(children(own)) == 2, seconds=20)
    return [own, *children(own)]


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def end(pids: list[int]) -> bool:
    return leftovers.until(lambda: all(map(has_ended, pids)), seconds=20)


def test_a_tenant_has_three_processes_until_it_is_removed(alone: Supervisors, firsts: Firsts) -> None:
    first = firsts()
    before = len(os.listdir("/proc/self/fd"))
    alone.add(1, SHARE, 1, first=first)
    pids = alone.pids(1)
    assert [Path(f"/proc/{pid}/comm").read_text() for pid in pids] == ["nvc-monitor\n", "nvc-supervisor\n"]
    (watchdog,) = set(children(pids[0])) - {pids[1]}
    name = Path(f"/proc/{watchdog}/comm")
    assert leftovers.until(lambda: name.read_text() == "nvc-watchdog\n", seconds=20)
    pids = (*pids, watchdog)
    status = alone.status(1)
    assert (len(status.gpus), status.processes, status.listeners, alone.processes(1)) == (1, 0, 0, ())
    assert alone.lost() == [] and alone.limits(1) == SHARE and alone.build(1) == __version__
    with pytest.raises(OSError, match="tenant 1 is there already"):
        alone.add(1, SHARE, 1, first=first)
    alone.remove(1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "all have ended, and are waited for"
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(OSError, match="tenant 1 is not known"):
        alone.status(1)


def test_two_tenants_share_no_process_and_no_file(alone: Supervisors, firsts: Firsts) -> None:
    for number in (1, 2):
        alone.add(number, SHARE, 1, first=firsts())
    pids = [*alone.pids(1), *alone.pids(2)]
    assert len({*pids}) == 4
    found = [[file for pid in alone.pids(number) for file in opened(pid).values()] for number in (1, 2)]
    both = set.intersection(*({file.name for file in one if "anon_inode:" not in file.name} for one in found))
    # Counters of each are a memfd of the same name.
    assert both == {"/memfd:nvc-contention (deleted)", "/memfd:nvc-counters (deleted)"}
    contention = {file.flags[-1] for one in found for file in one if "nvc-contention" in file.name}
    assert contention == {"0"}, "for reading"
    inodes = [{file.inode for file in one if "nvc-counters" in file.name} for one in found]
    assert [len(one) for one in inodes] == [1, 1] and inodes[0] != inodes[1]
    os.kill(alone.pids(1)[1], signal.SIGKILL)
    assert end(pids[:2])
    assert not has_ended(pids[2]) and not has_ended(pids[3])
    assert alone.lost() == [1]
    alone.refresh(2)


def test_a_driver_that_is_not_known_is_refused(alone: Supervisors, firsts: Firsts) -> None:
    first = firsts()
    before = children(os.getpid()), len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError) as raised:
        alone.add(1, share("100.1"), 1, first=first)
    assert raised.value.errno == errno.EOPNOTSUPP
    assert (children(os.getpid()), len(os.listdir("/proc/self/fd"))) == before
    alone.add(1, SHARE, 1, first=first)


def test_a_container_that_has_ended_or_has_no_first_process_is_refused(
    alone: Supervisors, first: subprocess.Popen[bytes]
) -> None:
    (own, *_) = of_container(first)
    # Without one every mount was taken for the container's.
    for key in ((own, start_time(own) + 1), (0, 0), (-1, 0)):
        with pytest.raises(OSError) as raised:
            alone.add(1, SHARE, 1, first=key)
        assert raised.value.errno == errno.ESRCH


def test_a_change_is_in_force_soon(alone: Supervisors, firsts: Firsts) -> None:
    alone.add(1, SHARE, 1, first=firsts())

    def is_in_force() -> bool:
        try:
            alone.update(1, LESS)
        except OSError as error:
            assert error.errno == errno.EBUSY
            return False
        return True

    assert leftovers.until(is_in_force, seconds=20)
    assert alone.limits(1) == LESS
    alone.slice(1, 0, 1500)
    assert leftovers.until(lambda: alone.status(1).gpus[0].slice == 1500, seconds=20)
    alone.freeze(1, 0, True)
    assert leftovers.until(lambda: alone.status(1).gpus[0].frozen, seconds=20)
    alone.freeze(1, 0, False)
    assert leftovers.until(lambda: not alone.status(1).gpus[0].frozen, seconds=20)
    alone.phase(1, 0, 100_000, 0, 1)
    assert leftovers.until(lambda: alone.status(1).gpus[0].frozen, seconds=20)
    alone.phase(1, 0, 0, 0, 0)
    assert leftovers.until(lambda: not alone.status(1).gpus[0].frozen, seconds=20)
    assert alone.status(1).gpus[0].frozen_ns == 0, "it had no group that could have been kept off"


def test_other_limits_of_other_gpus_are_not_taken(alone: Supervisors, firsts: Firsts) -> None:
    alone.add(1, SHARE, 1, first=firsts())
    both = limits.encode(Limits((GPU, GPU.replace(uuid=GPU.uuid[:-1] + "6")), (), "580.105.08", "test"))
    with pytest.raises(OSError) as raised:
        alone.update(1, both)
    assert raised.value.errno == errno.EBUSY
    alone.refresh(1)
    assert alone.lost() == []
    # The next plan that can be taken is.
    assert leftovers.until(lambda: taken(alone, LESS), seconds=20)


def taken(guard: Supervisors, wanted: bytes) -> bool:
    try:
        guard.update(1, wanted)
    except OSError:
        return False
    return True


def test_listeners_are_taken_until_there_are_too_many(alone: Supervisors, firsts: Firsts) -> None:
    alone.add(1, SHARE, 1, first=firsts())
    assert not alone.gone(1), "its first listener is still to come"
    ends = [os.pipe() for _ in range(LISTENERS + 1)]
    for listener, _ in ends[:LISTENERS]:
        alone.listen(1, listener)
    alone.refresh(1)
    assert alone.status(1).listeners == LISTENERS
    with pytest.raises(OSError) as raised:
        alone.listen(1, ends[LISTENERS][0])
    assert raised.value.errno == errno.EMFILE
    os.close(ends[0][1])  # its processes have ended
    assert leftovers.until(lambda: alone.status(1).listeners == LISTENERS - 1, seconds=20)
    alone.listen(1, ends[LISTENERS][0])
    for _, other in ends[1:]:
        os.close(other)
    assert leftovers.until(lambda: alone.gone(1), seconds=20)
    for listener, _ in ends:
        os.close(listener)


@pytest.mark.parametrize("victim", [0, 1], ids=["monitor", "supervisor"])
def test_with_either_process_the_container_ends(
    alone: Supervisors, first: subprocess.Popen[bytes], firsts: Firsts, victim: int
) -> None:
    container = of_container(first)
    alone.add(1, SHARE, 1, first=(container[0], start_time(container[0])))
    alone.add(2, SHARE, 1, first=firsts())
    pids = alone.pids(1)
    os.kill(pids[victim], signal.SIGKILL)
    assert end(container), "every process of it, with pid 1 of its namespace"
    assert end([*pids])
    assert alone.lost() == [1]
    alone.refresh(2)


def test_without_a_directory_tenants_end_with_the_process_that_started_them(devices: str, firsts: Firsts) -> None:
    assert end([*start(devices, "", 1, firsts())])


def test_a_tenant_outlives_its_agent_and_is_found_again(
    devices: str, directory: str, first: subprocess.Popen[bytes]
) -> None:
    container = of_container(first)
    pids = start(devices, directory, 3, (container[0], start_time(container[0])))
    with Supervisors(devices, directory) as after:
        assert after.find_again(3) == SHARE
        assert after.pids(3) == pids
        after.slice(3, 0, 1500)
        assert leftovers.until(lambda: after.status(3).gpus[0].slice == 1500, seconds=20)
        assert leftovers.until(lambda: updated(after), seconds=20)
    assert not any(map(has_ended, [*pids, *container]))
    with Supervisors(devices, directory) as last:
        assert last.find_again(3) == LESS
        os.kill(pids[0], signal.SIGKILL)
        assert end([*pids, *container]), "a supervisor whose monitor died ends the container"
        assert last.lost() == [3]
    with Supervisors(devices, directory) as none:
        with pytest.raises(ConnectionRefusedError):
            none.find_again(3)
        with pytest.raises(FileNotFoundError):
            none.find_again(4)
    os.unlink(f"{directory}/tenants/3/monitor")


def updated(guard: Supervisors) -> bool:
    try:
        guard.update(3, LESS)
    except OSError:
        return False
    return True


def test_a_tenant_without_an_agent_ends_when_nothing_of_it_is_left(
    devices: str, directory: str, firsts: Firsts
) -> None:
    listener, other = os.pipe()
    pids = start(devices, directory, 1, firsts())
    with Supervisors(devices, directory) as guard:
        guard.find_again(1)
        guard.listen(1, listener)
    os.close(listener)
    time.sleep(2.5)  # longer than the monitor waits before it looks
    assert not any(map(has_ended, pids))
    os.close(other)
    assert end([*pids])
    assert not os.path.exists(f"{directory}/tenants/1/monitor")


def test_a_publishing_and_a_lost_monitor_are_told_once(alone: Supervisors, firsts: Firsts) -> None:
    for number in (1, 2):
        alone.add(number, SHARE, 1, first=firsts())
    news, others = alone.publications.reader(), alone.publications.reader()
    assert news.take() == {1, 2}
    for _ in range(3):
        alone.refresh(2)
    assert news.take() == set(), "nothing of it is another than before"
    assert not alone.status(2).gpus[0].frozen
    alone.freeze(2, 0, True)
    assert leftovers.until(lambda: news.take() == {2}, seconds=20)
    assert others.take() == {1, 2}, "each reader hears of all"
    assert alone.lost() == []
    os.kill(alone.pids(1)[0], signal.SIGKILL)
    assert leftovers.until(lambda: alone.lost() == [1], seconds=20)
    assert alone.lost() == []
    taken = alone.take(2)
    assert alone.lost() == [] and 2 not in news.take()
    taken.begin_end()
    taken.end()
    assert not Path(f"/proc/{taken.supervisor}").exists()
    with pytest.raises(OSError, match="tenant 2 is not known"):
        alone.status(2)
