"""The agent killed every two seconds while two tenants allocate and compute.

NVC_GPU_FAULT_SECONDS: for how long, each (default 30; 120 for the whole claim).
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import Starts
from tests.support import leftovers
from tests.support.agent_tenants import Crashes, RunningAgent
from tests.support.bed import Bed
from tests.support.gpumeasure import first_gpu, nodes, used_mib
from tests.support.native import build
from tests.support.share_kinds import GIB, STILL
from tests.support.share_table import Table
from tests.support.spoken import Spoken

SECONDS = float(os.environ.get("NVC_GPU_FAULT_SECONDS") or 30)
pytestmark = [pytest.mark.gpu, pytest.mark.system, pytest.mark.timeout(round(SECONDS) + 120)]

EVERY = 2.0
#: No tenant may be without the GPU for longer, in nanoseconds, nor an allocation wait so long, in microseconds.
FROZEN_NS, WAITED_US = 1_000_000_000, 5_000_000


@pytest.fixture
def agent(bed: Bed, launcher: Path, environment: dict[str, str]) -> Iterator[RunningAgent]:
    """An agent with directories of its own."""
    uuid, driver = first_gpu()
    with RunningAgent(bed.directory("agent"), uuid, nodes(), driver, launcher, environment) as running:
        yield running


def _said(program: Spoken, lines: int) -> dict[str, int]:
    pairs = (program.line().partition("=") for _ in range(lines))
    return {name: int(value) for name, _, value in pairs}


def _gaps(program: Spoken) -> list[float]:
    """Milliseconds of each."""
    found = []
    while (line := program.line()) != "end":
        _, since, until = line.split()
        found.append((int(until) - int(since)) / 1e6)
    return found


def test_killed_under_load(
    agent: RunningAgent, start: Starts, programs: Path, environment: dict[str, str], table: Table
) -> None:
    churn = str(build("cuda_churn") / "cuda_churn")
    before = used_mib()
    tenants = [agent.tenant(memory=8 * GIB, cap=600), agent.tenant(memory=12 * GIB, weight=20)]
    burning = [start("burn", "plain", 0.65, tenant=tenant) for tenant in tenants]
    for program in burning:
        program.line()
    burned = [tenant.used() for tenant in tenants]
    churning = [
        Spoken(tenant.wrap([churn, str(SECONDS), "64"]), environment, seconds=SECONDS + 60) for tenant in tenants
    ]
    try:
        begun = [_said(program, 2) for program in churning]
        for program in burning:
            program.seconds = SECONDS + 60
            program.tell(f"gaps {SECONDS} {FROZEN_NS}")
        with Crashes(agent.kill, EVERY) as crashes:
            ended = [_said(program, 7) for program in churning]
        frozen = [gap for program in burning for gap in _gaps(program)]
    finally:
        for program in churning:
            program.kill()
    # Only the burning programs have memory now, and theirs did not change.
    exact = leftovers.until(lambda: [tenant.used() for tenant in tenants] == burned, seconds=5)
    beyond = [tenant.used() - used >> 10 for tenant, used in zip(tenants, burned, strict=True)]
    for program in burning:
        program.kill()
    gone = leftovers.until(lambda: all(tenant.status() is None for tenant in tenants), seconds=10)
    settled = leftovers.until(lambda: used_mib() <= before + STILL, seconds=10)

    wrong = [(last["wrongly_refused"], last["wrongly_granted"], last["first_wrong"]) for last in ended]
    same = all(last["end_free_kib"] == first["start_free_kib"] for first, last in zip(begun, ended, strict=True))
    longest = max(last["longest_us"] for last in ended)
    good = wrong == [(0, 0, 0)] * 2 and frozen == [] and same and exact and gone and settled
    starts = f", answering after {statistics.median(agent.starts):.2f} s"
    table.add(
        f"agent killed {crashes.count} times in {SECONDS:.0f} s, two tenants allocate and compute",
        goal="no wrong answer, no tenant frozen for 1 s, usage exact, nothing stays",
        got=f"{sum(last['grants'] for last in ended)} granted, {sum(last['refusals'] for last in ended)} refused, "
        f"wrong: {wrong}; frozen: {frozen}; longest call {longest / 1000:.0f} ms{starts}; "
        f"charged beyond: {beyond} KiB; free as before: {same}, exact: {exact}, gone: {gone and settled}",
        good=good,
    )
    assert good
    assert crashes.count >= SECONDS / (EVERY + 3)
    assert min(last["grants"] for last in ended) > 100
    assert longest < WAITED_US
