"""What a connection costs the agent: turns of its loop, of which each is system calls and steps of Python."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.admission import AdmissionSocket
from nvc.agent.connections import bind
from nvc.agent.container_state import ContainerProcess
from nvc.agent.control import ControlSocket
from nvc.agent.journal import Journal
from nvc.agent.peer import Peer
from nvc.guard import channel
from nvc.guard.channel import ADMISSION, ADMIT, HEAD, Connection

pytestmark = pytest.mark.root

MESSAGE = json.dumps({"fds": ["seccompFd"], "pid": 7, "state": {"id": "c", "status": "creating", "pid": 7}}).encode()
REQUEST = ADMISSION.pack(ADMIT, 0, 1, 0)


class Turns(selectors.EpollSelector):
    """How often the loop has waited."""

    count = 0

    def select(self, timeout: float | None = None) -> Any:
        self.count += 1
        return super().select(timeout)


def _turns(serve: Callable[[], Coroutine[None, None, None]], connect: Callable[[], socket.socket]) -> tuple[bytes, int]:
    """What a client gets that has said all before its connection is accepted; and turns of the loop for it."""
    turns = Turns()
    loop = asyncio.SelectorEventLoop(turns)

    async def run() -> tuple[bytes, int]:
        serving = asyncio.ensure_future(serve())
        await asyncio.sleep(0.05)
        before, own, said = turns.count, 0, [b""]
        client = connect()
        client.setblocking(False)
        while not said[0] or said[-1]:  # until the end, which is behind what it gets
            await asyncio.sleep(0.2)
            own += 1
            with contextlib.suppress(BlockingIOError):
                said = [said[0], client.recv(4096)] if said[0] else [client.recv(4096), b"more"]
        taken = turns.count - before - own
        client.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return said[0], taken

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


def test_a_client_takes_few_turns(tmp_path: Path) -> None:
    """Its connection, its request, its end."""

    async def status(request: dict[str, Any], peer: Peer) -> dict[str, Any]:
        return {"uid": peer.uid}

    made = socket.socket(socket.AF_UNIX)
    made.bind(str(tmp_path / "control"))
    made.listen(8)

    def connect() -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(tmp_path / "control"))
        client.sendall(b'{"verb": "status"}\n')
        client.shutdown(socket.SHUT_WR)
        return client

    serving = ControlSocket(made, {"status": status}, Journal(-1), lambda: -1)
    said, turns = _turns(serving.serve, connect)
    assert json.loads(said) == {"ok": True, "uid": 0}
    assert turns <= 7, "10 with transports and streams"


def test_an_admission_takes_few_turns(tmp_path: Path) -> None:
    """One accepts, one does all."""

    async def admit(process: ContainerProcess, listener: int, connection: Connection) -> int:
        os.close(listener)
        return channel.DONE

    def connect() -> socket.socket:
        file = os.memfd_create("message")
        os.write(file, MESSAGE)
        acceptor = channel.connect(str(tmp_path / "admit"))
        socket.send_fds(acceptor, [REQUEST], [file] * 2)
        os.close(file)
        return acceptor

    with bind(str(tmp_path / "admit"), socket.SOCK_SEQPACKET) as bound:
        said, turns = _turns(AdmissionSocket(bound, admit, Journal(-1)).serve, connect)
    assert said == HEAD.pack(channel.DONE, 0)
    assert turns <= 5, "8 when it waited for what had come"
