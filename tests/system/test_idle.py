"""``idle=60s`` under the agent: which tenant sleeps, for which one, and what wakes it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant
from tests.support.native import build
from tests.support.spoken import Spoken
from tests.system.test_guarded_smoke import environment
from tests.system.test_ranges import allocated, suspended
from tests.system.test_suspend import Bed, in_bed
from tests.system.test_suspend import machine as machine

pytestmark = pytest.mark.root

GIB = 1 << 30


def sleepy(bed: Bed, gib: int, **more: int) -> AgentTenant:
    return bed.agent.tenant(memory=gib * GIB, **{"idle": 1, **more})


def woken(bed: Bed) -> float:
    """When the agent saw last that a container wants to compute; seconds since 1970."""
    events = [json.loads(line) for line in bed.agent.log.read_text().splitlines() if '"wake"' in line]
    return float(events[-1]["time"])


def is_away(bed: Bed) -> bool:
    """Whether the memory of a container has gone; it is called suspended as soon as that begins."""
    return '"event":"suspend"' in bed.agent.log.read_text()


def test_it_sleeps_when_another_needs_the_memory_and_never_otherwise(machine: Path) -> None:
    """And wakes by itself when it makes a call, once the other one has given the memory back."""

    def act(bed: Bed) -> None:
        idle = sleepy(bed, 100)
        first = bed.program(idle)
        assert allocated(first, 90)
        time.sleep(4)
        assert not suspended(bed, idle), "nothing lacks"
        busy = bed.agent.tenant(memory=100 * GIB)
        second = bed.program(busy)
        assert leftovers.until(lambda: is_away(bed), seconds=30)
        assert suspended(bed, idle)
        assert allocated(second, 90)
        time.sleep(3)
        assert suspended(bed, idle)
        assert '"wake"' not in bed.agent.log.read_text(), "CUDA's own thread waits for a lock, and no other one"
        first.tell("get")
        time.sleep(1)
        assert suspended(bed, idle), "the other one has no idle setting, and what it has"
        assert second.ask("free") == "0"
        assert int(first.line()) > 0
        assert leftovers.until(lambda: not suspended(bed, idle), seconds=30)

    in_bed(machine, act)


def test_two_that_take_turns_each_answer_after_waking(machine: Path) -> None:
    def act(bed: Bed) -> None:
        tenants = [sleepy(bed, 80), sleepy(bed, 80)]
        programs = [bed.program(tenants[0])]
        assert allocated(programs[0], 75)
        time.sleep(1.5)
        programs.append(bed.program(tenants[1]))
        assert leftovers.until(lambda: is_away(bed), seconds=30)
        assert allocated(programs[1], 75)
        for turn in (0, 1, 0):
            assert leftovers.until(lambda turn=turn: suspended(bed, tenants[turn]), seconds=20)
            time.sleep(2.5)
            begun = time.time()
            assert programs[turn].ask("sync") == "0"
            answered, seen = time.time(), woken(bed)
            assert seen - begun < 1, f"seen after {seen - begun:.2f} s"
            assert answered - begun < 5, "the other one's suspend, its own resume, and a second or two on this machine"
            print(f"seen after {seen - begun:.3f} s, answered after {answered - begun:.3f} s")
            assert leftovers.until(lambda turn=turn: not suspended(bed, tenants[turn]), seconds=30)

    in_bed(machine, act)


def test_one_that_sleeps_is_found_by_the_next_agent(machine: Path) -> None:
    def act(bed: Bed) -> None:
        idle = sleepy(bed, 100)
        first = bed.program(idle)
        assert allocated(first, 90)
        other = bed.agent.tenant(memory=100 * GIB)
        second = bed.program(other)
        assert leftovers.until(lambda: suspended(bed, idle), seconds=30)
        bed.agent.kill()
        assert suspended(bed, idle)
        first.tell("sync")
        time.sleep(0.5)
        second.kill()
        assert first.line() == "0"

    in_bed(machine, act)


def test_one_that_computes_is_not_idle(machine: Path) -> None:
    """Nor is one that asked for a longer time."""

    def act(bed: Bed) -> None:
        computes, later = sleepy(bed, 60), sleepy(bed, 60, idle=3600)
        burn = [str(build() / "cuda_burn"), "40", "6000000000"]
        bed.programs.append(Spoken(computes.wrap(burn), environment(bed.gpu), seconds=60))
        assert bed.programs[0].line() == "started=1"
        bed.program(later, "alloc 50000")
        bed.program(bed.agent.tenant(memory=100 * GIB))
        until = time.monotonic() + 8
        while time.monotonic() < until:
            assert not suspended(bed, computes)
            assert not suspended(bed, later)
            time.sleep(0.5)

    in_bed(machine, act)
