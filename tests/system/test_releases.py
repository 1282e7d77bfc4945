"""Shares with drivers of every branch: structs of each one's own sizes; the simulated driver refuses all others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.leftovers import wait_until
from tests.support.native import CHECKOUT, build
from tests.support.simgpu import MIB, Probe, SimGpu, make_machine, with_gpu
from tests.support.tenants import ENTER_SOURCE, Tenants, build_static

pytestmark = pytest.mark.root
GIB = 1 << 30
LIMIT = 10 * GIB
#: One of every branch that native/rm has tables for, and of those whose numbers lie between two branches.
DRIVERS = (
    "535.288.01",
    "545.29.06",
    "550.163.01",
    "555.58.02",
    "560.35.03",
    "570.148.08",
    "575.64.05",
    "580.159.04",
    "590.48.01",
    "595.45.04",
)
#: Bytes of the parameters of video memory, an address space, a page of counters and a channel, by the first release
#: that has them: from the headers of the open kernel modules. A program says none of these; the driver knows them.
SIZES = {
    0x40: {535: 120, 545: 128},
    0x90F1: {535: 48, 580: 56},
    0xDE: {535: 4, 545: 8},
    0xC86F: {535: 360, 570: 368},
}
_PARAMS = CHECKOUT / "tests/system/shim/params.py"
#: docs/internals/guard.md: managed memory counts 1 ms after it is mapped.
OTHERWISE = {"managed-memory-lies-on-the-gpu-when-set"}
#: Above the last branch.
UNKNOWN = "610.10.01"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine, and the tool that enters the filter."""
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build_static(ENTER_SOURCE, directory / "enter")
    return directory


