"""The agent killed at one exact system call, about a control that the driver makes only once, on a simulated GPU.

docs/internals/guard.md, "Ledger and recovery". Memory is registered for third parties by each cuMemAlloc, which
reports 999 (CUDA_ERROR_UNKNOWN) when the driver refuses.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.agent_tenants import RunningAgent
from tests.support.guarded import build_launcher
from tests.support.simgpu import DRIVER, MIB, UUID, Probe, SimGpu, make_machine, with_gpu
from tests.support.traced import Stop, Traced, threads_named
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30
PROBE = Path(__file__).parent / "shim/probe.py"
#: ioctl; NVOS54 (RM_CONTROL) and SECCOMP_IOCTL_NOTIF_SEND.
IOCTL, CONTROL, SEND = 16, 0xC020462A, 0xC0182101
REGISTER_SPACE, REGISTER, UNREGISTER = 0x503C0102, 0x503C0104, 0x503C0105
#: Where the guard is when it is killed: about to ask the driver, with its answer, about to answer, after that.
MOMENTS = ("asking", "asked", "answering", "answered")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    return directory


def kill_at(agent: RunningAgent, probe: Probe, command: int, moment: str, *words: object) -> object:
    """What the probe answers to ``words``, of which the guard is killed at its first such control."""
    # A thread names itself.
    assert leftovers.until(lambda: bool(threads_named(agent.process.pid, "nvc-guard")), seconds=30)
    (thread,) = threads_named(agent.process.pid, "nvc-guard")
    with Traced(agent.process.pid, thread) as traced:
        probe.begin(str(words[0]), *words[1:])
        stops = traced.stops()
        while not is_control(traced, next(stops), command):
            pass
        if moment != "asking":
            assert not next(stops).is_entry
        if moment in ("answering", "answered"):
            while not is_ioctl(next(stops), SEND):
                pass
        if moment == "answered":
            assert not next(stops).is_entry
        traced.kill()
    agent.kill()  # it is reaped, and another one started
    return probe.end()


def is_ioctl(stop: Stop, request: int) -> bool:
    return stop.is_entry and stop.number == IOCTL and stop.arguments[1] == request


def is_control(traced: Traced, stop: Stop, command: int) -> bool:
    return is_ioctl(stop, CONTROL) and struct.unpack("=I", traced.memory(stop.arguments[2] + 8, 4)) == (command,)


def start(gpu: SimGpu, command: list[str]) -> Probe:
    probe = Probe(command, environment(gpu))
    gpu.probes.append(probe)
    return probe


def lives(agent: RunningAgent, probe: Probe, moment: str) -> None:
    """A process whose guard is killed at that moment of each of the three controls."""
    assert kill_at(agent, probe, REGISTER_SPACE, moment, "init") == 0, moment
    used = agent.tenants[0].used()
    assert kill_at(agent, probe, REGISTER, moment, "alloc", 64) == [1, 0], moment
    assert agent.tenants[0].used() == used + 64 * MIB
    assert kill_at(agent, probe, UNREGISTER, moment, "free") == 0, moment
    assert agent.tenants[0].used() == used
    # What was registered again, or was not, is no trouble afterwards.
    assert probe.churn(64, 5) == 0


def every_moment(gpu: SimGpu) -> None:
    libraries = [str(next(gpu.machine.rglob(name))) for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
        tenant = agent.tenant(memory=2 * GIB)
        for moment in MOMENTS:
            probe = start(gpu, tenant.wrap([sys.executable, "-I", "-S", str(PROBE), *libraries]))
            try:
                lives(agent, probe, moment)
            finally:
                probe.kill()


def test_a_control_that_is_made_once_ends_well_wherever_the_guard_is_killed(machine: Path) -> None:
    with_gpu(machine, every_moment)
