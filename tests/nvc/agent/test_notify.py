"""Messages to a service manager that does not read them: the agent does not wait, and none is lost."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.agent.notify import Systemd


class Stuck:
    """One that reads only on request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(str(path))
        self.systemd = Systemd({"NOTIFY_SOCKET": str(path)})

    def fill(self) -> int:
        """Until it takes no more; how many messages that was, the one that waits among them."""
        count = 0
        while not self.systemd._waiting:
            self.systemd.tell(f"STATUS={count}")
            count += 1
        return count

    def read(self) -> list[str]:
        """Messages that lie there, each with its lines as one."""
        texts = []
        while True:
            try:
                texts.append(self.socket.recv(4096).decode().replace("\n", " "))
            except BlockingIOError:
                return texts

    def everything(self) -> list[str]:
        """Read and let it send until nothing waits."""
        texts = self.read()
        while self.systemd._waiting:
            self.systemd.flush()
            texts += self.read()
        return texts


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Stuck]:
    made = Stuck(tmp_path / "notify")
    signal.alarm(30)  # a wait without end is ended
    yield made
    signal.alarm(0)
    made.socket.close()


def test_nothing_is_lost_and_nothing_waits(stuck: Stuck) -> None:
    """Each message waited for five seconds in the agent's loop, and was lost then."""
    before = len(os.listdir("/proc/self/fd"))
    count = stuck.fill()
    stuck.systemd.tell("READY=1", "STATUS=ready")

    assert [*(f"STATUS={number}" for number in range(count)), "READY=1 STATUS=ready"] == stuck.everything()
    assert before == len(os.listdir("/proc/self/fd"))


def test_a_manager_that_starts_anew_gets_what_was_told_meanwhile(stuck: Stuck) -> None:
    stuck.socket.close()
    stuck.systemd.tell("READY=1")
    stuck.path.unlink()
    stuck.systemd.tell("STATUS=1")
    stuck.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    stuck.socket.bind(str(stuck.path))

    assert ["READY=1", "STATUS=1"] == stuck.everything()


def test_what_can_never_be_sent_holds_nothing_up(stuck: Stuck) -> None:
    stuck.systemd.tell("STATUS=" + "x" * (1 << 20))
    stuck.systemd.tell("READY=1")

    assert ["READY=1"] == stuck.everything()


def test_an_abstract_address_is_one(tmp_path: Path) -> None:
    name = f"nvc-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        Systemd({"NOTIFY_SOCKET": f"@{name}"}).tell("READY=1")
        assert b"READY=1" == manager.recv(100)


def test_without_a_manager_nothing_waits() -> None:
    unmanaged = Systemd({})
    unmanaged.tell("READY=1")
    assert not unmanaged._waiting


def test_its_variables_are_not_for_others() -> None:
    environment = {"NOTIFY_SOCKET": "/s", "LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "PATH": "/bin"}
    assert [] == Systemd(environment).given
    assert {"PATH": "/bin"} == environment
