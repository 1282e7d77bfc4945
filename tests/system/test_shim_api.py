"""Two preloaded libraries over the simulated driver: refused managed memory, oversubscription, an unknown driver."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nvc.share import preload
from tests.support.native import build
from tests.support.simgpu import Probe, SimGpu, make_machine, with_gpu

pytestmark = pytest.mark.root
GIB = 1 << 30


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    return directory


def both(gpu: SimGpu, *, api: bool = True) -> Probe:
    libraries = [str(build() / name) for name in preload.names(memory=True, api=api)]
    return gpu.probe(LD_PRELOAD=":".join(libraries))


def limited(gpu: SimGpu) -> None:
    gpu.share(memory=10 * GIB)
    probe = both(gpu, api=False)
    assert probe.init() == 0
    held = gpu.region().used(0)
    assert probe.managed(4 * 1024) == 0
    assert gpu.region().used(0) == held + 4 * GIB
    assert probe.managed(7 * 1024) == 2, "out of memory, though libcuda says that it does not know"
    assert gpu.region().used(0) == held + 4 * GIB
    assert probe.managed(1024) == 0
    alone = gpu.probe()
    assert alone.init() == 0
    assert alone.managed(20 * 1024) == 999, "libcuda's own word: else this test shows nothing"


def test_managed_memory_beyond_the_limit_is_out_of_memory(machine: Path) -> None:
    with_gpu(machine, limited)


def oversubscribed(gpu: SimGpu) -> None:
    gpu.share(memory=300 * GIB, oversubscribe=True)
    probe = both(gpu)
    assert probe.init() == 0
    held = gpu.region().used(0)
    assert probe.alloc(200 * 1024, 1) == [1, 0], "more than the GPU has"
    assert gpu.region().used(0) == held + 200 * GIB, "charged once, for this GPU"
    assert probe.alloc(100 * 1024, 1) == [0, 2], "the share's limit still holds"
    assert probe.managed(100 * 1024) == 2, "and is told by the error that means it"
    assert probe.free() == 0
    assert gpu.region().used(0) == held


def test_an_oversubscribed_share_is_held_by_the_mappings(machine: Path) -> None:
    with_gpu(machine, oversubscribed)


def unknown(gpu: SimGpu) -> None:
    gpu.share(memory=10 * GIB, driver="9999.1")
    probe = both(gpu)
    assert probe.init() == 0
    assert probe.total() == 10 * GIB
    assert probe.info() == [10 * GIB, 10 * GIB]
    assert probe.alloc(1024, 11) == [10, 2]
    assert probe.info() == [0, 10 * GIB]
    assert probe.free() == 0
    assert probe.info() == [10 * GIB, 10 * GIB]


def test_an_unknown_drivers_quota_is_kept_by_calls(machine: Path) -> None:
    with_gpu(machine, unknown)


def every_allocator(gpu: SimGpu) -> None:
    gpu.share(memory=10 * GIB)
    libraries = [str(build() / name) for name in preload.names(memory=True, api=True)]
    place = next(gpu.machine.rglob("libcuda.so.1")).parent
    environment = {**gpu.environment, "LD_PRELOAD": ":".join(libraries), "LD_LIBRARY_PATH": str(place)}
    command = [build("cuda_alloc") / "cuda_alloc", "8", "1024"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, "array=1\n" in found.stdout) == (0, True), found.stdout + found.stderr
    assert "leaked_kib=0\n" in found.stdout, (
        "16384: an array was charged by each of two wrappers that its creation passed"
    )


@pytest.mark.parametrize("driver", ["580.159.04", "615.65.06"])
def test_what_every_allocator_took_is_free_at_the_end(machine: Path, driver: str) -> None:
    """P6: 16 MiB of the quota were gone with a driver that is not known."""
    with_gpu(machine, every_allocator, driver=driver)
