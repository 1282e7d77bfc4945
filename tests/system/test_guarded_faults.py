"""The agent killed under load, on a simulated GPU, as tests/gpu/enforce does on a real one."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from nvc.agent import cgroups
from tests.support import cgroupview, leftovers
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


def kill_guard(gpu: SimGpu, killed: str) -> None:
    """As tests/gpu/enforce/test_guard_faults.py; here the end matters: nothing is left, and no clean-up fails."""
    with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
        tenant = agent.tenant(memory=2 * GIB, cap=500)
        with Spoken(tenant.wrap([str(build() / "cuda_churn"), "60"]), environment(gpu)) as program:
            said(program, 2)
            monitor, supervisor = agent.pids(1)
            victims = {"supervisor": (supervisor,), "monitor": (monitor,), "both": (monitor, supervisor)}[killed]
            if killed == "both":
                for pid in victims:
                    os.kill(pid, signal.SIGSTOP)
            # A killed one ends when the driver has taken its clients back; here, what is in its cgroup takes 1 s.
            late = subprocess.Popen(["sleep", "1"], env=environment(gpu))
            trees = cgroupview.directories(cgroups.tree_name(agent.directory))
            for tenants in (one.iterdir() for one in map(Path, trees)):
                for one in tenants:
                    if one.is_dir():
                        (one / "cgroup.procs").write_text(str(late.pid))
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            assert tenant.holder.wait(10) == -signal.SIGKILL
            assert leftovers.until(lambda: tenant.status() is None, seconds=30)
    late.wait()
    assert cgroupview.directories(cgroups.tree_name(agent.directory)) == []


def said(program: Spoken, lines: int) -> dict[str, int]:
    found = {}
    for _ in range(lines):
        name, _, value = program.line().partition("=")
        found[name] = int(value)
    return found


def test_killed_under_load(machine: Path) -> None:
    with_gpu(machine, load)


@pytest.mark.parametrize("killed", ["supervisor", "monitor", "both"])
def test_the_clean_up_after_a_guard_that_was_killed(machine: Path, killed: str) -> None:
    with_gpu(machine, partial(kill_guard, killed=killed))
