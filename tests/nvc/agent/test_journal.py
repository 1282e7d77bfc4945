"""The agent's log, in front of somebody who does not read it."""

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
    """Where it is read, where it is written; who waits for ever is ended."""
    made = os.pipe() if request.param == "pipe" else tuple(one.detach() for one in socket.socketpair())
    signal.alarm(10)
    yield made
    signal.alarm(0)
    for end in made:
        os.close(end)


@pytest.mark.parametrize("length", [100, 10000])
def test_who_does_not_read_the_log_does_not_stop_the_agent(ends: tuple[int, int], length: int) -> None:
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
    *whole, last = data.splitlines()
    assert json.loads(last)["event"] == "ready"
    numbers = [json.loads(line)["number"] for line in whole if line.endswith(b"}")]
    assert numbers == [*range(len(numbers))]
    assert len(numbers) == count - 3
