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

from nvc.guard import usage
from nvc.guard.prober import Prober
from nvc.guard.supervisors import USER_COUNT, USERS
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.guarded import build_launcher
from tests.support.leftovers import until
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
    """Programs that begin together: the status of each shortly before the end, and its kernels' part of the time."""
    command = [str(build() / "cuda_burn"), str(seconds), str(KERNEL), "wait"]
    programs = [Spoken(one.wrap(command), environment(gpu), seconds=60) for one in tenants]
    try:
        assert [program.line() for program in programs] == ["ready=1"] * len(programs)
        for program in programs:
            program.tell("")
        assert [program.line() for program in programs] == ["started=1"] * len(programs)
        time.sleep(seconds - 0.3)
        status = [one.status() for one in tenants]
        done = [dict([program.line().split("=") for _ in range(3)]) for program in programs]
    finally:
        for program in programs:
            program.kill()
    found = [one["gpus"][0] for one in status if one is not None]
    return found, [float(one["per_second"]) * KERNEL / 1e9 for one in done]


SAMPLES = "NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2"
#: What a trace of context switches takes.
STEPS = {
    "NV01_MEMORY_DEVICELESS": "NV_ESC_RM_ALLOC",
    "NV_EVENT_BUFFER": "NV_ESC_RM_ALLOC",
    "NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2": "NV_ESC_RM_CONTROL",
    "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS": "NV_ESC_RM_CONTROL",
}


def refuse_once(name: str = SAMPLES, escape: str = "NV_ESC_RM_CONTROL") -> None:
    told = ctypes.create_string_buffer(FAULT.pack(NUMBERS[escape], NUMBERS[name], REFUSED, 0), FAULT.size)
    file = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
    ioctl(file, request(0xE5, FAULT.size, kind="S"), told)
    os.close(file)


def published(agent: RunningAgent) -> usage.GpuUsage:
    file = os.open(f"{agent.directory}/contention", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return usage.Page(file).read().gpus[UUID]
    finally:
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


def test_of_three_tenants_each_has_its_part_within_three_points(machine: Path) -> None:
    """By the trace of context switches: samples of such a time are up to ten points off."""

    def inside(gpu: SimGpu) -> None:
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
            tenants = [agent.tenant(memory=4 * GIB, weight=weight) for weight in (50, 30, 20)]
            status, kernels = burn(gpu, tenants, 6.0)
            found = [one["achieved_ratio"] for one in status]
            assert all(one["is_measured"] for one in status)
            parts = [(one / sum(found), other / sum(kernels)) for one, other in zip(found, kernels, strict=True)]
            assert all(abs(one - other) < 0.03 for one, other in parts), (parts, found, kernels, published(agent))
            told = published(agent)
            assert told.traced_ns > 5e9 and told.untraced_ns < 0.1 * told.traced_ns, told

    with_gpu(machine, inside)


@pytest.mark.parametrize("step", STEPS)
def test_without_a_trace_tenants_have_their_parts_by_samples(machine: Path, step: str) -> None:
    """With some thirty samples: the sum is exact, a part is not, and may be 0. step: the driver refuses it."""

    def inside(gpu: SimGpu) -> None:
        refuse_once(step, STEPS[step])
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
            idle = agent.tenant(memory=4 * GIB)
            with Spoken(idle.wrap(["/bin/sleep", "60"]), environment(gpu), seconds=60):
                tenants = [agent.tenant(memory=4 * GIB, weight=weight) for weight in (70, 30)]
                status, kernels = burn(gpu, tenants, 5.0)
                found = [one["achieved_ratio"] for one in status]
                assert abs(sum(found) - sum(kernels)) < 0.1
                assert all(abs(one - kernel) < 0.35 for one, kernel in zip(found, kernels, strict=True))
                assert published(agent).traced_ns == 0
                other = idle.status()
                assert other is None or (other["gpus"][0]["achieved_ratio"], other["gpus"][0]["computed_ns"]) == (0, 0)

    with_gpu(machine, inside)


@pytest.mark.parametrize("is_traced", [False, True], ids=["samples", "trace"])
@pytest.mark.parametrize("config", ["", "[agent]\nperiod = 50\n"], ids=["usual period", "50 ms"])
def test_beside_caps_of_several_it_is_measured_unless_only_samples_in_step_tell(
    machine: Path, config: str, is_traced: bool
) -> None:
    """In step they find the same one on, again and again; that the ratio is an estimate is said then."""

    def inside(gpu: SimGpu) -> None:
        if not is_traced:
            refuse_once("NV_EVENT_BUFFER", "NV_ESC_RM_ALLOC")
        place = gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)
        with RunningAgent(*place, config=config) as agent:
            status, kernels = burn(gpu, [agent.tenant(memory=4 * GIB, cap=cap) for cap in (600, 300)], 5.0)
            assert [one["is_measured"] for one in status] == [is_traced or not config] * 2
            assert all(one["achieved_ratio"] > 0 for one in status)
            if is_traced or not config:
                found = [one["achieved_ratio"] for one in status]
                assert all(
                    abs(one - kernel) < (0.06 if is_traced else 0.15)
                    for one, kernel in zip(found, kernels, strict=True)
                ), kernels

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


def test_a_gpu_that_cannot_be_traced_leaves_the_others_their_trace(tmp_path: Path) -> None:
    """Of eight simulated GPUs one trace can be mapped."""
    make_machine(tmp_path, "h100x8")
    program = str(build("nvc-prober") / "nvc-prober")

    def inside(_: SimGpu) -> None:
        page = usage.open_page("")
        prober = Prober(program, page, USERS + USER_COUNT, "/dev", "", lambda _: [])
        prober.need()
        try:
            assert prober.look() == ""
            assert until(lambda: len(usage.Page(page).read().gpus) == 8, seconds=20)
            time.sleep(1.0)  # twice its period
            found = usage.Page(page).read().gpus.values()
            assert sorted(gpu.traced_ns > 0 for gpu in found) == [False] * 7 + [True]
        finally:
            prober.close()
            os.close(page)

    with_gpu(tmp_path, inside)
