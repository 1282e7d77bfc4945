"""Finding a slot's process on this host, and scheduling it from outside."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.base.errors import ContainerError
from nvc.bindings import rmcontrol
from nvc.linux import syscalls
from nvc.linux.fd import Fd
from nvc.share import bounded, limits, outside, processes, region, store
from nvc.share.limits import Limits, LimitsNode
from nvc.share.model import ResolvedGpu
from nvc.share.outside import timeslice
from nvc.share.region import RegionSlot
from nvc.share.store import Entry, StoredShare

GPU = ResolvedGpu("GPU-b8058b66-3950-5eb2-94c2-df90166ee487", -1, 1 << 30)


def slot(pid: int) -> RegionSlot:
    zero = (0,) * region.MAX_GPUS
    return RegionSlot(
        0, pid, os.stat("/proc/self/ns/pid").st_ino, store.start_time(pid), "x", False, zero, zero, zero, zero, zero
    )


@pytest.fixture
def a_region(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "region"
    path.write_bytes(region.header_bytes())
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_a_process_with_the_region_open_is_found(a_region: int) -> None:
    assert {0: os.getpid()} == processes.host_pids(a_region, [slot(os.getpid())])


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param({"pid": 1, "start_time": store.start_time(1)}, id="a process without the region"),
        pytest.param({"start_time": 1}, id="another start time"),
        pytest.param({"pid_namespace": 1}, id="another pid namespace"),
        pytest.param({"pid": 0xFFFFFFFF}, id="a number that no process has"),
    ],
)
def test_a_slot_that_lies_finds_no_process(lie: dict[str, int], a_region: int) -> None:
    assert {} == processes.host_pids(a_region, [slot(os.getpid()).replace(**lie)])


@pytest.mark.root
def test_a_process_in_a_pid_namespace_is_found(a_region: int) -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo ready; exec sleep 60"]
    outer = subprocess.Popen(command, pass_fds=[a_region], stdout=subprocess.PIPE)
    try:
        assert outer.stdout is not None
        assert b"ready\n" == outer.stdout.readline()
        (host,) = (int(word) for word in Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split())
        wanted = slot(host).replace(pid=1, pid_namespace=os.stat(f"/proc/{host}/ns/pid").st_ino)
        assert {0: host} == processes.host_pids(a_region, [wanted])
    finally:
        outer.kill()
        outer.communicate(timeout=10)


@pytest.mark.parametrize(
    ("weight", "priority", "groups", "expected"),
    [
        (0, "normal", 1, 0),
        (0, "normal", 2, 1024),
        (10, "normal", 1, 2048),
        (30, "normal", 1, 6144),
        (30, "normal", 3, 2048),
        (1, "normal", 1, 500),
        (1000, "normal", 1, 65000),
        (10, "high", 1, 20480),
        (20, "low", 1, 2048),
        (10, "normal", 0, 2048),
    ],
)
def test_a_weight_is_a_timeslice_divided_among_the_groups(
    weight: int, priority: str, groups: int, expected: int
) -> None:
    assert expected == timeslice(GPU.replace(weight=weight, priority=priority), groups)


# The calls, on a descriptor whose ioctl answers from here.


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Every control call as (client, object, command, parameters' size, first word, count); made in this process."""
    monkeypatch.setattr(bounded, "run", lambda work, seconds: work())
    seen: list[tuple[int, ...]] = []

    def ioctl(descriptor: int, request: int, head: bytearray, change: bool) -> int:
        assert (rmcontrol.REQUEST, 32, True) == (request, len(head), change)
        effective = syscalls.capget()[0]
        client, handle, command, flags, address, size, status = struct.unpack("=IIIIQII", head)
        assert (0, 0) == (flags, status)
        memory = os.open("/proc/self/mem", os.O_RDONLY)
        parameters = os.pread(memory, size, address)
        os.close(memory)
        first, count = struct.unpack_from("=II", parameters)
        handles = struct.unpack_from(f"={count}I", parameters, 280) if size == 536 else ()
        clients = struct.unpack_from(f"={count}I", parameters, 24) if size == 536 else ()
        assert {client} >= set(clients)
        seen.append((client, handle, command, size, first, count, *handles))
        assert not effective & (1 << 21 | 1 << 23 | 1 << 38)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    return seen


