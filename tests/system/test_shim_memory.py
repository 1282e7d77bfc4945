"""The preloaded library's quota, with real ioctls on a simulated GPU: exact, the same on every path."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from nvc.share import region
from tests.support.attacks import SOURCES
from tests.support.native import build
from tests.support.simgpu import DRIVER, MIB, SimGpu, make_machine, with_gpu

pytestmark = pytest.mark.root
GIB = 1 << 30
LIMIT = 10 * GIB
PLACE = 0x6000_0000_0000


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    return directory


def exact(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT)
    free, total = probe.info()
    assert total == probe.total() == LIMIT
    assert 0 < free < LIMIT, "a context takes some of it"
    assert probe.alloc(1024, 100) == [9, 2], "CUDA_ERROR_OUT_OF_MEMORY at the limit"
    left = probe.info()[0]
    assert probe.alloc(2, 10000) == [left // (2 * MIB), 2]
    assert probe.info() == [left % (2 * MIB), LIMIT]
    assert gpu.region().used(0) + probe.info()[0] == LIMIT
    assert probe.free() == 0
    assert probe.info() == [free, LIMIT]


def test_the_limit_is_exact_and_every_answer_agrees(machine: Path) -> None:
    with_gpu(machine, exact)


def without_drift(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT)
    before = probe.info()
    assert probe.churn(2, 10_000) == 0
    assert probe.info() == before


def test_ten_thousand_allocations_leave_the_count_where_it_was(machine: Path) -> None:
    with_gpu(machine, without_drift)


def without_limit(gpu: SimGpu) -> None:
    probe = gpu.started(memory=0)
    bare = gpu.probe(preload=False)
    assert bare.init() == 0
    assert probe.total() == bare.total()
    assert probe.alloc(1024, 20) == [20, 0]


def test_without_a_limit_answers_are_the_drivers(machine: Path) -> None:
    with_gpu(machine, without_limit)


def closed(gpu: SimGpu) -> None:
    gpu.share(memory=LIMIT)
    content = bytearray(gpu.limits_path.read_bytes())
    content[200] ^= 1
    for bad in (bytes(content), bytes(content[:100]), b""):
        gpu.limits_path.write_bytes(bad)
        probe = gpu.probe()
        assert probe.init() == 2, "a context needs memory"
    gpu.limits_path.unlink()
    assert gpu.probe().init() == 2
    assert "no-limits" in gpu.log.read_text()


def test_without_good_limits_every_allocation_is_refused(machine: Path) -> None:
    with_gpu(machine, closed)


def live(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT)
    assert probe.alloc(1024, 4) == [4, 0]
    gpu.share(memory=3 * GIB)
    assert probe.info() == [0, 3 * GIB], "usage above the limit is not negative room"
    assert probe.alloc(2) == [0, 2]
    assert probe.total() == 3 * GIB
    gpu.share(memory=20 * GIB)
    assert probe.alloc(1024, 100) == [15, 2]


def test_a_limit_that_changes_counts_at_once(machine: Path) -> None:
    with_gpu(machine, live)


def together(gpu: SimGpu) -> None:
    first = gpu.started(memory=LIMIT)
    second = gpu.started(memory=LIMIT)
    assert len(gpu.region().slots) == 2
    for probe in (first, second):
        probe.begin("alloc", 64, 1000)
    counts = [probe.end() for probe in (first, second)]
    assert [status for _, status in counts] == [2, 2]
    left = first.info()[0]
    assert left == second.info()[0] < 64 * MIB
    first.kill()
    free, _ = second.info()
    assert free > left + counts[0][0] * 64 * MIB - 1, "what a killed process had is free at the next look"
    assert second.alloc(64, 1000)[0] >= counts[0][0]


def test_processes_share_the_limit_and_the_dead_give_back(machine: Path) -> None:
    with_gpu(machine, together)


def managed(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT)
    free, _ = probe.info()
    assert probe.map(PLACE, 4096) == 0
    assert probe.info()[0] == free - 4 * GIB
    assert gpu.region().slots[0].managed[0] >= 4 * GIB
    assert probe.map(PLACE + 5 * GIB, 8192) == 12, "ENOMEM"
    assert probe.unmap(PLACE, 1024) == 0
    assert probe.info()[0] == free - 3 * GIB
    assert probe.cover(PLACE + GIB, 1024) == 0
    assert probe.info()[0] == free - 2 * GIB
    assert probe.unmap(PLACE, 4096) == 0
    assert probe.info()[0] == free


def test_managed_memory_is_charged_where_it_is_mapped(machine: Path) -> None:
    with_gpu(machine, managed)


def remapped(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT)
    free, _ = probe.info()
    assert probe.map(PLACE, 6144) == 0
    assert probe.info()[0] == free - 6 * GIB
    assert probe.map(PLACE + GIB, 7 * 1024) == 0, "2 GiB are new, and there is room for them"
    assert probe.info()[0] == free - 8 * GIB
    assert probe.map(PLACE + GIB, 12 * 1024) == 12, "ENOMEM"
    assert probe.info()[0] == free - 8 * GIB, "what is mapped there stays charged"
    assert probe.misplaced(PLACE, 8192) == 22, "EINVAL"
    assert probe.misplaced(PLACE + 2 * GIB, 7168) == 22
    assert probe.info()[0] == free - 8 * GIB, "also when it was the kernel that refused"
    assert gpu.region().slots[0].managed[0] == 8 * GIB
    assert probe.unmap(PLACE, 8192) == 0
    assert probe.info()[0] == free
    assert gpu.region().slots[0].managed[0] == 0


def test_a_refused_mapping_leaves_the_charge_of_what_is_mapped_there(machine: Path) -> None:
    with_gpu(machine, remapped)


def other_paths(gpu: SimGpu) -> None:
    for name in ("pooled", "created"):
        probe = gpu.started(memory=LIMIT)
        count, status = getattr(probe, name)(1024, 100)
        assert (count, status) == (9, 2)
        assert probe.alloc(1024) == [0, 2]
        probe.kill()
    probe = gpu.started(memory=LIMIT)
    free, _ = probe.info()
    assert probe.managed(4096) == 0
    assert probe.info()[0] <= free - 4 * GIB
    assert probe.managed(8192) == 999, "libcuda's CUDA_ERROR_UNKNOWN for a mapping that was refused"
    assert probe.free() == 0
    assert probe.info()[0] == free


def test_pools_created_and_managed_memory_count_alike(machine: Path) -> None:
    with_gpu(machine, other_paths)


def nvml(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT)
    assert probe.alloc(1024, 2) == [2, 0]
    total, free, used = probe.nvml()
    assert [free, total] == probe.info()
    assert used == LIMIT - free


def test_nvml_says_what_cuda_says(machine: Path) -> None:
    with_gpu(machine, nvml)


def lowered(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT)
    descriptor = os.open(gpu.region_path, os.O_RDWR)
    region.set_own(descriptor, 0, 4 * GIB, None, None)
    assert probe.info()[1] == probe.total() == 4 * GIB
    assert probe.alloc(1024, 100) == [3, 2]
    region.set_own(descriptor, 0, 40 * GIB, None, None)
    os.close(descriptor)
    assert probe.info()[1] == LIMIT, "the container can only lower it"


def test_the_container_can_lower_its_limit_but_not_raise_it(machine: Path) -> None:
    with_gpu(machine, lowered)


def children(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT)
    assert probe.alloc(1024, 3) == [3, 0]
    before = probe.info()
    assert probe.fork() == [0]
    assert probe.fork("close") == [0]
    assert probe.brute() == 0
    assert probe.spawn() == 0
    assert probe.info() == before
    assert probe.alloc(1024, 100) == [6, 2], "the quota is what it was"
    assert len(gpu.region().slots) == 1, "children that make no call on the driver have no slot"


def test_children_leave_the_parents_account_alone(machine: Path) -> None:
    with_gpu(machine, children)


def unknown(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT, driver="999.1.2")
    assert probe.total() > LIMIT
    assert gpu.region().header.unknown_driver


def test_an_unknown_driver_passes_and_says_so(machine: Path) -> None:
    with_gpu(machine, unknown)


def alone(gpu: SimGpu) -> None:
    gpu.share(memory=LIMIT)
    gpu.region_path.unlink()
    probe = gpu.probe()
    assert probe.init() == 0
    assert probe.alloc(1024, 100) == [9, 2]
    assert "no-region" in gpu.log.read_text()


def test_without_a_region_the_quota_holds_in_the_process(machine: Path) -> None:
    with_gpu(machine, alone)


@pytest.fixture(scope="module")
def mapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that maps memory by UVM and frees its handles (tests/system/attacks/uvm.c)."""
    binary = tmp_path_factory.mktemp("mapper") / "mapper"
    subprocess.run(["gcc", "-O1", "-pthread", "-o", binary, *SOURCES], check=True, timeout=60)
    return binary


