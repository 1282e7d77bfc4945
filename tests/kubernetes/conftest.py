"""A cluster of one node on this machine, for `make test-kubernetes`: real programs of Kubernetes, simulated GPUs.

NVC_KUBERNETES names the directory of one version's programs (tools/kubernetes/build). Everything runs in namespaces of
the whole pytest process (tests/support/programs/enter_kubernetes.sh); nothing of it outlives that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.kube.names import RUNTIME_CLASS
from tests.support import cgroupview, daemons
from tests.support.bed import Bed
from tests.support.cluster import Cluster, apply
from tests.support.kubenode import NAME, Node
from tests.support.pods import Pods

#: Read once: tests see no NVC_ variable.
_PROGRAMS = os.environ.get("NVC_KUBERNETES", "")
MACHINE = "h100x8"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not _PROGRAMS:
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason="`make test-kubernetes` starts these"))


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    bed = Bed()
    yield bed
    daemons.end_all(bed.token)
    cgroupview.remove_when_empty(bed.token)
    left = [str(path) for path in cgroupview.directories(bed.token)]
    bed.close()
    assert left == [], "tests left these cgroups on the machine:\n" + "\n".join(left)


@pytest.fixture(scope="session")
def cluster(bed: Bed) -> Iterator[Cluster]:
    """The control plane."""
    programs = Path(_PROGRAMS)
    cluster = Cluster(programs, programs.parent / "node", bed.directory("cluster"), bed.env, [NAME])
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def classes(cluster: Cluster) -> None:
    """The runtime class of the node's runtime."""
    metadata = {"name": RUNTIME_CLASS}
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": RUNTIME_CLASS}
    apply(cluster.admin, [runtime])


@pytest.fixture(scope="session")
def node(cluster: Cluster, bed: Bed) -> Iterator[Node]:
    """A node that is ready, with our agent, and without a driver."""
    node = Node(cluster, bed, MACHINE)
    try:
        node.start()
        yield node
    finally:
        node.stop()


@pytest.fixture
def pods(cluster: Cluster, classes: None) -> Iterator[Pods]:
    """Pods and claims of one test; they are gone at its end."""
    pods = Pods(cluster.admin)
    yield pods
    pods.clear()
