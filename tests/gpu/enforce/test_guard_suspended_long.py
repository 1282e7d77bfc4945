"""Suspends and resumes again and again, of tenants that compute, while usage is written down. Only if it is named.

Training, a service by a CUDA graph, and a tenant with two processes, all of PyTorch and deterministic: what each
computes is compared bit by bit with what it computed undisturbed. A neighbour that is never suspended counts its work.
NVC_GPU_SUSPENDED_SECONDS: how long (default 460: a command of 600 s has to build and to start, too).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import PARTS, Starts
from tests.support.agent_tenants import RunningAgent
from tests.support.bed import Bed
from tests.support.frameworks import require
from tests.support.gpumeasure import SHARE_PROGRAMS, compile_programs, first_gpu, nodes
from tests.support.share_table import Table
from tests.support.suspend_rounds import Rounds, Usage, Work, in_parallel

#: Read once: tests see no NVC_ variable.
SECONDS = float(os.environ.get("NVC_GPU_SUSPENDED_SECONDS", "460"))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.system,
    pytest.mark.timeout(SECONDS + 200),
    pytest.mark.skipif("suspended_long" not in PARTS.chosen, reason="takes ten minutes: NVC_GPU_PARTS=suspended-long"),
]

GIB = 1 << 30
#: Rounds of each tenant that are wanted, and of how many seconds.
ROUNDS, OF_S = 50, 400
#: Points of the GPU's time, and over which windows; the part by which usage may be off.
POINTS, WINDOW_S, PART = 2.0, 10.0, 0.02
#: Milliseconds of a piece of the neighbour's work; seconds of a job, and steps by which that is found; seeds of jobs.
KERNEL, JOB_S, TRIED, SEEDS = 0.65, 4.0, 20, (1, 2, 3)
WEIGHTS = {"neighbour": 40, "training": 20, "service": 20, "two processes": 20}


@pytest.fixture
def programs(bed: Bed) -> Path:
    """Only what is needed: the other ones take half a minute to compile."""
    return compile_programs([SHARE_PROGRAMS / "burn.cu"], bed.directory("programs"))


@pytest.fixture
def agent(bed: Bed, launcher: Path, environment: dict[str, str]) -> Iterator[RunningAgent]:
    uuid, driver = first_gpu()
    with RunningAgent(bed.directory("agent"), uuid, nodes(), driver, launcher, environment) as running:
        yield running


def _began(agent: RunningAgent, start: Starts) -> tuple[Rounds, Rounds, Rounds]:
    """Tenants whose programs are ready; their jobs are not known yet."""
    tenants = [agent.tenant(memory=8 * GIB, weight=weight) for weight in list(WEIGHTS.values())[1:]]
    kinds = [("train", 1024, 4096)], [("graph", 1024, 4096)], [("train", 512, 2048), ("train", 256, 2048)]
    found = [
        Rounds(name, tenant, [start("torch_rounds.py", *words, tenant=tenant, seconds=90) for words in kind], ())
        for name, tenant, kind in zip(list(WEIGHTS)[1:], tenants, kinds, strict=True)
    ]
    for one in found:
        assert [program.line() for program in one.programs] == ["ready"] * len(one.programs)
    return found[0], found[1], found[2]


def _size(rounds: Rounds) -> None:
    """Jobs of JOB_S beside the other tenants, as long for both of two processes."""
    rounds.ask(f"0 {TRIED}")  # what is allocated once
    begun = time.monotonic()
    rounds.ask(f"0 {TRIED}")
    steps = max(1, round(TRIED * JOB_S / (time.monotonic() - begun)))
    rounds.jobs = [f"{seed} {steps}" for seed in SEEDS]


def test_suspends_and_usage(
    agent: RunningAgent, start: Starts, bed: Bed, environment: dict[str, str], table: Table
) -> None:
    require("torch")
    with Usage(agent, bed.directory("counters") / "readings", environment) as usage:
        neighbour = start("burn", "plain", KERNEL, tenant=agent.tenant(memory=4 * GIB, weight=WEIGHTS["neighbour"]))
        neighbour.line()
        neighbour.tell("rate 2")
        solo = float(neighbour.line())
        every = _began(agent, start)
        in_parallel([partial(_size, one) for one in every])
        usage.start()
        begun = time.monotonic()
        work = Work(neighbour, SECONDS, 0.1)
        time.sleep(0.2)
        calm = time.monotonic(), min(in_parallel([one.undisturbed for one in every]))
        suspending = time.monotonic()
        in_parallel([partial(one.run, begun + SECONDS) for one in every])
        ended = time.monotonic()
        usage.stop()
        work.end()
        length = usage.end - usage.begin
        good = [
            table.add(
                f"{one.name}: rounds of suspend and resume in {ended - suspending:.0f} s, with undisturbed ones' bits",
                goal=f"{max(1, int(ROUNDS * min(1.0, SECONDS / OF_S)))}, all the same",
                got=f"{one.done} rounds, {one.same} the same{''.join(f'; {each}' for each in one.failures)}",
                base=", ".join(
                    f"{what} {min(times):.2f} to {max(times):.2f} s, median {statistics.median(times):.2f}"
                    for what, times in (("out", one.outs), ("back", one.backs))
                    if times
                ),
                good=not one.failures and one.same == one.done >= int(ROUNDS * min(1.0, SECONDS / OF_S)),
            )
            for one in every
        ]
        good.append(_neighbour(table, work, solo, calm, (suspending, ended), every))
        compared = usage.compare()
        for one in compared:
            good.append(
                table.add(
                    f"{one.what}, over {length:.0f} s",
                    goal=f"within {100 * PART:g} % of the device's counter",
                    got=f"{one.ours:.1f} {one.unit}",
                    base=f"{one.device:.1f} {one.unit}",
                    ratio=f"{100 * one.error:+.2f} %",
                    good=abs(one.error) <= PART,
                )
            )
        assert all(good), f"{[one.failures for one in every]}\n{compared}\n{agent.log.read_text()[-6000:]}"


def _neighbour(
    table: Table,
    work: Work,
    solo: float,
    calm: tuple[float, float],
    rounds: tuple[float, float],
    every: tuple[Rounds, ...],
) -> bool | None:
    """What it lost: while suspends and resumes were made, and in the worst window."""
    flights = [flight for one in every for flight in one.flights]
    before = 100 * work.rate([calm]) / solo
    meanwhile = 100 * work.rate(flights) / solo
    lowest = 100 * work.lowest(*rounds, WINDOW_S) / solo
    lost = before - min(meanwhile, lowest)
    return table.add(
        f"the part of a neighbour with weight {WEIGHTS['neighbour']} of {sum(WEIGHTS.values())}",
        goal=f"no more than {POINTS:g} points less than undisturbed",
        got=f"{meanwhile:.2f} % while {len(flights)} suspends and resumes were made; "
        f"{lowest:.2f} % in the worst {WINDOW_S:g} s",
        base=f"{before:.2f} % undisturbed, over {calm[1] - calm[0]:.1f} s",
        ratio=f"{-lost:+.2f} points",
        good=lost <= POINTS,
    )
