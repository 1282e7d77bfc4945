"""The agent's log, with a reader that does not read it."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.agent import journal as journal_module
from nvc.agent.journal import BURST, INTERVAL_S, Journal


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
        journal.write("gone", number=count, text="x" * length)
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
            journal.write("gone", text="x" * 1000)
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


class Clock:
    """Seconds, in place of the monotonic clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(journal_module.time, "monotonic", made)
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_container_that_is_always_at_its_quota_does_not_fill_the_log(tmp_path: Path, clock: Clock) -> None:
    # Four lines a second for each such container: 345,600 a day.
    path, told = tmp_path / "log", 0
    with path.open("wb") as file:
        journal = Journal(file.fileno())
        seen: list[object] = []
        journal.listen(seen.append)
        for step in range(4 * 3600):
            clock.now += 0.25
            journal.write("denial", tenant=1, reason="over-quota", number=f"{step:#x}", pid=step, repeated=2)
            told += 3
            journal.look()
        assert len(seen) == 4 * 3600, "listeners get every event"
        clock.now += 120
        journal.look()
    found = lines(path)
    assert len(found) <= BURST + 3600 / INTERVAL_S + 2
    assert sum(1 + line["repeated"] + line.get("left_out", 0) for line in found) == told


def test_what_was_left_out_is_said_although_nothing_else_happens(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        journal = Journal(file.fileno())
        for _ in range(BURST + 5):
            journal.write("denial", tenant=1, reason="over-quota", repeated=0)
        journal.look()
        assert len(lines(path)) == BURST
        clock.now += INTERVAL_S
        journal.look()
        assert [line.get("left_out", 0) for line in lines(path)[BURST:]] == [4]


def test_a_flood_of_one_kind_hides_no_other(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        journal = Journal(file.fileno())
        for _ in range(1000):
            journal.write("denial", tenant=1, reason="over-quota", repeated=0)
            journal.write("warning", message="control: a line longer than 1048576 bytes")
        journal.write("denial", tenant=2, reason="over-quota", repeated=0)
        journal.write("denial", tenant=1, reason="unknown-class", repeated=0)
        journal.write("warning", message="another one")
        journal.write("gone", tenant=1)
    assert len(lines(path)) == 2 * BURST + 4


def test_kinds_take_no_memory_without_an_end(clock: Clock) -> None:
    journal = Journal(os.open(os.devnull, os.O_WRONLY))
    for number in range(3 * journal_module._KINDS):
        journal.write("warning", message=f"message {number}")
    assert len(journal._kinds) == journal_module._KINDS
