"""A container that ends by itself while it is admitted was not refused; one of which a process lives is."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.agent import arriving, ending
from nvc.agent.admission import Acceptors
from nvc.agent.connections import bind
from nvc.agent.part import Part
from nvc.base.errors import ContainerError
from nvc.guard.channel import HEAD, START, START_PACKET, Connection
from tests.nvc.agent.test_acceptor import Alone, alone
from tests.nvc.agent.test_admission import contained, directory, events, manager, tenants, words
from tests.nvc.agent.test_tenants import filtered, hung_up, left
from tests.support import leftovers, registered
from tests.support.admitted import AdmittedContainers
from tests.support.contained import Contained
from tests.support.service_manager import Manager

__all__ = ["alone", "contained", "directory", "manager"]
pytestmark = pytest.mark.root
#: Containers that end at once, one after the other.
ROUNDS = 40


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdmittedContainers]:
    monkeypatch.setattr(arriving, "ENTRY_SECONDS", 0.2)
    with AdmittedContainers(tmp_path) as made:
        yield made


def end(place: AdmittedContainers) -> None:
    """The container's first process ends, and its parent knows."""
    place.container.kill()
    place.container.wait()


class Ending(Part):
    """Something happens to a container that is about to become a tenant."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    async def arriving(self) -> None:
        self.act()


def acceptor(number: int) -> Connection:
    """Of which the other end is gone, so that what is sent to it gives this error."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if number == errno.ECONNRESET:
        ours.send(b"unread")
    theirs.close()
    return Connection(ours)


def admit(place: AdmittedContainers, connection: Connection, listener: int, **changes: object) -> None:
    asyncio.run(place.tenants.admit(place.process.replace(**changes), listener, connection))
    connection.close()
    assert len(place.tenants) == 0
    assert left(place) == []


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ECONNRESET])
@pytest.mark.parametrize("is_reaped", [True, False])
def test_one_whose_acceptor_went_with_it(place: AdmittedContainers, number: int, is_reaped: bool) -> None:
    """Its acceptor sees the end first: it is answered no more."""

    def ends() -> None:
        place.container.kill()
        if is_reaped:
            place.container.wait()
        else:
            os.waitid(os.P_PID, place.container.pid, os.WEXITED | os.WNOWAIT)

    place.tenants._parts.append(Ending(ends))
    admit(place, acceptor(number), hung_up())
    assert place.told == []


def test_one_that_its_monitor_does_not_find(place: AdmittedContainers) -> None:
    """ESRCH."""
    place.tenants._parts.append(Ending(lambda: end(place)))
    listener = hung_up()
    assert not place.admit(listener)
    os.close(listener)
    assert place.told == []


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_one_that_is_gone_before_it_is_looked_for(place: AdmittedContainers, is_forgotten: bool) -> None:
    """Its registration is that of no process."""
    end(place)
    if is_forgotten:
        place.tenants.registrations.prune()
        assert len(place.tenants.registrations) == 0
    admit(place, acceptor(errno.EPIPE), hung_up())
    assert place.told == []


def test_a_process_put_into_one_that_is_gone(place: AdmittedContainers) -> None:
    """Its container has neither an entry nor a registration by then."""
    end(place)
    admit(place, acceptor(errno.EPIPE), hung_up(), container="another", status="running")
    assert place.told == []


def test_one_whose_monitor_is_gone(place: AdmittedContainers) -> None:
    """A process was put into it: ECONNREFUSED."""
    listener, other = os.pipe()
    assert place.admit(listener)
    (tenant,) = place.tenants
    path = Path(place.directory, "tenants", str(tenant.number), "monitor")
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
        gone.bind(str(path))
    connection = acceptor(errno.EPIPE)
    asyncio.run(place.tenants.admit(place.process.replace(status="running"), hung_up(), connection))
    connection.close()
    assert place.events() == ["tenant"]
    for number in (listener, other):
        os.close(number)


def test_one_that_its_parent_has_not_waited_for(place: AdmittedContainers) -> None:
    """A zombie has a filter, too, and none ended it."""
    pid = filtered()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    admit(place, acceptor(errno.EPIPE), hung_up(), pid=pid)
    os.waitpid(pid, 0)
    assert place.told == []


def test_one_in_the_middle_of_its_end(place: AdmittedContainers) -> None:
    """Its filter goes before it does."""
    pid = filtered()
    admit(place, acceptor(errno.EPIPE), hung_up(), pid=pid)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert place.told == []


# --- what stays a refusal ---------------------------------------------------------------------------------------------


