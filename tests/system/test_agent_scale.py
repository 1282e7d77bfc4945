"""What many calls, and many tenants, of one agent cost the others (a simulated GPU)."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from pathlib import Path

import pytest

from nvc.agent import status
from nvc.share.protocol import Client
from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.attacks import SOURCES
from tests.support.guarded import build_launcher
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.support.tenants import build_static
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30
PIECES = 8000
#: Seconds of a neighbour's allocation: 1.1 to 1.9 when one free of many pieces delayed all; otherwise milliseconds,
#: and more where two processors do all of it.
ALLOCATION_SECONDS = 0.4
#: What a tenant does at its worst: calls without end, processes without end, races.
WORST = (("flood", "8"), ("bomb", "50", "4"), ("heir-race", "300"))
#: Seconds of each; of half of the agent's answers meanwhile; and of the longest one and the neighbour's longest
#: allocation, where two processors do all of it. Ratios are measured on a GPU (parts attacks, sequences).
WORST_SECONDS, USUAL_ANSWER_SECONDS, LONGEST_SECONDS = 1.5, 0.05, 2.0
TENANTS = 24
#: Seconds that the agent may take to answer while all of them end, and KiB that it may have more afterwards.
ANSWER_SECONDS, KEPT_KIB = 0.5, 8192
#: Until another agent answers; the goal with 200 tenants is 1 s, which the bench measures.
READY_SECONDS = 5.0


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    return directory


def running(gpu: SimGpu) -> RunningAgent:
    return RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu))


def started(gpu: SimGpu, tenant: AgentTenant, machine: Path, *words: str) -> Spoken:
    return Spoken(tenant.wrap([str(machine / "attack"), *words]), environment(gpu), seconds=60)


def churned(program: Spoken) -> dict[str, int]:
    """What a neighbour says that is to end: calls that failed, the median and the slowest allocation, in ns."""
    program.tell("")
    said = (program.line().split("=") for _ in range(3))
    return {name: int(value) for name, value in said}


def test_one_free_of_many_pieces_delays_no_neighbour(machine: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with running(gpu) as agent:
            many, neighbour = agent.tenant(memory=2 * GIB), agent.tenant(memory=GIB)
            with started(gpu, many, machine, "batch", str(PIECES)) as hoarder:
                assert hoarder.line() == "bad=0"
                with started(gpu, neighbour, machine, "churn", "0") as churn:
                    assert leftovers.until(lambda: neighbour.status() is not None, seconds=20)
                    assert hoarder.ask("") == "status=0"
                    said, took = churned(churn), hoarder.line()
                print(said, took)
            assert said["bad"] == 0
            assert said["slowest"] / 1e9 < ALLOCATION_SECONDS, (said, took)

    with_gpu(machine, inside)


@pytest.mark.parametrize("words", WORST, ids=lambda words: words[0])
def test_a_tenant_at_its_worst_reaches_neither_the_agent_nor_a_neighbour(machine: Path, words: tuple[str, ...]) -> None:
    def inside(gpu: SimGpu) -> None:
        with running(gpu) as agent, contextlib.ExitStack() as stack:
            worst, neighbour = agent.tenant(memory=10 * GIB, cap=300), agent.tenant(memory=GIB, cap=300)
            churn = stack.enter_context(started(gpu, neighbour, machine, "churn", "0"))
            assert leftovers.until(lambda: neighbour.status() is not None, seconds=20)
            client = stack.enter_context(Client(f"{agent.directory}/control", 60.0))
            stack.enter_context(started(gpu, worst, machine, *words))
            answers, until = list[float](), time.monotonic() + WORST_SECONDS
            while time.monotonic() < until:
                begin = time.monotonic()
                tenants = status.ask(client).tenants
                answers.append(time.monotonic() - begin)
                found = [one.gpus[0].cap_in_force for one in tenants if one.container == neighbour.name]
                if found != [True]:
                    raise Starved("a plan ran out")
                time.sleep(0.01)
            beside = churned(churn)
            print(words, len(answers), "answers, longest", max(answers), beside)
            assert beside["bad"] == 0
            if max(beside["slowest"] / 1e9, max(answers)) > LONGEST_SECONDS:
                raise Starved(f"the longest of {answers} and {beside}")
            if statistics.median(answers) > USUAL_ANSWER_SECONDS:
                raise Starved(f"half of {answers}")

    with_gpu(machine, inside, again=Starved)


class Starved(AssertionError):
    """It took too long, of the agent or a neighbour."""


def private_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))


def test_tenants_that_end_at_once_neither_stop_the_agent_nor_stay_in_it(machine: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with running(gpu) as agent, contextlib.ExitStack() as stack:
            tenants = [agent.tenant(memory=GIB, cap=30) for _ in range(TENANTS)]
            before = private_kib(agent.process.pid)
            programs = [stack.enter_context(started(gpu, tenant, machine, "batch", "1")) for tenant in tenants]
            assert [program.line() for program in programs] == ["bad=0"] * TENANTS
            client = stack.enter_context(Client(f"{agent.directory}/control", 60.0))
            assert len(status.ask(client).tenants) == TENANTS
            for program in programs:
                os.kill(program.process.pid, signal.SIGKILL)
            longest, left, until = 0.0, TENANTS, time.monotonic() + 30
            while left and time.monotonic() < until:
                begin = time.monotonic()
                left = len(status.ask(client).tenants)
                longest = max(longest, time.monotonic() - begin)
                time.sleep(0.005)
            assert left == 0
            assert longest < ANSWER_SECONDS
            assert private_kib(agent.process.pid) - before < KEPT_KIB
            print("longest answer", longest, "KiB kept", private_kib(agent.process.pid) - before)

    with_gpu(machine, inside)


def test_an_agent_that_is_killed_under_load_is_ready_again_and_no_call_fails(machine: Path) -> None:
    """The next one was ready after 5 to 10 s with 50 tenants, for it asked about each before it served."""

    def inside(gpu: SimGpu) -> None:
        with running(gpu) as agent, contextlib.ExitStack() as stack:
            tenants = [agent.tenant(memory=GIB, cap=500) for _ in range(TENANTS)]
            programs = [stack.enter_context(started(gpu, tenant, machine, "batch", "1")) for tenant in tenants]
            assert [program.line() for program in programs] == ["bad=0"] * TENANTS
            busy = [
                stack.enter_context(started(gpu, agent.tenant(memory=GIB), machine, "churn", "0")) for _ in range(3)
            ]
            client = stack.enter_context(Client(f"{agent.directory}/control", 60.0))
            assert leftovers.until(lambda: len(status.ask(client).tenants) == TENANTS + len(busy), seconds=30)
            agent.starts.clear()
            for _ in range(3):
                agent.kill()
            with Client(f"{agent.directory}/control", 60.0) as after:
                assert len(status.ask(after).tenants) == TENANTS + len(busy)
            for program in busy:
                program.tell("")
            said = [dict(program.line().split("=") for _ in range(3)) for program in busy]
            assert [one["bad"] for one in said] == ["0"] * len(busy)
            assert max(int(one["slowest"]) for one in said) / 1e9 < ALLOCATION_SECONDS
            # The best of three: an interpreter alone takes 0.3 s on two processors that do other things too.
            assert min(agent.starts) < READY_SECONDS, agent.starts
            print("ready after", agent.starts, "slowest", [one["slowest"] for one in said])

    with_gpu(machine, inside)
