"""Listeners on their way: from a runtime over an acceptor to a monitor, with an agent and without one."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.agent import status
from nvc.agent.admission import AdmissionSocket, bind
from nvc.agent.container_state import ContainerProcess
from nvc.agent.journal import Journal
from nvc.agent.state.records import prepare
from nvc.base.errors import NvcError
from nvc.guard import channel
from nvc.guard.channel import ADMISSION, ADMIT, HEAD, Connection, connect
from nvc.guard.protocol import Client
from tests.support import leftovers, registered
from tests.support.acceptors import acceptor, end_acceptor, processes
from tests.support.contained import KEY, Contained
from tests.support.native import build
from tests.support.service_manager import Manager

pytestmark = pytest.mark.root


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """An agent's, where nothing runs at the end."""
    build("nvc-monitor", "nvc-supervisor")
    made = tmp_path / "agent"
    prepare(str(made))
    yield made
    end_acceptor(made)
    assert leftovers.until(lambda: not processes("nvc-monitor", str(made)), seconds=20), "a monitor is left"


@pytest.fixture
def contained(tmp_path: Path) -> Iterator[Callable[..., Contained]]:
    made: list[Contained] = []

    def start(*arguments: Any, **changes: Any) -> Contained:
        made.append(Contained(tmp_path, *arguments, **changes))
        return made[-1]

    yield start
    for one in made:
        one.end()


@pytest.fixture
def manager(tmp_path: Path, directory: Path) -> Iterator[Manager]:
    (tmp_path / "manager").mkdir()
    with Manager(tmp_path / "manager", directory, ("listen", "control")) as made:
        yield made
    assert made.told.count("STOPPING=1") == 1


def words(directory: Path) -> list[str]:
    return ["agent", "--directory", str(directory), "--store", str(directory.parent / "share")]


def tenants(directory: Path) -> list[str]:
    with Client(str(directory / "control")) as client:
        return [one.container for one in status.ask(client).tenants]


def events(manager: Manager, event: str) -> list[dict[str, Any]]:
    """Of agents, acceptors and monitors."""
    lines = manager.log.read_text().splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
    return [one for one in found if one["event"] == event]


def logged(manager: Manager, event: str, number: int) -> list[dict[str, Any]]:
    """So many events, no more. A process ends or continues before the line about it is written."""
    leftovers.until(lambda: len(events(manager, event)) >= number, seconds=20)
    found = events(manager, event)
    assert len(found) == number, manager.log.read_text()
    return found


def supervisor(manager: Manager) -> int:
    """The pid of the only tenant's."""
    return int(logged(manager, "monitor", 1)[0]["supervisor"])


