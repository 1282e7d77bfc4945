"""Programs behind the filter and a guard, on a simulated GPU, the way tests/gpu/guard measures them on a real one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.guarded import Guarding, build_launcher
from tests.support.native import build
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken

pytestmark = pytest.mark.root

GIB = 1 << 30


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build("cuda_alloc", "cuda_burn")
    return directory


def guarding(gpu: SimGpu) -> Guarding:
    return Guarding(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work))


def environment(gpu: SimGpu) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(next(gpu.machine.rglob("libcuda.so.1")).parent)}


def allocate(gpu: SimGpu) -> None:
    with guarding(gpu) as guarded:
        tenant = guarded.tenant(memory=4 * GIB)
        command = tenant.wrap([str(build() / "cuda_alloc"), "8", "1024"])
        done = subprocess.run(command, env=environment(gpu), capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        said = dict(line.split("=") for line in done.stdout.splitlines())
        plain = (said["plain"], said["plain_error"], said["virtual"], said["virtual_error"])
        assert plain == ("3", "2", "3", "2"), "the context takes some"
        assert (said["start_total_kib"], said["leaked_kib"]) == (str(4 * GIB >> 10), "0")
        assert tenant.empty()
        assert tenant.refused()["over-quota"] >= 3, "managed memory is noticed, and the tenant frozen"
        assert tenant.status().notifications > 10


def test_a_quota_is_kept_and_nothing_stays(machine: Path) -> None:
    with_gpu(machine, allocate)


def burn(gpu: SimGpu) -> None:
    with guarding(gpu) as guarded:
        first, second = guarded.tenant(memory=GIB, weight=90), guarded.tenant(memory=GIB, weight=10)
        command = [str(build() / "cuda_burn"), "0.6", "500000"]
        programs = [Spoken(tenant.wrap(command), environment(gpu), seconds=20) for tenant in (first, second)]
        try:
            for program in programs:
                assert program.line() == "started=1"
            # Both have groups now; who schedules looks every 5 ms.
            assert leftovers.until(
                lambda: [guarded.guard.status(number).gpus[0].slice for number in (1, 2)] == [9000, 1000], seconds=0.3
            )
            done = [dict([program.line().split("=") for _ in range(3)]) for program in programs]
        finally:
            for program in programs:
                program.kill()
        rates = [float(said["per_second"]) for said in done]
        assert rates[0] > 3 * rates[1], "the slower one is alone when the faster one has finished"
        assert first.empty()
        assert second.empty()


def test_weights_are_slices_and_divide_the_gpu(machine: Path) -> None:
    with_gpu(machine, burn)


def keep_a_cap(gpu: SimGpu) -> None:
    with guarding(gpu) as guarded:
        tenant = guarded.tenant(memory=GIB, cap=250)
        rates = []
        for cap in (1000, 250):
            tenant.set(cap=cap)
            command = tenant.wrap([str(build() / "cuda_burn"), "0.5", "500000"])
            done = subprocess.run(command, env=environment(gpu), capture_output=True, text=True, timeout=30, check=True)
            rates.append(float(done.stdout.rpartition("per_second=")[2]))
        assert tenant.status().gpus[0].frozen_ns > 0
        assert 0.15 < rates[1] / rates[0] < 0.35
        assert tenant.empty()


def test_a_cap_is_kept(machine: Path) -> None:
    with_gpu(machine, keep_a_cap)
