"""Messages to a service manager that does not read them: the agent does not wait, and none is lost."""

from __future__ import annotations

import array
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.agent.notify import Systemd


class Stuck:
    """One that reads only when it is told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(str(path))
        self.systemd = Systemd({"NOTIFY_SOCKET": str(path)})

    def fill(self) -> int:
        """Until it takes no more; how many messages that was, the one that waits among them."""
        count = 0
        while not self.systemd.waiting:
            assert self.systemd.tell(f"STATUS={count}")
            count += 1
        return count

    def read(self) -> tuple[list[str], list[int]]:
        """What lies there: messages with their lines as one, and descriptors."""
        texts, descriptors = [], []
        while True:
            try:
                data, rights, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(16))
            except BlockingIOError:
                return texts, descriptors
            texts.append(data.decode().replace("\n", " "))
            for _, _, content in rights:
                descriptors += array.array("i", content)

    def everything(self) -> tuple[list[str], list[int]]:
        """Read and let it send until nothing waits."""
        texts, descriptors = self.read()
        while self.systemd.waiting:
            self.systemd.flush()
            more, others = self.read()
            texts, descriptors = texts + more, descriptors + others
        return texts, descriptors


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Stuck]:
    made = Stuck(tmp_path / "notify")
    signal.alarm(30)  # a wait without end is ended
    yield made
    signal.alarm(0)
    made.socket.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_lost_and_nothing_waits(stuck: Stuck) -> None:
    """Each message waited for five seconds in the agent's loop, and was lost then."""
    before = descriptors()
    count = stuck.fill()
    end, other = os.pipe()
    assert stuck.systemd.keep("1-a", end)
    inode = os.fstat(end).st_ino
    os.close(end)
    assert stuck.systemd.tell("READY=1")

    texts, found = stuck.everything()

    assert [*(f"STATUS={number}" for number in range(count)), "FDSTORE=1 FDNAME=1-a", "READY=1"] == texts
    assert [inode] == [os.fstat(one).st_ino for one in found]
    for one in (*found, other):
        os.close(one)
    assert before == descriptors()


def test_what_is_gone_before_it_was_stored_is_not_stored(stuck: Stuck) -> None:
    before = descriptors()
    stuck.fill()
    end, other = os.pipe()
    for name in ("1-a", "1-b", "1-a"):
        stuck.systemd.keep(name, end)
    stuck.systemd.drop("1-a")
    stuck.systemd.keep("1-c", end)
    for one in (end, other):
        os.close(one)

    texts, found = stuck.everything()

    stored = [text for text in texts if "FDNAME" in text]
    assert ["FDSTORE=1 FDNAME=1-b", "FDSTOREREMOVE=1 FDNAME=1-a", "FDSTORE=1 FDNAME=1-c"] == stored
    for one in found:
        os.close(one)
    assert before == descriptors()


def test_a_manager_that_starts_anew_gets_what_was_told_meanwhile(stuck: Stuck) -> None:
    stuck.socket.close()
    assert stuck.systemd.tell("READY=1")
    stuck.path.unlink()
    assert stuck.systemd.tell("STATUS=1")
    stuck.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    stuck.socket.bind(str(stuck.path))

    assert ["READY=1", "STATUS=1"] == stuck.everything()[0]


def test_what_can_never_be_sent_holds_nothing_up(stuck: Stuck) -> None:
    stuck.systemd.tell("STATUS=" + "x" * (1 << 20))
    stuck.systemd.keep("1-a", 1 << 20)  # no descriptor
    stuck.systemd.tell("READY=1")

    assert (["READY=1"], []) == stuck.everything()


def test_without_a_manager_nothing_waits() -> None:
    unmanaged = Systemd({})
    assert not unmanaged.tell("READY=1") and not unmanaged.keep("1-a", 0)
    unmanaged.drop("1-a")
    assert 0 == unmanaged.waiting
