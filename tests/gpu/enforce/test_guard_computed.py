"""Computed time as the driver's samples and trace say it, beside what kernels count; the node balance with PyTorch.

The first test tells whether the driver answers the prober at all, and how often it samples: begin with it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.balance import PER_PROCESS, TOLERANCE
from nvc.guard import usage
from nvc.share.protocol import Client
from tests.gpu.enforce.conftest import Starts
from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.bed import Bed
from tests.support.frameworks import require
from tests.support.gpumeasure import first_gpu, nodes
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system, pytest.mark.timeout(150)]

MIB, GIB = 1 << 20, 1 << 30
KERNEL = 0.65
#: Seconds that a ratio is of (nvc.agent.computed.WINDOW_NS), and for it to be of these programs alone.
WINDOW, SETTLE, SOLO = 10.0, 1.0, 1.0
POINTS = 3.0
PROCESSES, WATCHED = 10, 15.0
#: nvml.h: NVML_GPU_UTILIZATION_SAMPLES.
GPU_UTILIZATION = 1


@pytest.fixture
def agent(bed: Bed, launcher: Path, environment: dict[str, str]) -> Iterator[RunningAgent]:
    uuid, driver = first_gpu()
    with RunningAgent(bed.directory("agent"), uuid, nodes(), driver, launcher, environment) as running:
        yield running


def _share(tenant: AgentTenant) -> dict[str, Any]:
    status = tenant.status()
    assert status is not None
    found: dict[str, Any] = status["gpus"][0]
    return found


def _rates(programs: list[Spoken], seconds: float) -> list[float]:
    """Kernels a second of all, over the same time."""
    for program in programs:
        program.tell(f"rate {seconds}")
    return [float(program.line()) for program in programs]


class _Sample(ctypes.Structure):
    _fields_ = (("when", ctypes.c_ulonglong), ("value", ctypes.c_ulonglong))


def _sampling() -> str:
    """How often this driver samples a GPU, by NVML's buffer of its utilisation."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    device, kind, count = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint(500)
    samples = (_Sample * 500)()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    since = ctypes.c_ulonglong(0)
    arguments = (GPU_UTILIZATION, since, ctypes.byref(kind), ctypes.byref(count), samples)
    status = nvml.nvmlDeviceGetSamples(device, *arguments)
    nvml.nvmlShutdown()
    if status:
        return f"nvmlDeviceGetSamples: {status}"
    taken = samples[: count.value]
    gaps = [(after.when - before.when) / 1000 for before, after in itertools.pairwise(taken)]
    return f"{count.value} samples, {min(gaps):.0f} / {statistics.median(gaps):.0f} / {max(gaps):.0f} ms apart"


def test_the_driver_samples_for_a_process_without_rights(agent: RunningAgent, start: Starts, table: Table) -> None:
    """The prober's user has no capability."""
    tenant = agent.tenant(memory=4 * GIB)
    with start("burn", "plain", KERNEL, tenant=tenant) as program:
        program.line()
        program.tell("rate 6")
        is_measured = leftovers.until(lambda: bool(_share(tenant)["is_measured"]), seconds=5)
        share = _share(tenant)
        sampling = _sampling()
        program.line()
    table.add(
        "samples of which process computes, asked by the prober",
        goal="answered",
        got=f"{share['is_measured']}, {100 * share['achieved_ratio']:.1f} %, {share['computed_ns'] / 1e9:.2f} s",
        base=sampling,
        good=is_measured,
    )
    assert is_measured, agent.log.read_text()


