"""The agent killed under load, on a simulated GPU, as tests/gpu/enforce does on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.agent_tenants import Crashes, RunningAgent
from tests.support.guarded import build_launcher
from tests.support.native import build
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30
SECONDS, EVERY = 2.0, 0.5
#: Seconds that a call may take, with an agent and without: the machine does other things as well.
SPARE = 2.0


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build("cuda_churn")
    return directory


def load(gpu: SimGpu) -> None:
    launcher = build_launcher(gpu.work)
    with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, launcher, environment(gpu)) as agent:
        tenants = [agent.tenant(memory=2 * GIB), agent.tenant(memory=3 * GIB, cap=500)]
        command = [str(build() / "cuda_churn"), str(SECONDS)]
        programs = [Spoken(tenant.wrap(command), environment(gpu), seconds=60) for tenant in tenants]
        try:
            begun = [said(program, 2) for program in programs]
            with Crashes(agent.kill, EVERY) as crashes:
                ended = [said(program, 7) for program in programs]
        finally:
            for program in programs:
                program.kill()
        assert crashes.count >= 1
        for first, last in zip(begun, ended, strict=True):
            wrong = {name: last[name] for name in ("wrongly_refused", "wrongly_granted", "first_wrong")}
            assert wrong == {"wrongly_refused": 0, "wrongly_granted": 0, "first_wrong": 0}
            assert min(last["grants"], last["refusals"]) > 0
            assert last["longest_us"] / 1e6 < SPARE
            assert last["end_free_kib"] == first["start_free_kib"]
        assert leftovers.until(lambda: all(tenant.status() is None for tenant in tenants), seconds=40)


def said(program: Spoken, lines: int) -> dict[str, int]:
    found = {}
    for _ in range(lines):
        name, _, value = program.line().partition("=")
        found[name] = int(value)
    return found


def test_killed_under_load(machine: Path) -> None:
    with_gpu(machine, load)
