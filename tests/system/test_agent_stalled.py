"""Tenants that block their readers by a file system of their own, killed or not: nothing else waits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvc.agent import status
from nvc.base.errors import ContainerError
from nvc.guard import attach
from nvc.guard.attached import AttachedChannel, AttachedProcess
from nvc.guard.supervisors import ATTACHED, Supervisors
from nvc.linux import syscalls
from nvc.share import limits, store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.protocol import Client
from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.attacks import SOURCES
from tests.support.guarded import build_launcher
from tests.support.leftovers import wait_until
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.support.tenants import build_static
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30
#: Seconds for an answer of the agent's, and of an allocation: far less than a wait for a server that never answers.
ANSWER_SECONDS = 1.0
MODES = ("stat", "close", "memory")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    return directory


class Stall:
    """An attacker whose file system does not answer, and a neighbour with a cap, under one agent."""

    def __init__(self, agent: RunningAgent, gpu: SimGpu, attack: Path, mode: str) -> None:
        self.agent, self.gpu, self.attack = agent, gpu, attack
        self.hostile = agent.tenant(memory=2 * GIB, cap=300)
        self.good = agent.tenant(memory=2 * GIB, cap=300)
        self.attacker = self.start(self.hostile, "fuse", mode)
        assert self.attacker.line() == "mounted=1"
        self.server = int(self.attacker.line().removeprefix("calling="))

    def start(self, tenant: AgentTenant, *words: str) -> Spoken:
        return Spoken(tenant.wrap([str(self.attack), *words]), environment(self.gpu), seconds=30)

    def check(self) -> None:
        """The agent answers, and the neighbour's allocations are made, and its cap is kept."""
        begin = time.monotonic()
        with Client(f"{self.agent.directory}/control", 20.0) as client:
            tenants = status.ask(client).tenants
        assert time.monotonic() - begin < ANSWER_SECONDS
        assert {one.container for one in tenants} >= {self.hostile.name}
        churn = self.start(self.good, "churn", "50")
        begin = time.monotonic()
        try:
            assert churn.line() == "bad=0"
            assert time.monotonic() - begin < 10 * ANSWER_SECONDS
            # A plan that was renewed late by a busy machine is in force again with the next look.
            assert leftovers.until(
                lambda: bool((self.good.status() or {"gpus": [{"cap_in_force": False}]})["gpus"][0]["cap_in_force"]),
                seconds=30,
            )
        finally:
            churn.kill()


@contextmanager
def stalled(gpu: SimGpu, attack: Path, mode: str) -> Iterator[Stall]:
    with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
        stall = Stall(agent, gpu, attack, mode)
        try:
            yield stall
        finally:
            os.kill(stall.server, signal.SIGKILL)
            stall.attacker.kill()


def in_force(stall: Stall) -> None:
    for _ in range(3):
        stall.check()


def killed(stall: Stall) -> None:
    """Another agent finds both tenants again at once."""
    begin = time.monotonic()
    stall.agent.kill()
    assert time.monotonic() - begin < 20 * ANSWER_SECONDS
    stall.check()


def ended(stall: Stall) -> None:
    """An agent that gets SIGTERM ends."""
    stall.agent.process.terminate()
    stall.agent.process.wait(20 * ANSWER_SECONDS)
    stall.agent.process = stall.agent._start()
    assert stall.agent.ready(), stall.agent.log.read_text()[-2000:]
    stall.check()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", [in_force, killed, ended])
def test_a_file_system_that_does_not_answer_holds_up_its_own_tenant_alone(
    machine: Path, what: Callable[[Stall], None], mode: str
) -> None:
    def inside(gpu: SimGpu) -> None:
        with stalled(gpu, machine / "attack", mode) as stall:
            what(stall)

    with_gpu(machine, inside)


def test_a_tenant_without_a_cap_that_stalls_its_guard_is_stopped(machine: Path) -> None:
    """Nothing else of it is published while its guard's threads wait, and nothing was looked at."""

    def inside(gpu: SimGpu) -> None:
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
            hostile = agent.tenant(memory=2 * GIB)
            attacker = Spoken(hostile.wrap([str(machine / "attack"), "fuse", "memory"]), environment(gpu), seconds=30)
            try:
                assert attacker.line() == "mounted=1"
                server = int(attacker.line().removeprefix("calling="))
                assert leftovers.until(lambda: hostile.status()["gpus"][0]["frozen"], seconds=30)
                assert hostile.status()["denials"] == {"unresponsive": 1}
                os.kill(server, signal.SIGKILL)
                assert leftovers.until(lambda: not hostile.status()["gpus"][0]["frozen"], seconds=30)
            finally:
                attacker.kill()

    with_gpu(machine, inside)


def test_a_process_without_us_that_exchanges_its_descriptor_stops_no_other_phase(machine: Path) -> None:
    """The thread that keeps phases copied it again and again, and asked its file system what it is."""

    def inside(gpu: SimGpu) -> None:
        words = [str(machine / "attack"), "fuse", "stat", "exchanged"]
        at = os.stat("/dev/nvidiactl")
        number, node = ATTACHED + 1, (at.st_dev, at.st_ino)
        gpu_of = ResolvedGpu(UUID, 0)
        with Supervisors("/dev") as guard, Spoken(words, environment(gpu), seconds=30) as program:
            assert program.line() == "mounted=1"
            descriptor, pid = int(program.line().removeprefix("descriptor=")), program.process.pid
            channels = (AttachedChannel(descriptor, 1, 2, 3),)
            process = AttachedProcess(pid, store.start_time(pid), *node, "probes", UUID, (), channels)
            held = attach.copies(process)
            guard.add(number, limits.encode(Limits((gpu_of,))), 1, first=(pid, process.start_time))
            with syscalls.pidfd_open(pid) as pidfd:
                guard.attach(number, pidfd.fileno(), node, [(1, 2, 3, held[descriptor].fileno())])
            held[descriptor].close()
            guard.phase(number, 0, 50_000, 0, 25_000)
            server = int(program.ask("").removeprefix("exchanged="))
            try:
                begin, before = time.monotonic(), guard.attached(number)[2]
                wait_until(lambda: guard.attached(number)[2] > before + 200_000_000, "it is stopped and started")
                assert time.monotonic() - begin < 20 * ANSWER_SECONDS
                with pytest.raises(ContainerError, match="is not the driver's control node"):
                    attach.copies(process)
            finally:
                os.kill(server, signal.SIGKILL)
        assert time.monotonic() - begin < 30 * ANSWER_SECONDS

    with_gpu(machine, inside)
