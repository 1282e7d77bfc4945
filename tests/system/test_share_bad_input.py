"""Limits and regions that are not what they should be, in a program under the preloaded library on a simulated GPU.

Bad limits refuse every allocation and break nothing; a bad region leaves the quota to each process alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import statistics
import struct
import subprocess
import time
from binascii import crc32
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nvc.share import limits, region
from tests.support import harmless
from tests.support.isolation import mount_bind
from tests.support.native import CHECKOUT, build
from tests.support.repeated import good
from tests.support.simgpu import MIB, SimGpu, make_machine, with_gpu

pytestmark = pytest.mark.root

GIB = 1 << 30
LIMIT = 4 * GIB
OUT_OF_MEMORY = 2
ATTACH = CHECKOUT / "tests/gpu/enforce/programs/attach.c"
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    return directory


def _patched(content: bytes, offset: int, form: str, value: int, *, sign: bool = True) -> bytes:
    """A limits file with a number changed, and a checksum that fits it."""
    changed = bytearray(content)
    struct.pack_into(form, changed, offset, value)
    if sign:
        struct.pack_into("<I", changed, limits.CHECKSUM, crc32(changed[limits.BODY :]))
    return bytes(changed)


#: What is wrong -> how the good file is changed.
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "one byte": lambda good: good[:1],
    "a byte short": lambda good: good[:-1],
    "a byte too long": lambda good: good + b"\0",
    "zeros": lambda good: bytes(len(good)),
    "ones": lambda good: b"\xff" * len(good),
    "text": lambda good: b"mem=10Gi\n" * 1000,
    "another magic": lambda good: _patched(good, 0, "<I", 0x4C43564F),
    "an older version": lambda good: _patched(good, 4, "<I", 0),
    "a newer version": lambda good: _patched(good, 4, "<I", limits.VERSION + 1),
    "another size": lambda good: _patched(good, 8, "<I", 4096),
    "a writer that died": lambda good: _patched(good, limits.GENERATION, "<I", 3),
    "a wrong checksum": lambda good: _patched(good, limits.CHECKSUM, "<I", 1, sign=False),
    "a changed limit": lambda good: _patched(good, limits.GPUS + 16, "<Q", 1 << 40, sign=False),
    "too many GPUs": lambda good: _patched(good, limits.BODY + 4, "<I", limits.MAX_GPUS + 1),
    "4294967295 GPUs": lambda good: _patched(good, limits.BODY + 4, "<I", 0xFFFFFFFF),
    "too many nodes": lambda good: _patched(good, limits.BODY + 8, "<I", limits.MAX_NODES + 1),
    "4294967295 nodes": lambda good: _patched(good, limits.BODY + 8, "<I", 0xFFFFFFFF),
    "a driver without an end": lambda good: _patched(
        _patched(good, limits.BODY + 16, "<Q", 0x3939393939393939),
        limits.BODY + 24,
        "24s",
        b"9" * 24,  # type: ignore[arg-type]
    ),
}


def bad_contents(gpu: SimGpu) -> None:
    gpu.share(memory=LIMIT)
    good = gpu.limits_path.read_bytes()
    for name, change in CONTENTS.items():
        gpu.limits_path.write_bytes(change(good))
        probe = gpu.probe()
        assert probe.init() == OUT_OF_MEMORY, f"{name}: a context needs memory"
        assert probe.alloc(1, 1)[0] == 0, name
        probe.kill()
    gpu.limits_path.write_bytes(good)
    assert gpu.probe().init() == 0, "the good file is good"


def test_limits_that_are_none_refuse_every_allocation(machine: Path) -> None:
    with_gpu(machine, bad_contents)


def _no_file(path: Path) -> None:
    path.unlink()


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent")


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def odd_files(gpu: SimGpu) -> None:
    gpu.share(memory=LIMIT)
    good = gpu.limits_path.read_bytes()
    for make in (_no_file, _directory, _fifo, _link_to_nothing, _device):
        make(gpu.limits_path)
        probe = gpu.probe()
        assert probe.init() == OUT_OF_MEMORY, make.__name__
        probe.kill()
        if gpu.limits_path.is_dir() and not gpu.limits_path.is_symlink():
            gpu.limits_path.rmdir()
        else:
            gpu.limits_path.unlink(missing_ok=True)
        gpu.limits_path.write_bytes(good)


def test_limits_that_are_no_file_refuse_and_do_not_hang(machine: Path) -> None:
    with_gpu(machine, odd_files)


def broken_and_repaired(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT)
    assert probe.alloc(64, 4) == [4, 0]
    descriptor = os.open(gpu.limits_path, os.O_RDWR)
    good = os.pread(descriptor, limits.SIZE, 0)
    broken = bytearray(good)
    struct.pack_into("<II", broken, limits.GENERATION, 10, 12345)
    os.pwrite(descriptor, broken, 0)
    assert probe.alloc(64, 1) == [0, OUT_OF_MEMORY]
    assert probe.free() == 0, "what it has it can give back"
    os.close(descriptor)
    gpu.share(memory=LIMIT)
    assert probe.alloc(64, 4) == [4, 0]


def test_limits_that_break_while_a_program_runs_refuse_until_they_are_good_again(machine: Path) -> None:
    with_gpu(machine, broken_and_repaired)


def unknown_drivers(gpu: SimGpu) -> None:
    for index, driver in enumerate(("999.1", "0", "580", "580.", "nonsense", "-1.5", "580.159.04.5.6", "9" * 31)):
        gpu.region_path.unlink(missing_ok=True)
        gpu.limits_path.unlink(missing_ok=True)
        gpu.log.unlink(missing_ok=True)
        gpu.share(memory=GIB, driver=driver)
        probe = gpu.probe()
        assert probe.init() == 0, driver
        known = not gpu.region().header.unknown_driver
        assert probe.alloc(1024, 4) == ([0, OUT_OF_MEMORY] if known else [4, 0]), driver
        said = gpu.log.read_text().count("unknown-driver") if gpu.log.exists() else 0
        assert said == (0 if known else 1), f"{driver}: said once, not {said} times"
        assert index != 0 or not known
        probe.kill()


def test_an_unknown_driver_passes_and_is_reported_once(machine: Path) -> None:
    with_gpu(machine, unknown_drivers)


def _full_disk(gpu: SimGpu) -> None:
    small = gpu.work / "small"
    small.mkdir()
    assert _libc.mount(b"tmpfs", str(small).encode(), b"tmpfs", 0, b"size=64k") == 0
    try:
        shown = small / "region"
        with shown.open("wb") as file:
            file.write(region.header_bytes())
            file.truncate(region.SIZE)
        # All that is left of it.
        with (small / "rest").open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(4096))
                except OSError:
                    break
        probe = gpu.probe(NVC_SHIM_REGION=str(shown))
        assert probe.init() == 0
        assert probe.alloc(1024, 100) == [3, OUT_OF_MEMORY], "the quota holds in the process"
        assert probe.free() == 0
        probe.kill()
    finally:
        _libc.umount2(str(small).encode(), 2)


def _read_only(gpu: SimGpu) -> None:
    place = gpu.work / "read-only"
    place.touch()
    mount_bind(str(gpu.region_path), str(place))
    # MS_REMOUNT | MS_BIND | MS_RDONLY
    assert _libc.mount(None, str(place).encode(), None, 0x20 | 0x1000 | 1, None) == 0
    try:
        probe = gpu.probe(NVC_SHIM_REGION=str(place))
        assert probe.init() == 0
        assert probe.alloc(1024, 100) == [3, OUT_OF_MEMORY]
        probe.kill()
    finally:
        _libc.umount2(str(place).encode(), 2)


def bad_disks(gpu: SimGpu) -> None:
    gpu.share(memory=LIMIT)
    _full_disk(gpu)
    _read_only(gpu)


def test_a_region_on_a_full_or_read_only_disk_leaves_the_quota_to_the_process(machine: Path) -> None:
    with_gpu(machine, bad_disks)


def _header(high: int = 0, magic: int = region.MAGIC, version: int = region.VERSION) -> bytes:
    head = region.HEADER.pack(magic, version, region.PAGE, region.SLOTS, high, 0)
    return head.ljust(region.PAGE, b"\0")


def _garbage(seed: int) -> bytes:
    return _header(high=64) + random.Random(seed).randbytes(64 * region.PAGE)


#: What is wrong -> the region's beginning, and whether it is as long as it should be.
REGIONS: dict[str, tuple[bytes, bool]] = {
    "empty": (b"", False),
    "short": (_header(), False),
    "another magic": (_header(magic=1), True),
    "another version": (_header(version=9), True),
    "more slots used than there are": (_header(high=0xFFFFFFFF), True),
    "garbage in the slots": (_garbage(1), True),
    "slots of the dead, full of memory": (
        _header(high=200)
        + (struct.pack("<II56x", 1, 1) + struct.pack("<Q", 1 << 60)).ljust(region.PAGE, b"\xff") * 200,
        True,
    ),
}


def bad_regions(gpu: SimGpu) -> None:
    gpu.share(memory=LIMIT)
    for name, (content, whole) in REGIONS.items():
        with gpu.region_path.open("wb") as file:
            file.write(content)
            if whole:
                file.truncate(region.SIZE)
        probe = gpu.probe()
        assert probe.init() == 0, name
        assert probe.alloc(1024, 100) == [3, OUT_OF_MEMORY], f"{name}: the quota is what it is"
        assert probe.free() == 0, name
        assert probe.alloc(1024, 100) == [3, OUT_OF_MEMORY], name
        probe.kill()


def test_a_region_with_anything_in_it_neither_stops_a_program_nor_lifts_its_quota(machine: Path) -> None:
    with_gpu(machine, bad_regions)


def _crowd(gpu: SimGpu, count: int, each: int) -> int:
    """Slots of ``count`` living processes with ``each`` bytes; a descriptor that keeps them alive."""
    slot = (struct.pack("<II", 1, 1).ljust(region.MEMORY, b"\0") + struct.pack("<Q", each)).ljust(region.PAGE, b"\0")
    with gpu.region_path.open("wb") as file:
        file.write(_header(high=count) + slot * count)
        file.truncate(region.SIZE)
    descriptor = os.open(gpu.region_path, os.O_RDWR | os.O_CLOEXEC)
    wanted = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, region.LOCKS, count, 0)
    fcntl.fcntl(descriptor, region.F_OFD_SETLK, wanted)
    return descriptor


def five_thousand(gpu: SimGpu) -> None:
    gpu.share(memory=16 * GIB)
    alive = _crowd(gpu, 5000, 2 * MIB)
    probe = gpu.probe()
    assert probe.init() == 0
    free, total = probe.info()
    assert total == 16 * GIB
    own = gpu.region().slots[-1].memory[0]
    assert len(gpu.region().slots) == 5001
    assert free == total - 5000 * 2 * MIB - own
    assert probe.alloc(1024, 100) == [free // GIB, OUT_OF_MEMORY]
    os.close(alive)
    assert probe.free() == 0
    end = time.monotonic() + 30
    while probe.info()[0] != total - own:  # of so many, the dead are not looked for with every question
        assert time.monotonic() < end, "the dead's memory is free"


def test_five_thousand_processes_are_counted_and_their_deaths_too(machine: Path) -> None:
    with_gpu(machine, five_thousand)


def no_slot_left(gpu: SimGpu) -> None:
    gpu.share(memory=LIMIT)
    alive = _crowd(gpu, region.SLOTS, 0)
    probe = gpu.probe()
    assert probe.init() == 0
    assert probe.alloc(1024, 100) == [3, OUT_OF_MEMORY]
    os.close(alive)


def test_a_process_that_finds_no_slot_has_the_quota_for_itself(machine: Path) -> None:
    with_gpu(machine, no_slot_left)


def three_hundred(gpu: SimGpu, programs: str) -> None:
    gpu.share(memory=LIMIT)
    variables = {"NVC_SHIM_LIMITS": str(gpu.limits_path), "NVC_SHIM_REGION": str(gpu.region_path)}

    def slowest() -> list[int]:
        """Nanoseconds of the last one's start, without the library and with it."""
        found = []
        for library in ("-", str(build() / "libnvc-shim.so")):
            command = [f"{programs}/herd", "300", library, f"{programs}/attach", "/dev/nvidiactl"]
            done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=50, check=False)
            assert done.returncode == 0, done.stderr
            times = [int(line.split()[0]) for line in done.stdout.splitlines()]
            assert len(times) == 300
            found.append(max(times))
        return found

    # Two cores and a simulated driver: 10 ms at p99 are measured on a GPU. Here no process may wait for all the others.
    good(slowest, lambda got: got[1] - got[0] < 1e9)
    found = gpu.region()
    assert found.slots == ()
    # All may wait for the simulated driver at once; none goes past a slot that is free.
    assert 1 <= found.header.high <= 300