def refused(place: AdmittedContainers) -> dict[str, Any]:
    (told,) = place.told
    assert told["event"] == "refused"
    return told


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ECONNRESET])
def test_one_whose_acceptor_was_killed_is_ended(place: AdmittedContainers, number: int) -> None:
    listener, other = os.pipe()
    pid = filtered()
    admit(place, acceptor(number), listener, pid=pid)
    os.close(other)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert refused(place)["ended"] is True


@pytest.mark.parametrize("status", ["creating", "running"])
def test_one_of_which_a_child_lives(place: AdmittedContainers, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    """Attack: the first process ends, and what it started runs on with the filter. No end of a process hides that."""
    monkeypatch.setattr(ending, "HANG_UP_SECONDS", 0.1)
    listener, other = os.pipe()
    place.tenants._parts.append(Ending(lambda: end(place)))
    admit(place, acceptor(errno.EPIPE), listener, status=status)
    os.close(other)
    assert refused(place)["ended"] is False


class Full(Part):
    """Ends it, too."""

    def __init__(self, place: AdmittedContainers) -> None:
        self.place = place

    async def making_room(self, key: str, limits: object) -> None:
        end(self.place)
        raise ContainerError("GPU 0: it is full")


def test_one_that_is_refused_for_a_reason_of_its_own_and_ends(place: AdmittedContainers) -> None:
    place.tenants._parts.append(Full(place))
    admit(place, acceptor(errno.EPIPE), hung_up())
    assert "it is full" in refused(place)["message"]


def test_one_without_a_share_that_ends(place: AdmittedContainers) -> None:
    """It never had one."""
    registered.register(place.tenants.registrations, "another", place.container.pid)
    admit(place, acceptor(errno.EPIPE), hung_up(), container="another", pid=1, first=1)
    assert "another" in refused(place)["message"]


@pytest.mark.parametrize("ends", [True, False])
def test_one_whose_acceptor_was_killed_before_the_agent_looked(place: AdmittedContainers, ends: bool) -> None:
    """A process that its parent has not waited for is none that was ended."""
    pid = place.container.pid
    Path(place.directory, "pending", str(os.getpid())).write_text(f"{pid} {ending.start_time(pid)}\n")
    if ends:
        place.container.kill()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    acceptors = Acceptors(place.directory, place._journal)
    acceptors._end_pending()
    assert place.events() == ([] if ends else ["refused"])
    assert place.container.wait(20) == -signal.SIGKILL


# --- with agent, acceptor and listener --------------------------------------------------------------------------------


@pytest.mark.parametrize("has_ended", [True, False])
def test_an_acceptor_whose_supervisor_finds_no_process(
    alone: Alone, contained: Callable[..., Contained], has_ended: bool
) -> None:
    """The agent's answer and the end of the last process come at the same moment."""
    with bind(str(alone.directory / "admit"), socket.SOCK_SEQPACKET) as agent:
        made = contained()
        with agent.accept()[0] as asked:
            packet, *_ = asked.recvmsg(4096)
            assert packet
            os.kill(alone.process.pid, signal.SIGSTOP)
            stat = Path(f"/proc/{alone.process.pid}/stat")
            assert leftovers.until(lambda: stat.read_text().rpartition(") ")[2][0] == "T", seconds=20)
            if has_ended:
                made.end()
            start = START_PACKET.pack(START, 0, 1, made.pid, 1 << 30, 0, 1, b"/dev", b"")
            with open(os.devnull, "rb") as nothing:
                socket.send_fds(asked, [start], [nothing.fileno()] * 2)
            os.kill(alone.process.pid, signal.SIGCONT)
            assert HEAD.unpack(asked.recv(4096)[: HEAD.size])[1] == -errno.ESRCH
        assert alone.process.wait(20) == 1
    told = [one["message"] for one in alone.events() if one["event"] == "refused"]
    assert told == ([] if has_ended else ["its supervisor did not start"])
    if not has_ended:
        assert made.process.wait(20) == -signal.SIGKILL


def test_containers_that_end_at_once(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    """Every few of them was "refused" with a broken pipe, by the agent or by its acceptor."""
    manager.start(*words(directory))
    for number in range(ROUNDS):
        key = f"c{number}"
        registered.ask(directory / "control", key)
        made = contained(id=key)
        made.enter(tmp_path / "share", key)
        time.sleep(number % 10 / 1000)
        made.end()
    assert leftovers.until(lambda: tenants(directory) == [], seconds=30)
    assert leftovers.until(lambda: os.listdir(directory / "pending") == [], seconds=30)
    assert [one["message"] for one in events(manager, "refused")] == []
