"""The agent and its keeper are killed while guarded containers work: what must pass passes, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.agentbed import Held, RunningAgent
from tests.support.bed import Bed
from tests.support.runtimes import OciRuntime
from tests.system.test_agent import agent, behind, empty, machine, tenant, tree

__all__ = ["agent", "machine", "tree"]
pytestmark = pytest.mark.system

#: Of each crash loop, and between two crashes. A GPU machine takes more: NVC_FAULT_SECONDS=120.
SECONDS = float(os.environ.get("NVC_FAULT_SECONDS", "3"))
PAUSE = 0.5


def crash(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, accident: Callable[[], None]) -> None:
    """Two tenants allocate and free all the time, within their shares and beyond; meanwhile accidents happen."""
    wrapped = behind(bed, runc, agent)
    length = str(SECONDS + 3)
    with (
        Held(wrapped, tenant(tree, "2", "1024", length, share="mem=2Gi")) as first,
        Held(wrapped, tenant(tree, "3", "1024", length, share="mem=3Gi")) as second,
    ):
        assert leftovers.until(lambda: len(agent.status().tenants) == 2, seconds=10), agent.log.read_text()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(PAUSE)
            accident()
        for held in (first, second):
            code, said = held.end()
            assert " passed=0 " in said, said
            assert code == 0, said
    assert empty(agent)
    told = [event for event in agent.events() if event["event"] in ("problem", "refused")]
    # One that is killed while it is being given its descriptors is told of, and replaced too.
    assert not [event for event in told if not str(event.get("what")).startswith("agent error: keeper: ")]


# Seen in some runs: the other container is not registered in time, or a program waits until its limit.
# Neither is understood yet; a kill between receiving a call and noting its id would do the second. A container that
# hangs is left behind for the next test to find, so this one runs when it is asked for: NVC_FAULT_SECONDS=3.
@pytest.mark.skipif("NVC_FAULT_SECONDS" not in os.environ, reason="not steady yet: one in several runs hangs")
def test_an_agent_that_is_killed_again_and_again(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    def accident() -> None:
        agent.kill()
        agent.start()

    crash(bed, runc, agent, tree, accident)


def test_a_keeper_that_is_killed_again_and_again(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    def accident() -> None:
        before = agent.keeper()
        agent.kill_keeper()
        assert leftovers.until(lambda: agent.keeper() not in (0, before), seconds=5)

    crash(bed, runc, agent, tree, accident)
    assert len(agent.of("keeper-gone")) >= SECONDS / PAUSE / 3