def test_three_hundred_processes_that_start_at_once_all_find_a_slot(
    machine: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = tmp_path_factory.mktemp("programs")
    harmless.build_herd(programs)
    subprocess.run(["gcc", "-O1", "-o", programs / "attach", ATTACH], check=True)
    with_gpu(machine, partial(three_hundred, programs=str(programs)))


def _faults(command: list[str], variables: dict[str, str]) -> int:
    """Page faults, without I/O, of a process from its exec to its end."""
    child = os.posix_spawn(command[0], command, variables, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", 1, 0)])
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    return usage.ru_minflt


def page_faults(gpu: SimGpu, programs: str) -> None:
    gpu.share(memory=LIMIT)
    variables = {"NVC_SHIM_LIMITS": str(gpu.limits_path), "NVC_SHIM_REGION": str(gpu.region_path)}
    both = " ".join(str(build() / name) for name in ("libnvc-shim.so", "libnvc-shim-managed.so"))
    command = [f"{programs}/attach", "/dev/nvidiactl"]
    counts: dict[str, list[int]] = {"": [], both: []}
    for _ in range(40):
        for library, found in counts.items():
            found.append(_faults(command, {**variables, **({"LD_PRELOAD": library} if library else {})}))
    without, with_both = (statistics.median(found) for found in counts.values())
    print("page faults of a first call without the libraries, with them:", without, with_both)
    assert 1 <= with_both - without <= 18
    # One after the other: the slot of the one before is free, and no page of others is looked at.
    assert gpu.region().header.high == 1


def test_a_start_and_a_first_call_touch_few_pages(machine: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """On a virtual machine these are what a start costs: 300 at once have as many as one alone."""
    programs = tmp_path_factory.mktemp("programs")
    subprocess.run(["gcc", "-O1", "-o", programs / "attach", ATTACH], check=True)
    with_gpu(machine, partial(page_faults, programs=str(programs)))