def _published(agent: RunningAgent) -> usage.GpuUsage:
    file = os.open(f"{agent.directory}/contention", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return usage.Page(file).read().gpus[agent.uuid]
    finally:
        os.close(file)


def _source(before: usage.GpuUsage, after: usage.GpuUsage) -> str:
    """What divided the time among several: the driver's trace of context switches, or samples alone."""
    seconds = (after.traced_ns - before.traced_ns) / 1e9
    unknown = (after.untraced_ns - before.untraced_ns) / 1e9
    parts = sorted((total - before.traced.get(pid, 0) for pid, total in after.traced.items()), reverse=True)
    if not seconds:
        return "samples alone"
    on = " : ".join(f"{part / 1e7 / seconds:.2f}" for part in parts[:5])
    return f"trace of {seconds:.2f} s, {unknown:.2f} s unknown, on {on} %"


def _compare(agent: RunningAgent, table: Table, what: str, programs: dict[AgentTenant, Spoken], solo: float) -> bool:
    """Over the same ten seconds: kernels, and the agent's ratios at their end.

    What switches from one to the other take is busy for the driver, and no kernel's: of several, parts are compared.
    """
    tenants, spoken = list(programs), list(programs.values())
    _rates(spoken, SETTLE)
    before = _published(agent)
    rates = _rates(spoken, WINDOW)
    time.sleep(0.4)  # for the prober's next answer; it is as good as the programs' last half second
    source = _source(before, _published(agent))
    shares = [_share(tenant) for tenant in tenants]
    measured = [100 * share["achieved_ratio"] for share in shares]
    counted = [100 * rate / solo for rate in rates]
    lost = sum(counted) / max(0.1, sum(measured)) if len(tenants) > 1 else 1.0
    errors = [one * lost - other for one, other in zip(measured, counted, strict=True)]
    good = all(share["is_measured"] for share in shares) and max(map(abs, errors)) <= POINTS
    table.add(
        what,
        goal=f"measured within {POINTS:g} points of the kernels' counts over {WINDOW:g} s",
        got=" : ".join(f"{one:.2f}" for one in measured) + f" %, together {sum(measured):.1f}; by {source}",
        base=" : ".join(f"{one:.2f}" for one in counted) + f" % of {solo:.0f}/s, together {sum(counted):.1f}",
        ratio=" : ".join(f"{one:+.2f}" for one in errors),
        good=good,
    )
    return good


def test_measured_time_is_that_of_the_kernels(agent: RunningAgent, start: Starts, table: Table) -> None:
    """Of one with a cap alone; of three with weights. The rest is printed even where a line misses its goal."""
    capped, *three = [agent.tenant(memory=4 * GIB, weight=weight) for weight in (10, 50, 30, 20)]
    one = start("burn", "plain", KERNEL, tenant=capped)
    iterations = one.line().split()[2]
    _rates([one], SETTLE)
    solo = _rates([one], SOLO)[0]
    _set(agent, capped, "cap=30%")
    good = [_compare(agent, table, "a cap of 30 %, alone", {capped: one}, solo)]
    one.kill()
    programs = {tenant: start("burn", "plain", KERNEL, iterations, tenant=tenant) for tenant in three}
    for program in programs.values():
        program.line()
    good.append(_compare(agent, table, "three tenants, weights 50:30:20", programs, solo))
    assert good == [True, True]


@pytest.mark.parametrize("caps", [(70, 30), (50, 30, 20), (30, 20, 10), (40, 20, 10, 10, 10)], ids=str)
def test_measured_time_beside_caps_is_that_of_the_kernels(
    agent: RunningAgent, start: Starts, table: Table, caps: tuple[int, ...]
) -> None:
    """All of them have work all the time. With periods of 50 ms samples were in step with them."""
    tenants = [agent.tenant(memory=4 * GIB) for _ in caps]
    first = start("burn", "plain", KERNEL, tenant=tenants[0])
    iterations = first.line().split()[2]
    _rates([first], SETTLE)
    solo = _rates([first], SOLO)[0]
    programs = {tenant: start("burn", "plain", KERNEL, iterations, tenant=tenant) for tenant in tenants[1:]}
    for program in programs.values():
        program.line()
    for tenant, cap in zip(tenants, caps, strict=True):
        _set(agent, tenant, f"cap={cap}%")
    assert _compare(
        agent, table, f"caps of {', '.join(map(str, caps))} % together", {tenants[0]: first} | programs, solo
    )


def _set(agent: RunningAgent, tenant: AgentTenant, spec: str) -> None:
    with Client(f"{agent.directory}/control", 10.0) as client:
        client.call("set", container=tenant.name, spec=spec)


def test_ten_honest_pytorch_processes_are_balanced(agent: RunningAgent, start: Starts, table: Table) -> None:
    """They train, one after the other begins and ends: at no time is more unaccounted for than the bound."""
    require("torch")
    tenants = [agent.tenant(memory=7 * GIB) for _ in range(PROCESSES)]
    worst: list[tuple[int, int, int]] = []
    with ThreadPoolExecutor(1) as pool:
        programs = [start("torch_honest.py", tenant=tenant, seconds=90) for tenant in tenants]
        ready = pool.submit(lambda: [program.line() for program in programs])
        until = None
        while until is None or time.monotonic() < until:
            status = agent.status()
            (gpu,) = (one for one in status["gpus"] if one["uuid"] == agent.uuid)
            own = [one["gpus"][0]["driver_usage"] for one in status["tenants"]]
            bound = TOLERANCE + sum(min(PER_PROCESS, size) for size in own)
            worst.append((gpu["unaccounted"], bound, sum(size > 0 for size in own)))
            assert not gpu["is_unbalanced"], worst[-1]
            if until is None and ready.done():
                until = time.monotonic() + WATCHED
            time.sleep(0.25)
        assert ready.result() == ["ready"] * PROCESSES
        used = [one["gpus"][0] for one in agent.status()["tenants"]]
    for program in programs[::2]:
        program.kill()
    time.sleep(2.0)
    events = [line for line in agent.log.read_text().splitlines() if '"unaccounted"' in line]
    most = max(worst)
    good = not events and all(unaccounted <= bound for unaccounted, bound, _ in worst)
    table.add(
        f"{PROCESSES} PyTorch processes that train, {len(worst)} looks: unaccounted for",
        goal="never above 64 MiB + 16 MiB a process",
        got=f"at most {most[0] / MIB:.1f} MiB with {most[2]} processes",
        base=f"bound {most[1] / MIB:.0f} MiB; charged {sum(one['memory'] for one in used) / MIB:.0f}, driver says "
        f"{sum(one['driver_usage'] for one in used) / MIB:.0f} MiB",
        ratio=f"{most[0] / MIB / max(1, most[2]):.2f} MiB a process",
        good=good,
    )
    assert good, (events, worst)
