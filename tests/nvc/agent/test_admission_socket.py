"""The agent's side of the admission of containers: acceptors' requests, wrong ones too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.admission import AdmissionSocket
from nvc.agent.connections import bind
from nvc.agent.container_state import ContainerProcess
from nvc.agent.journal import Journal
from nvc.agent.waiting import Threads
from nvc.base.errors import NvcError
from nvc.guard import channel
from nvc.guard.channel import ADMISSION, ADMIT, HEAD, Connection, connect
from tests.support.contained import KEY

pytestmark = pytest.mark.root

MESSAGE = json.dumps({"fds": ["seccompFd"], "pid": 7, "state": {"id": KEY, "status": "creating", "pid": 7}}).encode()


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


def test_as_many_listeners_as_may_wait_for_one_tenant_keep_no_other_waiting(tmp_path: Path) -> None:
    admitting = Admitting(tmp_path / "admit", answer=channel.DONE)
    waits, answers = [Threads.OF_ONE * 4], list[bytes]()

    async def admit(process: ContainerProcess, listener: int, connection: Connection) -> int:
        os.close(listener)
        waits[0] -= 1
        if waits[0] >= 0:
            await asyncio.sleep(60)
        return channel.DONE

    async def act() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(waits[0]):
                waiting = stack.enter_context(connect(str(admitting.path)))
                socket.send_fds(waiting, [REQUEST], [file] * 2)
                await asyncio.sleep(0)
            answers.append(await admitting.ask(REQUEST, 2))

    admitting.admit = admit  # type: ignore[method-assign]
    file = os.memfd_create("message")
    os.write(file, MESSAGE)
    admitting.run(act)
    os.close(file)
    assert answers == [HEAD.pack(channel.DONE, 0)]
