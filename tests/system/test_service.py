"""A service under a real agent on a simulated GPU: samples, slices, hints and what admission refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import ContainerError
from nvc.guard.service import AWAY_US, IDLE, LEAST_US, OVER, SERVED, SWITCH_US
from nvc.share.protocol import Client
from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.guarded import build_launcher
from tests.support.native import build
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build("cuda_burn", "nvc-prober")
    return directory


def burning(gpu: SimGpu, *tenants: AgentTenant) -> Iterator[None]:
    command = [str(build() / "cuda_burn"), "1000", "500000"]
    programs = [Spoken(one.wrap(command), environment(gpu), seconds=60) for one in tenants]
    try:
        for program in programs:
            assert program.line() == "started=1"
        yield
    finally:
        for program in programs:
            program.kill()


def of(tenant: AgentTenant) -> dict[str, Any]:
    status = tenant.status()
    assert status is not None
    found: dict[str, Any] = status["gpus"][0]
    return found


def test_a_service_that_never_stops_is_served_first_and_gives_back(machine: Path) -> None:
    """By the driver's samples, through prober and agent."""

    def inside(gpu: SimGpu) -> None:
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
            service = agent.tenant(memory=4 * GIB, priority="service", latency=1000)
            other = agent.tenant(memory=4 * GIB)

            def seen() -> tuple[str, int, int]:
                return of(service)["service"], of(service)["bound_us"], of(other)["slice_us"]

            for _ in burning(gpu, service, other):
                assert leftovers.until(
                    lambda: seen() == (SERVED, LEAST_US + SWITCH_US + AWAY_US, LEAST_US), seconds=20
                ), seen()
                assert leftovers.until(lambda: of(service)["service"] == OVER, seconds=30)
                assert leftovers.until(lambda: of(other)["slice_us"] > of(service)["slice_us"] > 1000, seconds=20)
                assert leftovers.until(lambda: of(service)["service"] == SERVED, seconds=30), "nothing is owed"
                with Client(f"{agent.directory}/control", 60.0) as client:
                    with pytest.raises(ContainerError, match="is a service"):
                        client.call("policy", policy="fair")
                    client.call("set", container=service.name, spec="latency=400us")
                assert of(service)["latency_us"] == 400

    with_gpu(machine, inside)


def test_a_hint_is_in_force_when_it_is_answered(machine: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
            service = agent.tenant(memory=4 * GIB, priority="service", latency=2000)
            others = [agent.tenant(memory=4 * GIB) for _ in range(2)]
            for _ in burning(gpu, service, *others):
                assert leftovers.until(lambda: of(service)["service"] != "", seconds=20)
                with Client(f"{agent.directory}/control", 60.0) as client:
                    # It computes, so the samples after it say otherwise, at once perhaps.
                    def rests() -> bool:
                        client.call("hint", container=service.name, word="done")
                        return (of(service)["service"], of(others[0])["slice_us"]) == (IDLE, 5000)

                    assert leftovers.until(rests, seconds=20)
                assert leftovers.until(lambda: of(service)["service"] != IDLE, seconds=20)

    with_gpu(machine, inside)
