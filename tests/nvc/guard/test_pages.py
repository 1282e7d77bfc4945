"""Plan and counters: the layout of both languages. The plan: writers that are killed, and two at a time."""

from __future__ import annotations

import ctypes
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
from nvc.guard import channel, pages, plan_file, prober, supervisors, usage
from nvc.guard.plan_file import Plan
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
        ("guard_phase", plan_file._Phase),
        ("plan", plan_file._Plan),
        ("plan_file", plan_file._PlanFile),
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
        "SHARE_MAX_GPUS": pages.GPUS,
        "LIMITS_SIZE": plan_file.LIMITS_SIZE,
        "GUARD_REASONS": pages._REASONS,
        "GUARD_ATTACHED": supervisors.ATTACHED,
        "GUARD_CONTENTION_MAGIC": usage.CONTENTION_MAGIC,
        "PLAN_MAGIC": plan_file.PLAN_MAGIC,
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
    os.ftruncate(file, ctypes.sizeof(plan_file._PlanFile) - 1)
    with pytest.raises(ValueError, match="a plan of"):
        Plan(file)
    with pytest.raises(ValueError, match="limits of 8191 bytes"):
        Plan(file, LIMITS[1:])


# Counters.


def locked_plan(place: Path, *, new: bool = False) -> Plan:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    file, lock = os.open(place / "plan", flags, 0o600), os.open(place / "lock", flags, 0o600)
    return Plan(file, bytes(plan_file.LIMITS_SIZE) if new else None, lock)


def test_two_writers_lose_no_change_of_each_other(tmp_path: Path) -> None:
    """One has the plan in its memory as it was before the other one's change."""
    first = locked_plan(tmp_path, new=True)
    second = locked_plan(tmp_path)
    first.set_slice(0, 1000)
    second.set_phase(0, 50000, 0, 10000)
    first.set_limits(b"\1" * plan_file.LIMITS_SIZE)
    second.set_slice(1, 2000)
    found = locked_plan(tmp_path)
    assert (found.limits, found.phase(0)) == (b"\1" * plan_file.LIMITS_SIZE, (50000, 0, 10000))
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
