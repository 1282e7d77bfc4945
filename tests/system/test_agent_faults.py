"""The agent and its keeper are killed while guarded containers work: what must pass passes, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.agentbed import Held, RunningAgent, build_rawalloc
from tests.support.bed import Bed
from tests.support.runtimes import OciRuntime
from tests.system.test_agent import agent, behind, empty, machine, tenant, tree

__all__ = ["agent", "machine", "tree"]
pytestmark = pytest.mark.system

#: Of each crash loop, and between two crashes. A machine with time takes more: NVC_FAULT_SECONDS=120.
SECONDS = float(os.environ.get("NVC_FAULT_SECONDS", "3"))
PAUSE = 0.5 if SECONDS < 60 else 2.0
#: How much longer than the longest time without an agent a call may take: a machine that does other things is slow.
SPARE = 5.0 if SECONDS < 60 else 1.0


def crash(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, accident: Callable[[], None]) -> None:
    """Two tenants allocate and free all the time, within their shares and beyond; meanwhile accidents happen."""
    wrapped = behind(bed, runc, agent)
    length = str(SECONDS + 3)
    # Each has a tree of its own: two hooks that make one ld.so.cache at a time are in each other's way.
    other = bed.rootfs()
    build_rawalloc(other / "usr/bin/rawalloc")
    with (
        Held(wrapped, tenant(tree, "2", "1024", length, share="mem=2Gi")) as first,
        Held(wrapped, tenant(other, "3", "1024", length, share="mem=3Gi")) as second,
    ):
        assert leftovers.until(lambda: len(agent.status().tenants) == 2, seconds=40), agent.log.read_text()
        end = time.monotonic() + SECONDS
        absent = 0.0
        while time.monotonic() < end:
            time.sleep(PAUSE)
            begin = time.monotonic()
            accident()
            absent = max(absent, time.monotonic() - begin)
        for held in (first, second):
            code, said = held.end()
            assert " passed=0 " in said, said
            assert code == 0, said
            assert int(said.split("longest=")[1].split()[0]) / 1000 < absent + SPARE, said
    assert empty(agent)
    told = [event for event in agent.events() if event["event"] in ("warning", "refused")]
    # One that is killed while it is being given its descriptors is told of, and replaced too.
    assert not [event for event in told if not str(event.get("message")).startswith("agent error: keeper: ")]


def test_an_agent_that_is_killed_again_and_again(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    def accident() -> None:
        agent.kill()
        agent.start()

    crash(bed, runc, agent, tree, accident)


def test_a_keeper_that_is_killed_again_and_again(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    killed = list[int]()

    def accident() -> None:
        before = agent.keeper()
        killed.append(before)
        agent.kill_keeper()
        assert leftovers.until(lambda: agent.keeper() not in (0, before), seconds=30)

    crash(bed, runc, agent, tree, accident)
    # One that is killed while it is being given its descriptors is told of as a problem.
    assert killed
    assert len(agent.of("keeper-gone")) + len(agent.of("warning")) >= len(killed) / 2


#: Connects to a keeper as an agent does, receives one announced call through the listener, and is gone.
RECEIVE = Path(__file__).parent / "programs/receive_call.py"


def test_a_call_that_was_received_and_is_in_no_ledger_is_made_again(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    """An agent that is killed between receiving a call and noting it: the kernel never announces that call again."""
    with Held(behind(bed, runc, agent), tenant(tree, "2", "1024", "0", share="mem=2Gi")) as held:
        assert held.line() == "held"
        agent.kill()
        assert held.process.stdin is not None
        held.process.stdin.close()  # it frees its memory: that waits
        held.process.stdin = None
        subprocess.run([sys.executable, RECEIVE, f"{agent.directory}/keeper"], check=True, timeout=20)
        agent.start()
        code, said = held.end()
        assert (code, "failed=0 passed=0 again=0" in said) == (0, True), said
    assert empty(agent)
