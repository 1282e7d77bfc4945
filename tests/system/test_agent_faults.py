"""The agent is killed while guarded containers work: what must pass passes, and nothing else."""

from __future__ import annotations

import os
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
#: Seconds that a call may take, with an agent and without: the machine does other things as well.
SPARE = 2.0 if SECONDS < 60 else 1.0


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
        while time.monotonic() < end:
            time.sleep(PAUSE)
            accident()
        for held in (first, second):
            code, said = held.end()
            assert " passed=0 " in said, said
            assert code == 0, said
            assert int(said.split("longest=")[1].split()[0]) / 1000 < SPARE, said
    assert empty(agent)
    told = [event for event in agent.events() if event["event"] in ("warning", "refused")]
    assert not told


def test_an_agent_that_is_killed_again_and_again(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    def accident() -> None:
        agent.kill()
        agent.start()

    crash(bed, runc, agent, tree, accident)
