"""Containers that start, and processes that enter running ones, while the agent is stopped or killed repeatedly."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.agent_tenants import AgentTenant, Crashes, RunningAgent
from tests.support.agentbed import build_rawalloc
from tests.support.guarded import build_launcher
from tests.support.simgpu import DRIVER, MIB, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Silent, Spoken
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

#: Seconds of each; between two kills. The claims are two minutes of kills every 2 s, and a stopped minute
#: (tests/gpu/enforce/test_guard_faults.py).
KILLED, EVERY, STOPPED = 4.0, 0.5, 2.0
#: Containers that start meanwhile.
COUNT = 6
#: MiB of a piece, and of a quota that one fits into, and what calls of processes that enter may count beside it.
PIECE, QUOTA = 1024, 1900
#: Of a call while there is no agent; of a call while there is one: a machine of tests does other things as well.
SPARE_MS = 1000


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build_rawalloc(directory / "rawalloc")
    return directory


class Load:
    """Two containers that allocate up to their quota and beyond, and COUNT that are registered and not started."""

    def __init__(self, gpu: SimGpu, machine: Path, agent: RunningAgent, stack: contextlib.ExitStack) -> None:
        self.gpu, self.machine, self.agent, self.stack = gpu, machine, agent, stack
        self.working, *self.late = [agent.tenant(memory=QUOTA * MIB) for _ in range(COUNT + 1)]
        self.program = self.start(self.working, "eof")
        assert self.program.line() == "started"

    def start(self, tenant: AgentTenant, how: str) -> Spoken:
        command = [str(self.machine / "rawalloc"), "1", str(PIECE), how]
        return self.stack.enter_context(Spoken(tenant.wrap(command), environment(self.gpu), seconds=70))

    def enter(self) -> None:
        """Another process in the container that works: its call is answered."""
        done = subprocess.run(
            self.working.wrap(["first-answer"]), capture_output=True, text=True, timeout=30, check=False
        )
        assert (done.returncode, done.stdout.endswith("status=0\n")) == (0, True), done

    def end(self) -> None:
        """No call of the program that worked all the time was wrong, or waited for an agent."""
        assert self.program.process.stdin is not None
        self.program.process.stdin.close()
        said = parse(self.program.line())
        assert (said["failed"], said["passed"]) == (0, 0), f"{said} {self.agent.log.read_text()[-3000:]}"
        assert said["longest"] < SPARE_MS


def parse(line: str) -> dict[str, int]:
    return {name: int(value, 0) for name, value in (word.split("=") for word in line.split())}


def is_guarded(program: Spoken) -> bool:
    """Whether its calls were answered as its quota is; False: it was ended. It is not to run on without a guard."""
    try:
        line = program.line()
    except Silent:
        assert program.process.wait(20) == -signal.SIGKILL
        return False
    assert line.startswith("rounds="), line
    assert (parse(line)["failed"], parse(line)["passed"]) == (0, 0), line
    return True


def in_namespace(machine: Path, test: Callable[[Load], None]) -> None:
    def inside(gpu: SimGpu) -> None:
        words = gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)
        with RunningAgent(*words) as agent, contextlib.ExitStack() as stack:
            load = Load(gpu, machine, agent, stack)
            test(load)
            load.end()

    with_gpu(machine, inside)


def test_an_agent_that_is_stopped_is_missed_by_none_that_runs(machine: Path) -> None:
    def test(load: Load) -> None:
        os.kill(load.agent.process.pid, signal.SIGSTOP)
        try:
            until = time.monotonic() + STOPPED
            starting = [load.start(tenant, "once") for tenant in load.late]
            while time.monotonic() < until:
                load.enter()
                time.sleep(0.2)
            assert [one.process.poll() for one in starting] == [None] * COUNT, "they wait for the agent"
        finally:
            os.kill(load.agent.process.pid, signal.SIGCONT)
        assert [is_guarded(one) for one in starting] == [True] * COUNT

    in_namespace(machine, test)


def test_no_container_that_starts_while_agents_are_killed_is_without_a_guard(machine: Path) -> None:
    def test(load: Load) -> None:
        starting = []
        with Crashes(load.agent.kill, EVERY) as crashes:
            for tenant in load.late:
                starting.append(load.start(tenant, "once"))
                load.enter()
                time.sleep(KILLED / COUNT)
        assert crashes.count >= 2
        guarded = [is_guarded(one) for one in starting]
        refused = load.agent.log.read_text().count('"refused"')
        assert guarded.count(False) <= refused, "an event for each that was ended"
        assert guarded.count(True) >= 1

    in_namespace(machine, test)