def smi(gpu: SimGpu, environment: dict[str, str]) -> list[int]:
    """Total and used in MiB, as nvidia-smi prints them."""
    program = str(next(gpu.machine.rglob("nvidia-smi")))
    words = [program, "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
    libraries = str(next(gpu.machine.rglob("libcuda.so.1")).parent)
    every = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": libraries, "NVC_SIM_MACHINE": str(gpu.text), **environment}
    done = subprocess.run(words, env=every, capture_output=True, text=True, check=True, timeout=20)
    return [int(word) for word in done.stdout.replace(",", " ").split()]


def exact(probe: Probe) -> None:
    """Ends at the limit whatever allocates, and every answer is the same."""
    free, total = probe.info()
    assert total == probe.total() == LIMIT
    assert 0 < free < LIMIT, "a context takes some of it"
    assert probe.alloc(1024, 100) == [9, 2], "CUDA_ERROR_OUT_OF_MEMORY at the limit"
    left = probe.info()[0]
    assert probe.alloc(2, 10000) == [left // (2 * MIB), 2]
    rest = left % (2 * MIB)
    assert probe.info() == [rest, LIMIT]
    assert probe.nvml() == [LIMIT, rest, LIMIT - rest]
    assert probe.nvml_v2()[0] == LIMIT
    assert probe.nvml_v2()[2] == rest
    assert probe.free() == 0
    assert probe.info() == [free, LIMIT]
    count, status = probe.created(1024, 100)
    assert (count, status) == (9, 2)


def preloaded(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT, cap=1000)
    assert not gpu.region().header.unknown_driver
    exact(probe)
    shim = {"NVC_SHIM_LIMITS": str(gpu.limits_path), "NVC_SHIM_REGION": str(gpu.region_path)}
    total, used = smi(gpu, {"LD_PRELOAD": str(build() / "libnvc-shim.so"), **shim})
    assert (total, used) == (LIMIT // MIB, 9 * 1024 + (gpu.region().used(0) - 9 * GIB) // MIB)
    frozen(gpu, probe)
    assert not gpu.log.exists() or "unknown" not in gpu.log.read_text()


def frozen(gpu: SimGpu, probe: Probe) -> None:
    """A cap is kept by freezing, a pause stops all, and everything runs again afterwards."""
    assert probe.work(500) == 0
    gpu.share(memory=LIMIT, cap=300)
    probe.info()
    wait_until(lambda: gpu.region().slots[0].frozen_ns[0] > 100_000_000)
    gpu.share(memory=LIMIT, cap=300, paused=True)
    wait_until(lambda: bool(probe.rate(50) == 0))
    gpu.share(memory=LIMIT, cap=1000)
    wait_until(lambda: bool(probe.rate(50) > 0))


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_preloaded_share_holds_with_a_driver_of_the_branch(place: Path, driver: str) -> None:
    with_gpu(place, preloaded, driver=driver)


def guarded(gpu: SimGpu) -> None:
    with Tenants(gpu, Path(gpu.machine)) as tenants:
        tenants.add(memory=LIMIT)
        probe = tenants.probe()
        exact(probe)
        assert tenants.of().memory + probe.info()[0] == LIMIT
        assert set(tenants.reasons()) == {"over-quota"}
        assert probe.work(500) == 0
        assert probe.rate(50) > 0
        probe.kill()
        tenants.wait_until_gone()
        promises(tenants)


def promises(tenants: Tenants) -> None:
    """What cuda_claims.c asks of libcuda: exports, imports, pools, graphs, ... The exit code says whether all held."""
    tenants.add(2, memory=40 * GIB)
    process = tenants.start(build() / "cuda_claims", tenant=2)
    out, _ = process.communicate(timeout=60)
    broken = {line.split()[2] for line in out.splitlines() if line.startswith("not ok")}
    assert broken <= OTHERWISE
    assert out.count("ok ") > 40
    tenants.wait_until_gone(2)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_guarded_share_holds_with_a_driver_of_the_branch(place: Path, driver: str) -> None:
    with_gpu(place, guarded, driver=driver)


def sizes(driver: str) -> dict[int, int]:
    release = int(driver.partition(".")[0])
    return {number: rows[max(since for since in rows if since <= release)] for number, rows in SIZES.items()}


def told_whole(driver: str, out: str) -> None:
    pattern = "1122334455667788"
    wanted = {f"{number:#x}": [0, size, pattern[: 2 * min(size, 8)]] for number, size in sizes(driver).items()}
    assert json.loads(out) == wanted


def whole(gpu: SimGpu) -> None:
    """Neither a byte more is read, for there is none, nor one less given to the driver."""
    words = [sys.executable, "-I", "-S", str(_PARAMS), *(f"{n:#x}:{size}" for n, size in sizes(gpu.driver).items())]
    gpu.share(memory=LIMIT)
    shim = {"NVC_SHIM_LIMITS": str(gpu.limits_path), "NVC_SHIM_REGION": str(gpu.region_path)}
    environment = {"PATH": "/usr/bin:/bin", "LD_PRELOAD": str(build() / "libnvc-shim.so"), **shim}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=20)
    told_whole(gpu.driver, done.stdout)
    assert gpu.region().used(0) == 0
    with Tenants(gpu, Path(gpu.machine)) as tenants:
        tenants.add(memory=LIMIT)
        told_whole(gpu.driver, tenants.run(*words))


@pytest.mark.parametrize("driver", DRIVERS)
def test_parameters_have_the_length_that_they_have_in_the_branch(place: Path, driver: str) -> None:
    with_gpu(place, whole, driver=driver)


def unknown(gpu: SimGpu) -> None:
    probe = gpu.started(memory=LIMIT)
    assert gpu.region().header.unknown_driver
    assert probe.alloc(1024, 20) == [20, 0], "the first library lets everything pass"
    both = " ".join(str(build() / f"libnvc-shim{name}.so") for name in ("", "-api"))
    held = gpu.probe(LD_PRELOAD=both)
    assert held.init() == 0
    assert held.alloc(1024, 20) in ([9, 2], [10, 2]), "the second one counts calls of CUDA: a context is an estimate"
    assert held.info()[1] == LIMIT
    assert gpu.log.read_text().count("unknown-driver") == len(gpu.probes), "once a process"


def test_with_a_driver_of_no_branch_memory_is_held_by_the_second_library_and_said_once(place: Path) -> None:
    with_gpu(place, unknown, driver=UNKNOWN)
