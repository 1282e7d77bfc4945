"""Counters of a tenant: what was published last, and what a hostile supervisor publishes."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import time
from collections.abc import Iterator

import pytest

from nvc.agent.status import AgentStatus, StatusTenant
from nvc.guard import pages
from nvc.guard.pages import Counters
from rpc.codec import dumps

SIZE = ctypes.sizeof(pages._CountersFile)
WHOLE_NUMBER = 2**64 - 1


@pytest.fixture
def file() -> Iterator[int]:
    made = os.memfd_create("pages")
    yield made
    os.close(made)


def word(number: int) -> bytes:
    return number.to_bytes(4, "little")


def published(file: int, **fields: object) -> pages._CountersFile:
    """A whole file with one publication, and what is in it."""
    found = pages._CountersFile(magic=pages.COUNTERS_MAGIC, version=pages.VERSION, **fields)
    os.pwrite(file, bytes(found), 0)
    return found


def everything(counters: Counters) -> list[object]:
    """What the agent reads of one."""
    values: list[object] = [counters.generation, counters.gone, counters.state, counters.attached, counters.status()]
    return [*values, counters.processes(), counters.events()]


def test_what_was_published_last_is_read(file: int) -> None:
    found = published(file, index=1, event_count=2)
    for number in range(2):
        found.events[number] = pages._Event(number, 1, 1, 0x40 + number, 9, 3)
    own = found.counters[1]
    own.generation, own.is_gone, own.sees_driver, own.process_count = 5, 1, 1, 1
    own.published_ns = time.monotonic_ns() - 10**9
    own.status.memory[1], own.status.frozen[0], own.status.frozen_ns[0] = 77, 1, 500
    own.status.groups[0], own.status.frozen[1] = 1, 1
    own.status.reasons[1], own.status.notifications = 4, 6
    own.attached.processes, own.attached.frozen_ns = 2, 8
    own.processes[0].pid, own.processes[0].memory[1] = 33, 11
    os.pwrite(file, bytes(found), 0)
    counters = Counters(file, 2)
    assert (counters.generation, counters.gone, counters.state, counters.attached) == (
        5,
        True,
        (True, True, False),
        (2, False, 8),
    )
    assert counters.processes() == ((33, (0, 11)),)
    status = counters.status()
    assert ([one.memory for one in status.gpus], status.reasons) == ([0, 77], (("over-quota", 4),))
    assert 10**9 <= status.gpus[0].frozen_ns < 60 * 10**9, "it is frozen since then, and still"
    assert (status.gpus[1].frozen, status.gpus[1].frozen_ns) == (True, 0), "without a group no time counts"
    assert [(event.when_ns, event.reason, event.number) for event in counters.events()] == [
        (0, "over-quota", 0x40),
        (1, "over-quota", 0x41),
    ]
    assert counters.events() == []
    os.pwrite(file, word(0), 8)
    assert (counters.generation, counters.processes()) == (0, ())


def test_nothing_is_missing_before_something_is_published(file: int) -> None:
    published(file)
    assert Counters(file, 1).state == (False, True, True)


def test_the_stamp_changes_with_each_publishing_and_each_event(file: int) -> None:
    found = published(file)
    counters = Counters(file, 1)
    seen = [counters.stamp()]
    for index in (1, 0, 1):
        found.counters[index].published_ns += 1
        found.index = index
        os.pwrite(file, bytes(found), 0)
        seen.append(counters.stamp())
    found.event_count += 1
    os.pwrite(file, bytes(found), 0)
    seen.append(counters.stamp())
    assert len(set(seen)) == len(seen) and counters.stamp() == seen[-1]
    os.pwrite(file, word(2**32 - 1), 8)
    counters.stamp()  # what it is, a hostile supervisor decides
    os.ftruncate(file, 8)
    with pytest.raises(OSError, match="without a head"):
        counters.stamp()


def test_events_that_the_ring_has_lost_are_left_out(file: int) -> None:
    found = published(file)
    counters = Counters(file, 1)
    for number in range(600):
        found.events[number % pages.EVENTS] = pages._Event(number, 0, 0, 0, 0, 0)
        found.event_count = number + 1
        if number in (9, 599):
            os.pwrite(file, bytes(found), 0)
            first = 0 if number == 9 else 600 - pages.EVENTS
            assert [event.when_ns for event in counters.events()] == [*range(first, number + 1)]
    later = Counters(file, 1)
    later.skip_events()
    assert later.events() == []


@pytest.mark.parametrize(("at", "data"), [(0, word(1)), (4, word(2)), (8, word(7)), (8, word(2)), (8, word(2**32 - 1))])
def test_counters_of_another_kind_are_an_error(file: int, at: int, data: bytes) -> None:
    published(file)
    os.pwrite(file, data, at)
    counters = Counters(file, 1)
    for read in (counters.status, counters.processes, lambda: counters.generation):
        with pytest.raises(OSError, match="counters of version") as raised:
            read()
        assert raised.value.errno == errno.EBADMSG


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (b"1.2.3", "1.2.3"),
        (b"1.2.3\0behind", "1.2.3"),
        (b"", ""),
        (b"1.2\x1b[2J", ""),
        (b"\xff" * 32, ""),
        (b"1" * 32, ""),
    ],
)
def test_the_version_that_a_supervisor_says_is_one_or_none(file: int, said: bytes, read: str) -> None:
    found = published(file)
    found.build[: len(said)] = said
    os.pwrite(file, bytes(found), 0)
    assert Counters(file, 1).build == read


@pytest.mark.parametrize("size", [0, 15, 16, 24, pages._CountersFile.counters.offset + 5, SIZE - 1, SIZE])
def test_a_short_file_gives_bounded_values_or_an_error(file: int, size: int) -> None:
    found = published(file, event_count=WHOLE_NUMBER, index=1)
    found.counters[1].process_count = 2**32 - 1
    os.pwrite(file, bytes(found), 0)
    os.ftruncate(file, size)
    counters = Counters(file, 1)
    if size < 24:
        with pytest.raises(OSError, match="without a head"):
            everything(counters)
    else:
        everything(counters)
    assert len(counters.events()) <= pages.EVENTS


def test_the_worst_that_a_supervisor_can_publish_is_bounded(file: int) -> None:
    os.pwrite(file, b"\xff" * SIZE, 0)
    os.pwrite(file, struct.pack("<IIII", pages.COUNTERS_MAGIC, pages.VERSION, 1, 0), 0)
    counters = Counters(file, WHOLE_NUMBER)
    for _ in range(2):
        everything(counters)
    assert (len(counters.processes()), len(counters.status().gpus)) == (pages.PROCESSES, pages.GPUS)
    # Also as a client of the agent gets it.
    found = counters.status()
    status = StatusTenant(
        id=1,
        container="c",
        pid=1,
        kind="guard",
        since=0.0,
        gpus=(),
        processes=(),
        denials=dict(found.reasons),
        notifications=found.notifications,
        handling_ns=found.handling_ns,
        paused=False,
    )
    assert dumps(AgentStatus("", "", (), (status,), 0).as_data())
    for count in (0, WHOLE_NUMBER, 5, WHOLE_NUMBER - 300, WHOLE_NUMBER - 1):
        os.pwrite(file, count.to_bytes(8, "little"), 16)
        assert len(counters.events()) <= pages.EVENTS


def test_a_supervisor_that_publishes_without_end_delays_no_reader(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading was made again as long as another one was published meanwhile."""
    published(file)
    read, index = os.pread, [0]

    def pread(descriptor: int, size: int, at: int) -> bytes:
        data = read(descriptor, size, at)
        if size > 24:
            index[0] = 1 - index[0]
            os.pwrite(file, word(index[0]), 8)
        return data

    monkeypatch.setattr(os, "pread", pread)
    signal.alarm(20)
    try:
        with pytest.raises(OSError, match="while they were read") as raised:
            Counters(file, 1).status()
    finally:
        signal.alarm(0)
    assert raised.value.errno == errno.EAGAIN