@contextmanager
def _mapping(mapper: Path, gpu: SimGpu, *words: str) -> Iterator[subprocess.Popen[str]]:
    shim = {"NVC_SHIM_LIMITS": str(gpu.limits_path), "NVC_SHIM_REGION": str(gpu.region_path)}
    environment = {**os.environ, **shim, "LD_PRELOAD": str(build() / "libnvc-shim.so")}
    pipe = subprocess.PIPE
    with subprocess.Popen([mapper, *words], env=environment, text=True, stdin=pipe, stdout=pipe) as program:
        try:
            yield program
        finally:
            program.kill()


def _until(program: subprocess.Popen[str], last: str) -> dict[str, int]:
    """What it says, up to the line of that name."""
    said: dict[str, int] = {}
    assert program.stdout
    while last not in said:
        name, _, value = program.stdout.readline().strip().partition("=")
        said[name] = int(value)
    return said


def _go_on(program: subprocess.Popen[str]) -> None:
    assert program.stdin
    program.stdin.write("\n")
    program.stdin.flush()


def kept(mapper: Path, gpu: SimGpu) -> None:
    gpu.share(memory=LIMIT)
    with _mapping(mapper, gpu, "uvm", "20") as program:
        said = _until(program, "kept")
        assert (said["map"], said["kept"]) == (0, 10)
        assert gpu.region().used(0) == 10 * GIB, "every handle was freed"
        probe = gpu.probe()
        assert probe.init() == 2, "CUDA_ERROR_OUT_OF_MEMORY"
        _go_on(program)
        _until(program, "let-go")
        assert gpu.region().used(0) == 5 * GIB
        assert probe.init() == 0
    with _mapping(mapper, gpu, "uvm-tree") as program:
        probe.kill()
        assert _until(program, "kept") == {"kept": 3}
        assert gpu.region().used(0) == 6 * GIB
        _go_on(program)
        assert _until(program, "freed") == {"freed": 0}
        assert gpu.region().used(0) == 3 * GIB, "what was not mapped went with the client"


@pytest.mark.parametrize("driver", [DRIVER, "590.48.01"])
def test_memory_that_uvm_has_mapped_stays_charged_without_its_handle(machine: Path, mapper: Path, driver: str) -> None:
    with_gpu(machine, partial(kept, mapper), driver=driver)
