"""Plan and counters: the layout of both languages, writers that are killed, and what a hostile supervisor publishes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.agent import container_state, tenants
from nvc.agent.status import AgentStatus, StatusTenant
from nvc.guard import channel, pages, prober, supervisors, usage
from nvc.guard.pages import Counters, Plan
from rpc.codec import dumps
from tests.support.native import build

LIMITS, OTHER = bytes(range(256)) * 32, bytes(8192)
SIZE = ctypes.sizeof(pages._CountersFile)
WHOLE_NUMBER = 2**64 - 1


@pytest.fixture(scope="module")
def abi() -> dict[str, tuple[int, int]]:
    text = subprocess.run([build("abi_pages") / "abi_pages"], capture_output=True, text=True, check=True).stdout
    return {name: (int(offset), int(size)) for name, offset, size in (line.split() for line in text.splitlines())}


@pytest.fixture
def file() -> Iterator[int]:
    made = os.memfd_create("pages")
    yield made
    os.close(made)


# The layout.


@pytest.mark.parametrize(
    ("structure", "form"),
    [
        ("plan_phase", pages._Phase),
        ("plan", pages._Plan),
        ("plan_file", pages._PlanFile),
        ("guard_status", pages._Status),
        ("guard_attached", pages._Attached),
        ("guard_process", pages._Process),
        ("guard_event", pages._Event),
        ("counters", pages._Counters),
        ("counters_file", pages._CountersFile),
        ("usage_row", usage._Row),
        ("usage_gpu", usage._Gpu),
        ("usage_head", usage._Head),
        ("usage", usage._Usage),
        ("usage_page", usage._Page),
    ],
)
def test_structures_agree(abi: dict[str, tuple[int, int]], structure: str, form: type[ctypes.Structure]) -> None:
    ours = {f"{structure}.*": (0, ctypes.sizeof(form))}
    for name, *_ in form._fields_:
        ours[f"{structure}.{name}"] = getattr(form, name).offset, getattr(form, name).size
    ours.pop("guard_status.driver_usage", None)  # it lies between two that are compared
    assert ours == {name: where for name, where in abi.items() if name.startswith(f"{structure}.")}


def fields(form: struct.Struct) -> list[tuple[int, int]]:
    """(offset, size) of every value of a form without padding."""
    place, found = 0, []
    for count, letter in re.findall(r"(\d*)([a-zA-Z])", form.format.removeprefix("=")):
        size = int(count) if letter == "s" else struct.calcsize(f"={letter}")
        for _ in range(1 if letter == "s" else int(count or 1)):
            found.append((place, size))
            place += size
    return found


@pytest.mark.parametrize(
    ("structure", "names", "form"),
    [
        ("start", "tenant pid user spare start_time devices directory", channel.START_PACKET),
        ("listen", "first spare", channel.LISTEN_PACKET),
        ("admit", "descriptors spare", channel.ADMISSION),
        ("state", "tenant version monitor supervisor", channel.STATE_PACKET),
        ("attach", "count spare device inode", channel.ATTACH_PACKET),
        ("probe", "tenant gpu_count uuids", prober.PROBE_PACKET),
    ],
)
def test_packets_agree(abi: dict[str, tuple[int, int]], structure: str, names: str, form: struct.Struct) -> None:
    head = [abi["channel_head.operation"], abi["channel_head.result"]]
    assert fields(channel.HEAD) == head
    assert fields(form) == [*head, *(abi[f"channel_{structure}.{name}"] for name in names.split())]
    if structure != "attach":
        assert form.size == abi[f"channel_{structure}.*"][1]


def test_contention_agrees(abi: dict[str, tuple[int, int]]) -> None:
    ours = {name: (getattr(usage._Contention, name).offset, 8) for name in ("magic", "written_ns")}
    for index in (0, 1):
        for name in ("tenant", "called_ns"):
            at = usage._Contention.last.offset + 16 * index + getattr(usage._Last, name).offset
            ours[f"last[{index}].{name}"] = at, 8
    ours["*"] = 0, ctypes.sizeof(usage._Contention)
    assert {f"guard_contention.{name}": where for name, where in ours.items()} == {
        name: where for name, where in abi.items() if name.startswith("guard_contention.")
    }


def test_channels_of_an_attached_process_agree(abi: dict[str, tuple[int, int]]) -> None:
    begin, size = abi["channel_attach.channels[0]"]
    names = ("client", "subdevice", "channel", "place")
    assert [(begin + offset, size) for offset, size in fields(channel.CHANNEL)] == [
        abi[f"channel_attach.channels[0].{name}"] for name in names
    ]
    assert (channel.ATTACH_PACKET.size, channel.CHANNEL.size) == (begin, size)
    assert abi["channel_attach.channels"] == (begin, size * channel.CHANNELS)
    assert abi["channel_attach.*"] == (0, begin + size * channel.CHANNELS)


def test_constants_agree(abi: dict[str, tuple[int, int]]) -> None:
    operations = ("REPLY", "START", "OPEN", "LISTEN", "ATTACH", "REMOVE", "DONE", "ADMIT")
    ours = {
        "SHARE_MAX_GPUS": pages._GPUS,
        "LIMITS_SIZE": pages.LIMITS_SIZE,
        "GUARD_REASONS": pages._REASONS,
        "GUARD_ATTACHED": supervisors.ATTACHED,
        "GUARD_CONTENTION_MAGIC": usage.CONTENTION_MAGIC,
        "PLAN_MAGIC": pages.PLAN_MAGIC,
        "COUNTERS_MAGIC": pages.COUNTERS_MAGIC,
        "PAGES_VERSION": pages.VERSION,
        "COUNTERS_EVENTS": pages.EVENTS,
        "COUNTERS_PROCESSES": pages.PROCESSES,
        "CHANNEL_PATH": channel.PATH,
        "CHANNEL_DESCRIPTORS": channel.DESCRIPTORS,
        "CHANNEL_CHANNELS": channel.CHANNELS,
        **{f"CHANNEL_{name}": getattr(channel, name) for name in (*operations, "PUBLISH", "REFUSED", "PROBE", "PIDS")},
        "CHANNEL_PIDS_MOST": prober.PIDS_MOST,
        "USAGE_MAGIC": usage.MAGIC,
        "USAGE_VERSION": usage.VERSION,
        "USAGE_ROWS": usage.ROWS,
        "USAGE_FRESH_NS": usage.FRESH_NS,
        "MONITOR_LISTENERS": tenants.LISTENERS,
        "CONTAINER_STATE_MOST": container_state.LIMIT,
    }
    assert ours == {name: size for name, (_, size) in abi.items() if "." not in name}


# The plan.


def test_a_plan_is_read_as_it_was_written(file: int) -> None:
    plan = Plan(file, LIMITS)
    assert (plan.generation, Plan(file).limits, Plan(file).generation) == (1, LIMITS, 1)
    changes: list[Callable[[], None]] = [
        lambda: plan.set_limits(OTHER),
        lambda: plan.set_slice(31, 2000),
        lambda: plan.set_frozen(3, True),
        lambda: plan.set_phase(7, 100_000, 20_000, 120_000),
    ]
    for number, change in enumerate(changes, 2):
        change()
        assert (plan.generation, Plan(file).generation) == (number, number)
        change()
        assert plan.generation == number, "what is so already is not written"
    found = Plan(file)
    assert (found.limits, found.phase(7), found.phase(6)) == (OTHER, (100_000, 20_000, 120_000), (0, 0, 0))
    assert (found._plan.slice[31], found._plan.is_frozen[3]) == (2000, 1)
    # An agent that takes over writes the copy that is not in force.
    found.set_slice(31, 3000)
    assert (Plan(file)._plan.slice[31], Plan(file).generation) == (3000, 6)


@pytest.mark.parametrize("writes", [0, 1])
def test_a_writer_that_is_killed_leaves_the_plan_before(file: int, writes: int) -> None:
    plan = Plan(file, LIMITS)
    plan.set_slice(0, 1000)
    child = os.fork()
    if child == 0:
        write, left = os.pwrite, [writes]

        def killed(descriptor: int, data: bytes, at: int) -> int:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return write(descriptor, data, at)

        os.pwrite = killed
        plan.set_limits(OTHER)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    found = Plan(file)
    assert (found.generation, found.limits, found._plan.slice[0]) == (2, LIMITS, 1000)
    found.set_slice(0, 2000)
    assert (Plan(file).generation, Plan(file).limits, Plan(file)._plan.slice[0]) == (3, LIMITS, 2000)


def word(number: int) -> bytes:
    return number.to_bytes(4, "little")


@pytest.mark.parametrize(("at", "data"), [(0, word(1)), (4, word(2)), (8, word(2)), (8, word(2**32 - 1))])
def test_another_file_is_no_plan(file: int, at: int, data: bytes) -> None:
    Plan(file, LIMITS)
    os.pwrite(file, data, at)
    with pytest.raises(ValueError, match="a plan of version"):
        Plan(file)


def test_a_short_file_is_no_plan(file: int) -> None:
    with pytest.raises(ValueError, match="a plan of 0 bytes"):
        Plan(file)
    Plan(file, LIMITS)
    os.ftruncate(file, ctypes.sizeof(pages._PlanFile) - 1)
    with pytest.raises(ValueError, match="a plan of"):
        Plan(file)
    with pytest.raises(ValueError, match="limits of 8191 bytes"):
        Plan(file, LIMITS[1:])


# Counters.


def locked_plan(place: Path, *, new: bool = False) -> Plan:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    file, lock = os.open(place / "plan", flags, 0o600), os.open(place / "lock", flags, 0o600)
    return Plan(file, bytes(pages.LIMITS_SIZE) if new else None, lock)


def test_two_writers_lose_no_change_of_each_other(tmp_path: Path) -> None:
    """One has the plan in its memory as it was before the other one's change."""
    first = locked_plan(tmp_path, new=True)
    second = locked_plan(tmp_path)
    first.set_slice(0, 1000)
    second.set_phase(0, 50000, 0, 10000)
    first.set_limits(b"\1" * pages.LIMITS_SIZE)
    second.set_slice(1, 2000)
    found = locked_plan(tmp_path)
    assert (found.limits, found.phase(0)) == (b"\1" * pages.LIMITS_SIZE, (50000, 0, 10000))
    assert (found._plan.slice[0], found._plan.slice[1], found.generation) == (1000, 2000, 5)
    for plan in (first, second, found):
        plan.close()


def test_a_writer_that_does_not_end_stops_no_other(tmp_path: Path) -> None:
    plan, other = locked_plan(tmp_path, new=True), os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    begin = time.monotonic()
    with pytest.raises(OSError, match="another process changes the plan"):
        plan.set_slice(0, 1000)
    assert time.monotonic() - begin < 5
    os.close(other)
    plan.set_slice(0, 1000)
    assert plan.generation == 2
    plan.close()


def published(file: int, **fields: object) -> pages._CountersFile:
    """A whole file with one publication, and what is in it."""
    found = pages._CountersFile(magic=pages.COUNTERS_MAGIC, version=pages.VERSION, **fields)
    os.pwrite(file, bytes(found), 0)
    return found


def everything(counters: Counters) -> list[object]:
    """What the agent reads of one."""
    values: list[object] = [counters.generation, counters.gone, counters.sees, counters.attached, counters.status()]
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
    assert (counters.generation, counters.gone, counters.sees, counters.attached) == (
        5,
        True,
        (True, False),
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
    assert (len(counters.processes()), len(counters.status().gpus)) == (pages.PROCESSES, pages._GPUS)
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
