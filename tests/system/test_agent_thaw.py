"""A tenant that is frozen when the agent ends is thawed by another process, on a simulated GPU."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.guard.protocol import Client
from tests.support import leftovers
from tests.support.agent_tenants import RunningAgent
from tests.support.guarded import build_launcher
from tests.support.simgpu import DRIVER, UUID, Probe, SimGpu, make_machine, with_gpu
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30
PROBE = Path(__file__).parent / "shim/probe.py"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    return directory


def thaws(gpu: SimGpu, accident: Callable[[RunningAgent], None]) -> None:
    """A paused tenant goes on soon after the accident: within a second, on a machine that does nothing else."""
    with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
        tenant = agent.tenant(memory=2 * GIB)
        libraries = [str(next(gpu.machine.rglob(name))) for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
        probe = Probe(tenant.wrap([sys.executable, "-I", "-S", str(PROBE), *libraries]), environment(gpu))
        try:
            assert probe.init() == 0
            assert probe.work(1000) == 0
            assert leftovers.until(lambda: probe.rate(20) > 0, seconds=30)
            with Client(f"{agent.directory}/control", 5.0) as client:
                client.call("pause", container=tenant.name)
            assert leftovers.until(lambda: probe.rate(200) == 0, seconds=30), "it is paused"
            accident(agent)
            begin = time.monotonic()
            assert leftovers.until(lambda: probe.rate(20) > 0, seconds=30)
            assert time.monotonic() - begin < 20
        finally:
            if agent.process.poll() is None:
                os.kill(agent.process.pid, signal.SIGCONT)
            probe.kill()
            if agent.process.poll() is not None and (keeper := agent.keeper()):
                os.kill(keeper, signal.SIGKILL)  # it would wait for another agent


def kill(agent: RunningAgent) -> None:
    agent.process.kill()
    agent.process.wait()


def hang(agent: RunningAgent) -> None:
    os.kill(agent.process.pid, signal.SIGSTOP)


def kill_both(agent: RunningAgent) -> None:
    keeper = agent.keeper()
    os.kill(keeper, signal.SIGSTOP)  # it does not see the agent's end
    kill(agent)
    os.kill(keeper, signal.SIGKILL)
    assert leftovers.until(lambda: agent.keeper() == 0, seconds=30)
    agent.process = agent._start()
    assert agent.ready(), agent.log.read_text()


@pytest.mark.parametrize("accident", [kill, hang, kill_both])
def test_a_paused_tenant_goes_on_when_it_is_not_watched(
    machine: Path, accident: Callable[[RunningAgent], None]
) -> None:
    with_gpu(machine, lambda gpu: thaws(gpu, accident))
