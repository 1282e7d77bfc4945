"""The limits file, changed while others read it, and the region, which is not trusted."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvc.formats import FormatError
from nvc.share import limits, region
from nvc.share.limits import Limits, LimitsNode
from nvc.share.model import PRIORITIES, ResolvedGpu

UUID = "GPU-b8058b66-3950-5eb2-94c2-df90166ee487"
GPUS = st.builds(
    ResolvedGpu,
    st.uuids().map(lambda u: f"GPU-{u}"),
    st.just(-1),
    st.integers(0, 1 << 50),
    st.integers(1, 1000),
    st.integers(0, 1000),
    st.sampled_from(PRIORITIES),
    st.booleans(),
).map(lambda gpu: gpu.replace(latency=1000) if gpu.priority == "service" else gpu)
NODES = st.builds(
    LimitsNode, st.integers(1, 3), st.integers(0, 255), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1)
)
WORDS = st.text("abcdef0123456789.-", max_size=31)
LIMITS = st.builds(
    Limits,
    st.lists(GPUS, max_size=32).map(tuple),
    st.lists(NODES, max_size=64).map(tuple),
    WORDS,
    WORDS,
    st.integers(0, 1 << 20),
    st.booleans(),
    st.booleans(),
)
ONE = Limits((ResolvedGpu(UUID, -1, 1 << 30, 500, 30, "high", True),), (LimitsNode(1, 255, 0xC3FF),), "580.1", "abc")


@given(LIMITS)
def test_limits_are_read_as_written(content: Limits) -> None:
    data = limits.encode(content)
    assert len(data) == limits.SIZE
    assert content == limits.decode(data)


@given(st.one_of(st.binary(max_size=300), st.binary(min_size=100, max_size=300).map(lambda b: b.ljust(8192, b"\0"))))
def test_any_bytes_are_limits_or_a_message(data: bytes) -> None:
    with pytest.raises(FormatError):
        limits.decode(data)


@given(LIMITS, st.integers(0, limits.SIZE - 1), st.integers(1, 255))
def test_a_changed_byte_is_seen_or_harmless(content: Limits, place: int, change: int) -> None:
    data = bytearray(limits.encode(content))
    data[place] ^= change
    try:
        found = limits.decode(bytes(data))
    except FormatError:
        return
    # The generation is not covered, nor are the spare bytes of the head.
    assert 12 <= place < 16 or 20 <= place < 64
    assert found == content


def test_a_full_house_fits_and_one_more_does_not() -> None:
    with pytest.raises(ValueError, match="33 GPUs"):
        limits.encode(ONE.replace(gpus=ONE.gpus * 33))
    with pytest.raises(ValueError, match="65 nodes"):
        limits.encode(ONE.replace(nodes=ONE.nodes * 65))
    with pytest.raises(ValueError, match="does not fit"):
        limits.encode(ONE.replace(container="x" * 64))
    with pytest.raises(ValueError, match="is not the UUID"):
        limits.encode(ONE.replace(gpus=(ONE.gpus[0].replace(uuid="MIG-1"),)))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "limits"
    path.write_bytes(limits.encode(ONE))
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_a_reader_sees_the_old_or_the_new_limits_and_nothing_between(file: int) -> None:
    both = [ONE, ONE.replace(gpus=ONE.gpus * 32, container="b" * 63, paused=True)]
    end = threading.Event()

    def write() -> None:
        turn = 0
        while not end.is_set():
            turn += 1
            limits.write(file, both[turn % 2])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {limits.read(file).container for _ in range(300)}
    finally:
        end.set()
        writer.join()
    assert seen <= {one.container for one in both}


def test_a_change_keeps_inode_and_size_and_raises_the_generation_by_two(file: int) -> None:
    before = os.fstat(file)
    assert [2, 4] == [limits.write(file, ONE.replace(paused=paused)) for paused in (True, False)]
    after = os.fstat(file)
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
    assert ONE == limits.read(file)


def test_limits_that_were_written_in_part_are_no_limits_until_the_next_writer(file: int) -> None:
    os.pwrite(file, struct.pack("<I", 7), limits.GENERATION)
    with pytest.raises(FormatError, match="a write began and did not end"):
        limits.read(file)
    assert 8 == limits.write(file, ONE)
    assert ONE == limits.read(file)


def test_the_generation_wraps_to_an_even_number(file: int) -> None:
    os.pwrite(file, struct.pack("<I", 0xFFFFFFFE), limits.GENERATION)
    assert 0 == limits.write(file, ONE)
    assert ONE == limits.read(file)


# The region.


@pytest.fixture
def a_region(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "region"
    path.write_bytes(region.header_bytes())
    os.truncate(path, region.SIZE)
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def lock(path: str, index: int) -> int:
    descriptor = os.open(path, os.O_RDWR)
    fcntl.fcntl(descriptor, region.F_OFD_SETLK, region.FLOCK.pack(fcntl.F_WRLCK, 0, region.LOCKS + index, 1, 0))
    return descriptor


def slot(index: int, *, state: int = 1, memory: int = 5 << 20, name: bytes = b"python3", channels: int = 1) -> bytes:
    page = bytearray(region.PAGE)
    region._SLOT.pack_into(page, 0, state, 1, 4026531836, 100 + index, 1, 777, name)
    struct.pack_into("<Q", page, region.MEMORY, memory)
    struct.pack_into("<I", page, region.GROUPS, 2)
    struct.pack_into("<II", page, region.CHANNEL_VERSION, 2, channels)
    region._CHANNEL.pack_into(page, region.CHANNELS, 1, 2, 3, 4, 9, 0)
    return bytes(page)


def put(descriptor: int, index: int, page: bytes, high: int = 8) -> None:
    os.pwrite(descriptor, page, region.PAGE * (1 + index))
    os.pwrite(descriptor, struct.pack("<I", high), 16)


def path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def test_a_new_region_is_empty_and_costs_a_page(a_region: int) -> None:
    assert () == region.read(a_region).slots
    assert os.fstat(a_region).st_size == region.SIZE
    assert os.fstat(a_region).st_blocks * 512 <= 8 * region.PAGE


def test_a_slot_counts_while_its_lock_is_held(a_region: int) -> None:
    put(a_region, 3, slot(3))
    assert () == region.read(a_region, 1).slots
    holder = lock(path_of(a_region), 3)
    (found,) = region.read(a_region, 1).slots
    assert (3, 103, 777, "python3", True) == (
        found.index, found.pid, found.start_time, found.name, found.threads_cap
    )  # fmt: skip
    assert ((5 << 20,), (2,)) == (found.memory, found.groups)
    assert [(1, 2, 3, 4, 9, 0)] == [
        (one.client, one.subdevice, one.group, one.channel, one.descriptor, one.gpu) for one in found.channels
    ]
    assert 5 << 20 == region.read(a_region, 1).used(0)
    os.close(holder)
    assert () == region.read(a_region, 1).slots


def test_memory_that_goes_from_one_process_to_another_counts_once(
    a_region: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(a_region, 0, slot(0, memory=10 << 30))
    put(a_region, 1, slot(1, memory=0))
    holders = [lock(path_of(a_region), index) for index in (0, 1)]
    alive = region.is_alive

    def moved(descriptor: int, index: int) -> bool:
        if index == 0:  # it was read just now
            put(a_region, 0, slot(0, memory=0))
            put(a_region, 1, slot(1, memory=10 << 30))
        return alive(descriptor, index)

    monkeypatch.setattr(region, "is_alive", moved)
    assert 10 << 30 == region.read(a_region, 1).used(0)
    for holder in holders:
        os.close(holder)


def test_a_region_that_never_holds_still_is_read_all_the_same(a_region: int, monkeypatch: pytest.MonkeyPatch) -> None:
    put(a_region, 0, slot(0))
    holder = lock(path_of(a_region), 0)
    alive, sizes = region.is_alive, iter(range(1, 1000))

    def changing(descriptor: int, index: int) -> bool:
        put(a_region, 0, slot(0, memory=next(sizes) << 20))
        return alive(descriptor, index)

    monkeypatch.setattr(region, "is_alive", changing)
    assert region.read(a_region, 1).used(0) < 100 << 20
    os.close(holder)


def test_a_forked_child_keeps_the_slot(a_region: int) -> None:
    put(a_region, 0, slot(0))
    holder = lock(path_of(a_region), 0)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go[0], 1)
        os._exit(0)
    os.close(holder)
    assert 1 == len(region.read(a_region, 1).slots)
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    assert () == region.read(a_region, 1).slots
    for end in (*ready, *go):
        os.close(end)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(slot(0, memory=1 << 63), id="more memory than there is"),
        pytest.param(slot(0, channels=97), id="more channels than there is room for"),
        pytest.param(slot(0, channels=0xFFFFFFFF), id="four thousand million channels"),
    ],
)
def test_a_slot_that_cannot_be_is_counted_as_damaged(a_region: int, page: bytes) -> None:
    put(a_region, 0, page)
    holder = lock(path_of(a_region), 0)
    found = region.read(a_region, 1)
    assert ((), 1) == (found.slots, found.damaged)
    os.close(holder)


def test_names_are_fit_for_a_terminal(a_region: int) -> None:
    put(a_region, 0, slot(0, name=b"\x1b[2J\xff\n\0rest"))
    holder = lock(path_of(a_region), 0)
    assert "?[2J??" == region.read(a_region, 1).slots[0].name
    os.close(holder)


def test_a_channel_list_that_never_holds_still_is_empty(a_region: int) -> None:
    put(a_region, 0, slot(0))
    os.pwrite(a_region, struct.pack("<I", 3), region.PAGE + region.CHANNEL_VERSION)
    assert () == region.channels(a_region, 0)


@pytest.mark.parametrize("size", [0, 100, region.PAGE, region.PAGE + 5, 9 * region.PAGE - 1, 1 << 36])
def test_a_region_of_another_length_is_read_or_refused(a_region: int, size: int) -> None:
    holders = []
    for index in range(8):
        put(a_region, index, slot(index))
        holders.append(lock(path_of(a_region), index))
    os.ftruncate(a_region, size)
    if size < region.PAGE:
        with pytest.raises(FormatError):
            region.read(a_region)
    else:
        found = region.read(a_region)
        assert 8 == len(found.slots) + found.damaged
    for holder in holders:
        os.close(holder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.binary(max_size=80), st.binary(max_size=1300))
def test_any_bytes_are_a_region_or_a_message(a_region: int, head: bytes, page: bytes) -> None:
    os.pwrite(a_region, head, 0)
    os.pwrite(a_region, page, region.PAGE)
    try:
        region.read(a_region)
    except FormatError:
        pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(page=st.binary(min_size=100, max_size=1300))
def test_any_slot_is_shown_or_damaged(a_region: int, page: bytes) -> None:
    put(a_region, 0, struct.pack("<I", 1) + page[4:], high=1)
    holder = lock(path_of(a_region), 0)
    found = region.read(a_region)
    assert 1 == len(found.slots) + found.damaged
    os.close(holder)


def test_a_container_lowers_its_own_limits(a_region: int) -> None:
    region.set_own(a_region, 1, 1 << 30, 250, 3)
    region.set_own(a_region, 1, None, 200, None)
    header = region.read_header(a_region, 2)
    assert ((0, 1 << 30), (0, 200), (0, 3)) == (header.memory, header.cap, header.weight)
    with pytest.raises(ValueError, match="not in a region"):
        region.set_own(a_region, 32, 1, 1, 1)
