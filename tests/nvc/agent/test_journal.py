"""The agent's log, with a reader that does not read it."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from nvc.agent.journal import Journal


@pytest.fixture(params=["pipe", "socket"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Where it is read, where it is written; a wait without end is ended."""
    made = os.pipe() if request.param == "pipe" else tuple(one.detach() for one in socket.socketpair())
    signal.alarm(10)
    yield made
    signal.alarm(0)
    for end in made:
        os.close(end)


@pytest.mark.parametrize("length", [100, 10000])
def test_a_reader_that_does_not_read_the_log_does_not_stop_the_agent(ends: tuple[int, int], length: int) -> None:
    # systemd's journal, while it is restarted or its disk hangs: the agent waited for it in the middle of its loop.
    reading, writing = ends
    journal = Journal(writing)
    count = 0
    while journal.lost < 3:
        journal.write("denial", number=count, text="x" * length)
        count += 1
    assert os.get_blocking(writing), "others write there too"
    os.set_blocking(reading, False)
    data = b""
    try:
        while True:
            data += os.read(reading, 65536)
    except BlockingIOError:
        pass
    journal.write("ready")
    data += os.read(reading, 65536)
    *whole, lost, last = data.splitlines()
    assert json.loads(last)["event"] == "ready"
    told = json.loads(lost)
    assert (told["event"], told["lines"], told["all"]) == ("lost", 3, 3)
    numbers = [json.loads(line)["number"] for line in whole if line.endswith(b"}")]
    assert numbers == [*range(len(numbers))]
    assert len(numbers) == count - 3


def test_lost_lines_are_told_although_nothing_else_happens(ends: tuple[int, int]) -> None:
    """They were counted, and the count was not written."""
    reading, writing = ends
    journal = Journal(writing)
    for times in (1, 2):
        before = journal.lost
        while journal.lost < before + 2:
            journal.write("denial", text="x" * 1000)
        journal.look()  # no room yet
        os.set_blocking(reading, False)
        while True:
            try:
                os.read(reading, 65536)
            except BlockingIOError:
                break
        journal.look()
        journal.look()  # told once
        journal.write("ready")
        *cut, lost, ready = os.read(reading, 65536).splitlines()
        assert cut in ([], [b""])  # the end of a line that was cut
        told = json.loads(lost)
        assert ("lost", 2, 2 * times) == (told["event"], told["lines"], told["all"])
        assert "ready" == json.loads(ready)["event"]
