"""Shares that require the guard (acceptance 3): without it no container starts, whatever the runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nvc.kube.names import CLASS_GUARDED, RUNTIME_CLASS
from tests.support.kubenode import Node
from tests.support.pods import Pods, claim_spec, pod
from tests.support.shares import holds, rows

Measured = Callable[[str, str, str], None]
pytestmark = pytest.mark.timeout(300)
SHARE = {"memory": "10Gi", "compute": 30}
HELD = "mem=10Gi,weight=300"


@pytest.fixture
def no_agent(driver: Node) -> Iterator[None]:
    driver.stop("agent")
    yield
    driver.start_agent()


def test_with_the_guard_it_starts(driver: Node, pods: Pods) -> None:
    name = pods.start(pod([pods.claim(claim_spec(SHARE, parameters={"guard": "require"}))]))
    pods.running(name)

    holds(driver, pods.container(name), HELD)


@pytest.mark.parametrize("by", ["claim", "class", "node"])
@pytest.mark.parametrize("runtime_class", [None, RUNTIME_CLASS], ids=["runc", "nvc"])
def test_without_the_agent_nothing_starts(
    driver: Node, pods: Pods, no_agent: None, measured: Measured, runtime_class: str | None, by: str
) -> None:
    refused(driver, pods, runtime_class, by)
    measured(f"3: agent stopped, handler {runtime_class or 'runc'}, required by {by}: containers that start", "0", "0")


@pytest.mark.parametrize("by", ["claim", "class", "node"])
def test_with_another_runtime_nothing_starts(driver: Node, pods: Pods, measured: Measured, by: str) -> None:
    """The engine applies the claim's CDI file, and runc starts its hook: no filter is there."""
    refused(driver, pods, None, by)
    measured(f"3: agent runs, handler runc, required by {by}: containers that start", "0", "0")


def refused(driver: Node, pods: Pods, runtime_class: str | None, by: str) -> None:
    spec = claim_spec(SHARE, parameters={"guard": "require"} if by == "claim" else None)
    if by == "class":
        spec["devices"]["requests"][0]["exactly"]["deviceClassName"] = CLASS_GUARDED
    with driver.rules('[share]\nguard = "require"\n' if by == "node" else ""):
        name = pods.start(pod([pods.claim(spec)], runtime_class=runtime_class))

        pods.refused(name, "guard")

    assert rows(driver) == []
