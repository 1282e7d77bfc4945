"""What goes on while a part of the cluster is away (acceptance 12)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.kubernetes.conftest import count
from tests.support.cluster import Cluster
from tests.support.kubenode import Node
from tests.support.leftovers import until
from tests.support.pods import Pods, claim_spec, pod
from tests.support.shares import holds

Measured = Callable[[str, str, str], None]
SHARE: dict[str, str | int] = {"memory": "10Gi", "compute": 30}
HELD = "mem=10Gi,weight=300"
#: Seconds that a pod is left alone; the acceptance says an hour.
ALONE = count("alone", 30)
pytestmark = pytest.mark.timeout(400 + ALONE)


@pytest.fixture
def server(cluster: Cluster) -> Iterator[Cluster]:
    """A test stops the API server; it is there again afterwards."""
    yield cluster
    if not cluster.is_ready():
        cluster.start_server()
    assert until(cluster.is_ready, seconds=60)


def test_a_claim_is_unprepared_without_the_api_server(
    driver: Node, pods: Pods, server: Cluster, measured: Measured
) -> None:
    """The pod's program ends meanwhile; kubelet and driver take the claim's file away."""
    body = pod([pods.claim(claim_spec(SHARE))], command=["/bin/sleep", "12"])
    name = pods.start(body)
    pods.running(name)
    assert driver.claim_files() != []

    server.stop("kube-apiserver")

    assert until(lambda: driver.claim_files() == [], seconds=90), driver.log("kubelet")
    assert not server.is_ready()
    measured("12: unprepare with the API server stopped", "works", "works")


def test_a_pod_loses_nothing_without_driver_server_and_kubelet(
    driver: Node, pods: Pods, server: Cluster, measured: Measured
) -> None:
    name = pods.start(pod([pods.claim(claim_spec(SHARE))]))
    pods.running(name)
    container = pods.container(name)
    pid = driver.pid(container)

    server.stop("kube-apiserver")
    driver.stop("driver", "kubelet")
    time.sleep(ALONE)

    holds(driver, container, HELD)
    assert driver.pid(container) == pid
    server.start_server()
    driver.start_kubelet()
    driver.start_driver()
    pods.running(name)
    assert driver.pid(container) == pid
    holds(driver, container, HELD)
    measured(
        f"12: a running pod without driver, API server and kubelet for {ALONE} s",
        "loses nothing (an hour)",
        "lost nothing",
    )
