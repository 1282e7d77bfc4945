"""Computed time on a simulated GPU: what its engine did, the driver samples, the prober publishes, the agent sums."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.guarded import build_launcher
from tests.support.manager import ioctl, request
from tests.support.native import build
from tests.support.nv_numbers import NUMBERS
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30
#: Nanoseconds of a kernel.
KERNEL = 500_000
#: native/sim/device.h: struct sim_fault. nvstatuscodes.h: NV_ERR_INSUFFICIENT_PERMISSIONS.
FAULT, REFUSED = struct.Struct("=4I"), 0x1B


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build("cuda_burn", "nvc-prober")
    return directory


def burn(gpu: SimGpu, tenants: Sequence[AgentTenant], seconds: float) -> tuple[list[dict[str, Any]], list[float]]:
    """Programs side by side: the status of each shortly before the end, and the part of the time of its kernels."""
    command = [str(build() / "cuda_burn"), str(seconds), str(KERNEL)]
    programs = [Spoken(one.wrap(command), environment(gpu), seconds=60) for one in tenants]
    try:
        for program in programs:
            assert program.line() == "started=1"
        time.sleep(seconds - 0.3)
        status = [one.status() for one in tenants]
        done = [dict([program.line().split("=") for _ in range(3)]) for program in programs]
    finally:
        for program in programs:
            program.kill()
    found = [one["gpus"][0] for one in status if one is not None]
    return found, [float(one["per_second"]) * KERNEL / 1e9 for one in done]


def refuse_once() -> None:
    number = NUMBERS["NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2"]
    told = ctypes.create_string_buffer(FAULT.pack(NUMBERS["NV_ESC_RM_CONTROL"], number, REFUSED, 0), FAULT.size)
    file = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
    ioctl(file, request(0xE5, FAULT.size, kind="S"), told)
    os.close(file)


def test_computed_time_is_that_of_the_kernels(machine: Path) -> None:
    """Of a tenant with a cap, in step with whose phases the samples come."""

    def inside(gpu: SimGpu) -> None:
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
            status, kernels = burn(gpu, [agent.tenant(memory=4 * GIB, cap=300)], 5.0)
            assert status[0]["is_measured"]
            assert abs(status[0]["achieved_ratio"] - kernels[0]) < 0.08
            assert 0.5 < status[0]["computed_ns"] / 1e9 < 2.5

    with_gpu(machine, inside)


def test_tenants_that_take_turns_have_their_parts(machine: Path) -> None:
    """With some thirty samples: the sum is exact, a part is not."""

    def inside(gpu: SimGpu) -> None:
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
            idle = agent.tenant(memory=4 * GIB)
            with Spoken(idle.wrap(["/bin/sleep", "60"]), environment(gpu), seconds=60):
                tenants = [agent.tenant(memory=4 * GIB, weight=weight) for weight in (70, 30)]
                status, kernels = burn(gpu, tenants, 5.0)
                found = [one["achieved_ratio"] for one in status]
                assert abs(sum(found) - sum(kernels)) < 0.1
                assert all(abs(one - kernel) < 0.35 for one, kernel in zip(found, kernels, strict=True))
                assert min(found) > 0
                other = idle.status()
                assert other is None or (other["gpus"][0]["achieved_ratio"], other["gpus"][0]["computed_ns"]) == (0, 0)

    with_gpu(machine, inside)


@pytest.mark.parametrize("config", ["", "[agent]\nperiod = 50\n"], ids=["usual period", "50 ms"])
def test_beside_caps_of_several_it_is_measured_where_samples_are_not_in_step(machine: Path, config: str) -> None:
    """In step they find the same one on, again and again; that the ratio is an estimate is said then."""

    def inside(gpu: SimGpu) -> None:
        place = gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)
        with RunningAgent(*place, config=config) as agent:
            status, kernels = burn(gpu, [agent.tenant(memory=4 * GIB, cap=cap) for cap in (600, 300)], 5.0)
            assert [one["is_measured"] for one in status] == [not config] * 2
            assert all(one["achieved_ratio"] > 0 for one in status)
            if not config:
                found = [one["achieved_ratio"] for one in status]
                assert all(abs(one - kernel) < 0.15 for one, kernel in zip(found, kernels, strict=True)), kernels

    with_gpu(machine, inside)


def test_without_samples_the_ratio_is_said_to_be_an_estimate(machine: Path) -> None:
    """A driver that refuses the question (MIG, or a right that this process lacks)."""

    def inside(gpu: SimGpu) -> None:
        refuse_once()  # it is asked in two other layouts then, and not again for a minute
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
            status, _ = burn(gpu, [agent.tenant(memory=4 * GIB, cap=500)], 3.0)
            assert (status[0]["is_measured"], status[0]["computed_ns"]) == (False, 0)
            assert status[0]["achieved_ratio"] > 0

    with_gpu(machine, inside)
