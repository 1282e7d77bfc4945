"""Two ranks of a job, one on each of two GPUs, in one guarded tenant: a cap is of both GPUs at the same time (P13).

Skipped on a machine with one GPU. Multicast over NVLink stays off, as in test_share_two.py.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.protocol import Client
from tests.gpu.enforce.conftest import Starts
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.bed import Bed
from tests.support.frameworks import require
from tests.support.gpumeasure import HostGpu, first_gpu, nodes
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system, pytest.mark.timeout(120)]

GIB = 1 << 30
CAPS = (25, 50, 75)
#: A whole number of periods of 47 and 94 ms; steps take some 20 ms, and one under way at the end counts by time.
SETTLE, SOLO, CAPPED = 0.5, 2.0, 6.016
POINTS = 1.0
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NCCL_NVLS_ENABLE": "0"}


@pytest.fixture
def agent(
    bed: Bed, launcher: Path, environment: dict[str, str], pair: tuple[HostGpu, HostGpu]
) -> Iterator[RunningAgent]:
    uuid, driver = first_gpu()
    both = nodes(*(gpu.minor for gpu in pair))
    with RunningAgent(bed.directory("agent"), uuid, both, driver, launcher, environment) as running:
        yield running


def _tenant(agent: RunningAgent, pair: tuple[HostGpu, HostGpu]) -> AgentTenant:
    gpus = tuple(ResolvedGpu(gpu.uuid, gpu.minor, memory=16 * GIB) for gpu in pair)
    agent.tenants.append(AgentTenant(agent, "ranks", Limits(gpus, agent.nodes, agent.driver, "ranks")))
    return agent.tenants[-1]


def _steps(ranks: list[Spoken], seconds: float) -> float:
    """A second, of both ranks together."""
    for program in ranks:
        program.tell(f"rate {seconds} cycles")
    first, _ = [float(program.line()) for program in ranks]
    return first


def test_a_cap_is_of_both_gpus_at_the_same_time(
    agent: RunningAgent, start: Starts, pair: tuple[HostGpu, HostGpu], table: Table
) -> None:
    require("torch")
    tenant = _tenant(agent, pair)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [start("torch_ranks.py", rank, 2, port, tenant=tenant, seconds=90, **BY_BUS) for rank in (0, 1)]
    assert [program.line() for program in ranks] == ["ready", "ready"]
    with Client(f"{agent.directory}/control", 10.0) as client:

        def cap(percent: int) -> None:
            client.call("set", container=tenant.name, spec=f"cap={percent}%")
            _steps(ranks, SETTLE)

        _steps(ranks, SETTLE)
        solos, found = [_steps(ranks, SOLO)], {}
        for percent in CAPS:
            cap(percent)
            found[percent] = _steps(ranks, CAPPED)
            cap(100)
            solos.append(_steps(ranks, SOLO))
    for program in ranks:
        program.tell("check")
    sound = [program.line() for program in ranks] == ["1", "1"]

    errors = {}
    for index, percent in enumerate(CAPS):
        base = (solos[index] + solos[index + 1]) / 2
        errors[percent] = 100 * found[percent] / base - percent
        table.add(
            f"two ranks (kernels and NCCL all-reduces) under the guard: cap {percent} % on both GPUs",
            goal=f"within {POINTS:g} point, and no hang",
            got=f"{found[percent]:.2f} steps/s",
            base=f"{base:.2f} steps/s without a cap",
            ratio=f"{100 * found[percent] / base:.2f} % ({errors[percent]:+.2f})",
            good=abs(errors[percent]) <= POINTS,
        )
    assert sound, "an all-reduce gave a wrong sum"
    assert {percent: error for percent, error in errors.items() if abs(error) > POINTS} == {}
