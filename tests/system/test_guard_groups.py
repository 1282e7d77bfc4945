"""Containers of a group share one quota, and end together with their guard."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.agentbed import Held, RunningAgent
from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime
from tests.system.test_agent import agent, behind, empty, machine, tree
from tests.system.test_guard_required import cdi, rules
from tests.system.test_supervisor import SECONDS, ended_within, pids

__all__ = ["agent", "machine", "tree"]
pytestmark = pytest.mark.system


def member(bed: Bed, agent: RunningAgent, tree: Path, *args: str, spec: str = "mem=2Gi,group=claim-1") -> Container:
    """As a kubelet's containerd starts a container of a claim; its annotation and variable ask for more."""
    config = rules(bed.directory("etc"), agent, "require")
    container = cdi(bed, agent, tree, config, (f"--share-fixed={spec}",))
    asks = {"nvc.share": "mem=40Gi"}
    return replace(container, args=["rawalloc", *args], env=(*container.env, "NVC_SHARE=off"), annotations=asks)


@pytest.mark.parametrize(("name", "view"), [("runc", "hybrid"), ("crun", "v1")])
def test_two_containers_of_a_claim_have_one_quota(
    bed: Bed, ask: Callable[[str, str], OciRuntime], agent: RunningAgent, tree: Path, name: str, view: str
) -> None:
    with ExitStack() as stack:
        wrapped = behind(bed, ask(name, view), agent)
        full = stack.enter_context(Held(wrapped, member(bed, agent, tree, "2", "1024", "0")))
        assert full.line() == "held"
        other = stack.enter_context(Held(wrapped, member(bed, agent, tree, "0", "1024", "0")))
        assert other.line() == "held"
        (tenant,) = agent.status().tenants
        assert (tenant.container, len(tenant.containers)) == ("group:claim-1", 2)
        assert tenant.gpus[0].memory >= 2 << 30
        assert "failed=0 passed=0" in full.end()[1]
        # What the first one had is given to a third one; the second one is there all the time.
        third = stack.enter_context(Held(wrapped, member(bed, agent, tree, "2", "1024", "0")))
        assert third.line() == "held"
        assert "failed=0 passed=0" in third.end()[1]
        assert "failed=0 passed=0" in other.end()[1]
    assert empty(agent)


def test_the_death_of_the_guard_ends_every_container_of_the_group(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    with ExitStack() as stack:
        wrapped = behind(bed, runc, agent)
        both = [stack.enter_context(Held(wrapped, member(bed, agent, tree, "1", "256", "0"))) for _ in range(2)]
        assert [one.line() for one in both] == ["held", "held"]
        (tenant,) = agent.status().tenants
        monitor, supervisor = pids(agent)
        for pid in (monitor, supervisor):
            os.kill(pid, signal.SIGKILL)
        for one in tenant.containers:
            ended_within(one.pid, SECONDS)
    assert empty(agent)


@pytest.mark.parametrize("asks", ["nvc.share", "NVC_SHARE"])
def test_a_container_cannot_name_a_group_itself(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, asks: str
) -> None:
    """Attack: a pod that joined another one's group would use that one's quota, and be given its memory's guard."""
    config = rules(bed.directory("etc"), agent, "require")
    container = replace(cdi(bed, agent, tree, config), annotations={})
    if asks == "nvc.share":
        container = replace(container, annotations={asks: "mem=1Gi,group=claim-1"})
    else:
        container = replace(container, env=(*container.env, f"{asks}=mem=1Gi,group=claim-1"))
    result = behind(bed, runc, agent).run(container)
    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "group" in result.text and "fixed" in result.text
