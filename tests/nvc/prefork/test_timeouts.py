"""How long the pre-fork server waits for a packet that a client owes it, when it is itself that is slow."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from hook.warm import programs
from nvc.agent import standby
from nvc.prefork import server
from nvc.prefork.session import Session
from tests.nvc.prefork.test_server import ROOT, packet

pytestmark = pytest.mark.root


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        yield made


class Busy(server.Server):
    """A server that was busy with other clients for longer than it waits for any."""

    def __init__(self, place: Path, client: socket.socket) -> None:
        super().__init__(standby.listen(str(place / "run")), str(ROOT), programs(), "")
        self._listener.setblocking(False)
        self.begun: list[int] = []
        client.connect(str(place / "run"))
        self._accept()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for session in list(self._sessions.values()):
            self._close(session)
        self._listener.close()

    def forget(self) -> None:
        for session in self._sessions.values():
            session.until = 0.0
        self._forget_slow()

    def _begin(self, session: Session) -> None:
        session.pid = os.getpid()
        self.begun.append(session.pid)


def ask(client: socket.socket) -> None:
    directory = os.open("/", os.O_PATH)
    socket.send_fds(client, [packet()], [0, 0, 0, directory])
    os.close(directory)


def test_a_word_that_came_while_others_were_served_is_in_time(tmp_path: Path, client: socket.socket) -> None:
    # Of 64 at once on a busy machine one was told that the agent had ended in the middle of its work.
    with Busy(tmp_path, client) as busy:
        ask(client)
        busy.forget()
        assert client.recv(16) == b"R"
        client.send(b"G")
        busy.forget()
    assert busy.begun == [os.getpid()]


def test_a_client_that_sends_nothing_is_left(tmp_path: Path, client: socket.socket) -> None:
    with Busy(tmp_path, client) as busy:
        ask(client)
        busy.forget()
        assert client.recv(16) == b"R"
        busy.forget()
        assert client.recv(16) == b""
    assert busy.begun == []