@pytest.fixture
def entry(tmp_path: Path) -> Iterator[tuple[Entry, Limits]]:
    """A container whose one process is this one, its control node a file."""
    node = tmp_path / "nvidiactl"
    node.write_text("")
    status = node.stat()
    content = Limits((GPU.replace(weight=30),), (LimitsNode(1, 255, status.st_dev, status.st_ino),))
    directory = str(tmp_path / "nvc/share")
    path = store.create(
        StoredShare("abc", "abc", os.getpid(), store.start_time(os.getpid())), content, b"", directory=directory
    )
    control = os.open(node, os.O_RDWR)
    other = os.open("/dev/null", os.O_RDWR)
    holder = os.open(f"{path}/region", os.O_RDWR)
    fcntl.fcntl(holder, region.F_OFD_SETLK, region.FLOCK.pack(fcntl.F_WRLCK, 0, region.LOCKS, 1, 0))
    page = bytearray(region.PAGE)
    mine = slot(os.getpid())
    region._SLOT.pack_into(page, 0, 1, 1, mine.pid_namespace, mine.pid, 0, mine.start_time, b"test")
    struct.pack_into("<I", page, region.GROUPS, 2)
    struct.pack_into("<II", page, region.CHANNEL_VERSION, 2, 70)
    for number in range(70):
        region._CHANNEL.pack_into(
            page, region.CHANNELS + 24 * number, 0xC1, 0x20, 0xA0 + number % 2, 0x100 + number, control, 0
        )
    os.pwrite(holder, bytes(page), region.PAGE)
    os.pwrite(holder, struct.pack("<I", 1), 16)
    with store.find("abc", directory) as found:
        yield found, content
    for descriptor in (control, other, holder):
        os.close(descriptor)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.root
@pytest.mark.parametrize("frozen", [True, False])
def test_channels_are_stopped_64_at_a_time_and_the_copy_is_closed(
    frozen: bool, entry: tuple[Entry, Limits], calls: list[tuple[int, ...]]
) -> None:
    before = descriptors(), syscalls.capget()
    assert outside.Outcome((os.getpid(),)) == outside.freeze(*entry, frozen=frozen)
    assert before == (descriptors(), syscalls.capget())
    assert [
        (0xC1, 0x20, 0x2080110B, 536, int(frozen), 64, *range(0x100, 0x140)),
        (0xC1, 0x20, 0x2080110B, 536, int(frozen), 6, *range(0x140, 0x146)),
    ] * (1 if frozen else 3) == calls


@pytest.mark.root
def test_every_group_gets_its_timeslice(entry: tuple[Entry, Limits], calls: list[tuple[int, ...]]) -> None:
    assert outside.Outcome((os.getpid(),)) == outside.reweigh(*entry)
    assert [(0xC1, group, 0xA06C0103, 8, 3072, 0) for group in (0xA0, 0xA1)] == calls


@pytest.mark.root
def test_a_process_with_a_cap_thread_is_left_to_itself(
    entry: tuple[Entry, Limits], calls: list[tuple[int, ...]]
) -> None:
    descriptor = entry[0].open_region(write=True)
    os.pwrite(descriptor, struct.pack("<I", 1), region.PAGE + 20)
    os.close(descriptor)
    assert outside.Outcome() == outside.freeze(*entry, frozen=True)
    assert [] == calls


@pytest.mark.root
@pytest.mark.parametrize("which", ["another file", "no descriptor", "closed"])
def test_only_the_control_node_is_called(which: str, entry: tuple[Entry, Limits], calls: list[tuple[int, ...]]) -> None:
    number = {"another file": 0, "no descriptor": -1, "closed": 1 << 20}[which]
    descriptor = entry[0].open_region(write=True)
    for index in range(70):
        os.pwrite(descriptor, struct.pack("<i", number), region.PAGE + region.CHANNELS + 24 * index + 16)
    os.close(descriptor)
    before = descriptors()
    outcome = outside.freeze(*entry, frozen=True)
    assert ((), 1, before) == (outcome.done, len(outcome.problems), descriptors())
    assert [] == calls


@pytest.mark.root
def test_what_the_driver_answers_is_told(entry: tuple[Entry, Limits], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, request: int, head: bytearray, change: bool) -> int:
        struct.pack_into("=I", head, 28, 0x1B)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    assert "status 0x1b" in outside.freeze(*entry, frozen=True).problems[0]
    monkeypatch.undo()
    # A plain file is no driver.
    assert "ioctl" in outside.freeze(*entry, frozen=True).problems[0]


@pytest.mark.root
def test_a_descriptor_is_copied_and_shares_its_open_file(tmp_path: Path) -> None:
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    with syscalls.pidfd_open(os.getpid()) as process, syscalls.pidfd_getfd(process, file) as copy:
        os.write(file, b"1234")
        assert 4 == os.lseek(copy.fileno(), 0, os.SEEK_CUR)
        assert not os.get_inheritable(copy.fileno())
    os.close(file)
    with pytest.raises(OSError, match="pidfd_open"):
        syscalls.pidfd_open(0x3FFFFFFF)


def test_limits_name_the_control_node_by_number_or_file() -> None:
    with Fd(os.open("/dev/null", os.O_RDONLY)) as null:
        found, known = null.stat(), syscalls.statx_cached(null)
    assert known == syscalls.statx_cached("/dev/null")
    for place in ((found.st_rdev, 0), (found.st_dev, found.st_ino)):
        outside._check(3, known, [LimitsNode(limits.NODE_CONTROL, 255, *place)])
    for place in ((found.st_rdev + 1, 0), (found.st_dev, found.st_ino + 1)):
        with pytest.raises(ContainerError, match="descriptor 3 is not the driver's control node"):
            outside._check(3, known, [LimitsNode(limits.NODE_CONTROL, 255, *place)])
