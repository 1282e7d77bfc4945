"""Programs behind the filter and a guard, on a simulated GPU, the way tests/gpu/enforce measures them on a real one."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvc.guard.service import AWAY_US, LEAST_US, SERVICE_US, SWITCH_US
from tests.support import leftovers
from tests.support.guarded import GuardedTenant, Guarding, build_launcher
from tests.support.native import build
from tests.support.repeated import good
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.support.tenants import status_now

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


@contextmanager
def burning(gpu: SimGpu, tenants: Sequence[GuardedTenant], seconds: float) -> Iterator[list[Spoken]]:
    """A program of each, which all have begun."""
    command = [str(build() / "cuda_burn"), str(seconds), "500000"]
    programs = [Spoken(tenant.wrap(command), environment(gpu), seconds=30) for tenant in tenants]
    try:
        for program in programs:
            assert program.line() == "started=1"
        yield programs
    finally:
        for program in programs:
            program.kill()


def rates(gpu: SimGpu, *tenants: GuardedTenant) -> list[float]:
    """Kernels a second of each, side by side."""
    with burning(gpu, tenants, 0.6) as programs:
        done = [dict([program.line().split("=") for _ in range(3)]) for program in programs]
    return [float(said["per_second"]) for said in done]


def burn(gpu: SimGpu) -> None:
    with guarding(gpu) as guarded:
        both = guarded.tenant(memory=GIB, weight=90), guarded.tenant(memory=GIB, weight=10)
        with burning(gpu, both, 1000):
            # Both have groups now; the scheduler looks every 5 ms.
            assert leftovers.until(
                lambda: [status_now(guarded.guard, number).gpus[0].slice for number in (1, 2)] == [9000, 1000],
                seconds=30,
            )
        # The slower one is alone when the faster one has finished.
        good(lambda: rates(gpu, *both), lambda got: got[0] > 3 * got[1])
        assert all(tenant.empty() for tenant in both)


def test_weights_are_slices_and_divide_the_gpu(machine: Path) -> None:
    with_gpu(machine, burn)


def serve(gpu: SimGpu) -> None:
    """The slices that are decided for a service and the others reach the driver: by what each does with them."""
    allowed = 1000 - AWAY_US - SWITCH_US
    with guarding(gpu) as guarded:
        served = guarded.tenant(memory=GIB, priority="service", latency=1000)
        other = guarded.tenant(memory=GIB)

        def slices() -> list[int]:
            return [status_now(guarded.guard, number).gpus[0].slice for number in (1, 2)]

        def sampled(parts: Sequence[float]) -> None:
            """What samples of some seconds say: the part that the service computed in each of their halves."""
            now, computed = time.monotonic_ns(), 0
            for at, part in enumerate(parts):
                computed += int(part * 500_000_000)
                guarded.scheduler.sampled(UUID, now + (at - len(parts)) * 500_000_000, {1: computed, 2: 0})
            guarded.decide()

        with burning(gpu, (served, other), 1000):
            assert leftovers.until(lambda: slices() == [allowed, allowed], seconds=30), slices()
            sampled([0.3] * 5)
            assert leftovers.until(lambda: slices() == [SERVICE_US, LEAST_US], seconds=30), slices()
            assert guarded.scheduler.share(1, 0).bound_us == LEAST_US + SWITCH_US + AWAY_US
            sampled([1.0] * 8)
            assert leftovers.until(lambda: slices() == [3333, 6667], seconds=30), "it gives back what it had more"
            sampled([0.0] * 20)
            assert leftovers.until(lambda: slices() == [SERVICE_US, LEAST_US], seconds=30), slices()
        # It is measured and served first; the slower one is alone when the faster one has finished.
        good(lambda: rates(gpu, served, other), lambda got: got[0] > 3 * got[1])
        assert served.empty() and other.empty()


def test_a_service_has_the_gpu_before_others(machine: Path) -> None:
    with_gpu(machine, serve)


def keep_a_cap(gpu: SimGpu) -> None:
    with guarding(gpu) as guarded:
        tenant = guarded.tenant(memory=GIB, cap=250)

        def part() -> float:
            """Of what it does without a cap."""
            found = []
            for cap in (1000, 250):
                tenant.set(cap=cap)
                found += rates(gpu, tenant)
            return found[1] / found[0]

        good(part, lambda got: 0.15 < got < 0.35)
        assert tenant.status().gpus[0].frozen_ns > 0
        assert tenant.empty()


def test_a_cap_is_kept(machine: Path) -> None:
    with_gpu(machine, keep_a_cap)