def test_a_container_runs_on_without_an_agent_and_takes_new_processes(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    tenant = contained()
    tenant.enter(tmp_path / "share")
    assert tenant.maps(), manager.log.read_text()
    for _ in range(2):
        manager.kill()
        assert tenant.maps(), "no agent is there"
        executed = contained(tenant.pid, "running")
        assert executed.maps(), manager.log.read_text()
        executed.end()
        manager.start(*words(directory))
        assert tenants(directory) == [KEY]
        assert tenant.maps()
    # One of an earlier container of this name is not the tenant's.
    stale = contained(1, "running")
    assert stale.process.wait(20) == -signal.SIGKILL
    assert logged(manager, "refused", 1)[0]["container"] == KEY
    logged(manager, "monitor", 1)
    assert [one["error"] for one in logged(manager, "listener", 3)] == [0] * 3
    pid = supervisor(manager)
    tenant.end()
    assert leftovers.until(lambda: not tenants(directory), seconds=30)
    assert leftovers.until(lambda: not Path(f"/proc/{pid}").exists(), seconds=20)
    assert os.listdir(directory / "tenants") == []


def test_a_container_that_ended_without_an_agent_leaves_no_process(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    tenant = contained()
    tenant.enter(tmp_path / "share")
    assert tenant.maps(), manager.log.read_text()
    pid = supervisor(manager)
    manager.kill()
    tenant.end()
    assert leftovers.until(lambda: not Path(f"/proc/{pid}").exists(), seconds=30)
    manager.start(*words(directory))
    assert (tenants(directory), os.listdir(directory / "tenants")) == ([], [])
    assert events(manager, "supervisor-died") == [], "nothing was left that had to be ended"


def test_a_listener_on_its_way_is_not_lost_with_an_agent(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    tenant = contained()
    # The runtime is gone, the hook is slow: the agent waits for the share.
    tenant.say()
    for _ in range(2):
        time.sleep(0.3)
        manager.kill()
        manager.start(*words(directory))
    time.sleep(0.3)
    manager.kill()
    tenant.enter(tmp_path / "share")
    manager.start(*words(directory))
    assert tenant.answer() == "mapped\n", manager.log.read_text()
    assert supervisor(manager)
    assert tenants(directory) == [KEY]


def test_a_listener_that_comes_without_an_agent_waits_for_one(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    manager.kill()
    tenant = contained()
    tenant.enter(tmp_path / "share")
    tenant.say()
    assert tenant.answer(0.5) == ""
    manager.start(*words(directory))
    assert tenant.answer() == "mapped\n", manager.log.read_text()


def test_a_container_that_starts_while_the_agent_is_stopped_is_guarded(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    """For longer than any time that the agent itself gives a listener (ENTRY_SECONDS)."""
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    assert manager.process is not None
    stopped = manager.process.pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        tenant = contained()
        tenant.enter(tmp_path / "share")
        tenant.say()
        assert tenant.answer(3.5) == "", "neither ENOSYS nor anything else"
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert tenant.answer() == "mapped\n", manager.log.read_text()
    assert tenants(directory) == [KEY]


def test_a_supervisor_that_hangs_delays_no_other_container(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    manager.start(*words(directory))
    for key in (KEY, "c2"):
        registered.ask(directory / "control", key)
    tenant = contained()
    tenant.enter(tmp_path / "share")
    assert tenant.maps(), manager.log.read_text()
    hung = supervisor(manager)
    os.kill(hung, signal.SIGSTOP)
    try:
        contained(tenant.pid, "running")
        begin = time.monotonic()
        other = contained(id="c2")
        other.enter(tmp_path / "share", "c2")
        assert other.maps(), manager.log.read_text()
        assert len(tenants(directory)) == 2
        took = time.monotonic() - begin
    finally:
        os.kill(hung, signal.SIGCONT)
    assert took < 2


def test_a_container_without_a_share_is_ended_with_the_reason(
    directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    tenant = contained()
    assert tenant.process.wait(30) == -signal.SIGKILL
    (told,) = logged(manager, "refused", 1)
    assert (told["container"], told["pid"], told["ended"]) == (KEY, tenant.pid, True)
    assert "has no share" in told["message"] and "nvc-hook makes it" in told["hint"]
    assert (tenants(directory), os.listdir(directory / "tenants")) == ([], [])
    assert leftovers.until(lambda: processes("nvc-monitor", str(directory)) == [acceptor(directory)[0]], seconds=20)


MESSAGE = json.dumps({"fds": ["seccompFd"], "pid": 7, "state": {"id": KEY, "status": "creating", "pid": 7}}).encode()


# The agent's side.


class Admitting:
    """An AdmissionSocket with a short patience."""

    def __init__(self, path: Path, answer: int | NvcError) -> None:
        self.path, self.answer = path, answer
        self.admitted: list[ContainerProcess] = []
        self.told: list[dict[str, Any]] = []
        self.journal = Journal(-1)
        self.journal.listen(self.told.append)

    async def admit(self, process: ContainerProcess, listener: int, connection: Connection) -> int:
        os.close(listener)
        self.admitted.append(process)
        if isinstance(self.answer, NvcError):
            raise self.answer
        if self.answer == channel.START:
            connection.close()
        return self.answer

    def run(self, act: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            with bind(str(self.path), socket.SOCK_SEQPACKET) as server:
                task = asyncio.ensure_future(AdmissionSocket(server, self.admit, self.journal, 0.2).serve())
                try:
                    await asyncio.wait_for(act(), 20)
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

        asyncio.run(run())

    async def ask(self, packet: bytes, descriptors: int, text: bytes = MESSAGE) -> bytes:
        """What is answered; b"": nothing."""
        file = os.memfd_create("message")
        os.write(file, text)
        with connect(str(self.path)) as acceptor:
            if packet:
                socket.send_fds(acceptor, [packet], [file] * descriptors)
            os.close(file)
            return await asyncio.to_thread(acceptor.recv, 100)


REQUEST = ADMISSION.pack(ADMIT, 0, 1, 0)


@pytest.mark.parametrize(
    ("packet", "descriptors", "text", "said"),
    [
        (b"", 0, b"", "no whole request within 0.2 s"),
        (b"x", 0, b"", "a packet of 1 bytes and 0 descriptors"),
        (REQUEST, 1, MESSAGE, "a packet of 16 bytes and 1 descriptors"),
        (REQUEST, 3, MESSAGE, "and 3 descriptors"),
        (REQUEST + b"x", 2, MESSAGE, "a packet of 17 bytes"),
        (ADMISSION.pack(channel.START, 0, 1, 0), 2, MESSAGE, "operation 1 is not known"),
        (REQUEST, 2, b"{", "a runtime's message is not JSON"),
        (REQUEST, 2, b"{}", "state is missing"),
        (REQUEST, 2, b'{"a":"' + b"x" * (1 << 20) + b'"}', "longer than 1 MiB"),
        (ADMISSION.pack(ADMIT, 0, 2, 0), 2, MESSAGE, "2 descriptors came, and fds has 1 names"),
    ],
)
def test_a_wrong_request_is_told_and_nothing_stays_open(
    tmp_path: Path, packet: bytes, descriptors: int, text: bytes, said: str
) -> None:
    admitting = Admitting(tmp_path / "admit", answer=channel.REFUSED)

    async def act() -> None:
        await admitting.ask(REQUEST, 2)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert await admitting.ask(packet, descriptors, text) == b""
        for _ in range(200):
            if len(os.listdir("/proc/self/fd")) <= before:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("a descriptor stays open")

    admitting.run(act)
    assert [said in one["message"] and one["event"] == "refused" for one in admitting.told] == [True] * 3
    assert len(admitting.admitted) == 1


def test_an_acceptor_whose_connection_is_not_kept_is_done(tmp_path: Path) -> None:
    admitting = Admitting(tmp_path / "admit", answer=channel.DONE)

    async def act() -> None:
        assert await admitting.ask(REQUEST, 2) == HEAD.pack(channel.DONE, 0)

    admitting.run(act)
    (process,) = admitting.admitted
    assert (process.container, process.pid, process.status, admitting.told) == (KEY, 7, "creating", [])


def test_an_agent_that_ends_leaves_requests_to_the_next(tmp_path: Path) -> None:
    """DONE would say that the container was ended."""
    admitting = Admitting(tmp_path / "admit", answer=channel.START)
    answers: list[bytes] = []

    async def never(process: ContainerProcess, listener: int, connection: Connection) -> int:
        os.close(listener)
        await asyncio.sleep(60)
        return channel.DONE

    admitting.admit = never  # type: ignore[method-assign]
    tasks: list[asyncio.Task[bytes]] = []

    async def act() -> None:
        tasks.append(asyncio.ensure_future(admitting.ask(REQUEST, 2)))
        await asyncio.sleep(0.1)

    async def run() -> None:
        with bind(str(admitting.path), socket.SOCK_SEQPACKET) as server:
            task = asyncio.ensure_future(AdmissionSocket(server, never, admitting.journal).serve())
            await act()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            answers.append(await asyncio.wait_for(tasks[0], 20))

    asyncio.run(run())
    assert (answers, admitting.told) == ([b""], [])


def test_an_agent_that_was_killed_is_missed_in_the_log(
    tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]
) -> None:
    # Nothing said it: without a service manager there was no agent from then on, and not one line.
    def missed() -> list[dict[str, Any]]:
        return [one for one in events(manager, "warning") if one["message"].startswith("no agent runs")]

    manager.start(*words(directory))
    assert leftovers.until(lambda: acceptor(directory)[0] != 0, seconds=20)
    manager.kill()
    assert leftovers.until(lambda: bool(missed()), seconds=30)
    assert "a container that starts waits for an agent" in missed()[0]["message"]
    assert missed()[0]["hint"] == "systemctl start nvc-agent"
    waiting = contained()
    waiting.enter(tmp_path / "share")
    assert leftovers.until(lambda: len(missed()) > 1, seconds=20)
    assert missed()[1]["container"] == KEY and "is ended then" in missed()[1]["message"]
    waiting.end()
    manager.start(*words(directory))
    assert tenants(directory) == []
    assert len(missed()) == 2, "once for each absence"


def test_an_agent_without_descriptors_says_what_to_do(tmp_path: Path) -> None:
    # "admit: [Errno 24] Too many open files", ten times a second.
    said: list[dict[str, Any]] = []
    journal = Journal(-1)
    journal.listen(said.append)
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def run() -> None:
        server = AdmissionSocket(bound, refuse, journal)
        task = asyncio.ensure_future(server.serve())
        await asyncio.sleep(0.01)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
            waiting.setblocking(False)
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, usual[1]))
            try:
                waiting.connect(str(tmp_path / "admit"))
                await asyncio.sleep(0.05)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def refuse(process: ContainerProcess, listener: int, connection: Connection) -> int:
        raise AssertionError("no request is whole")

    with bind(str(tmp_path / "admit"), socket.SOCK_SEQPACKET) as bound:
        asyncio.run(run())
    assert said[0]["message"] == "admit: no container is admitted now: too many open files"
    assert "raise LimitNOFILE of nvc-agent.service" in said[0]["hint"]
