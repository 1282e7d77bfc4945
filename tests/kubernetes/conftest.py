"""A cluster of one node on this machine, for `make test-kubernetes`: real programs of Kubernetes, simulated GPUs.

NVC_KUBERNETES names the directory of one version's programs (tools/kubernetes/build). Everything runs in namespaces of
the whole pytest process (tests/support/programs/enter_kubernetes.sh); nothing of it outlives that.
NVC_KUBERNETES_MACHINE names another simulated machine; "real": this machine's own GPUs (tried with the starts of
test_times.py). NVC_KUBERNETES_STARTS names a file to which the times of each start are written, as JSON.
NVC_KUBERNETES_CRUN names a crun (1.14.3 or newer) for more kinds of these.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import cgroupview, helm, leftovers
from tests.support.bed import Bed
from tests.support.cluster import Cluster
from tests.support.kubenode import NAME, Node
from tests.support.pods import Pods

#: Read once: tests see no NVC_ variable.
PROGRAMS = Path(os.environ.get("NVC_KUBERNETES", "."))
#: What -> how many, of `make test-kubernetes`.
_COUNTS = dict(word.split("=") for word in os.environ.get("NVC_KUBERNETES_COUNTS", "").split())
MACHINE = os.environ.get("NVC_KUBERNETES_MACHINE") or "h100x8"
#: A crun that containerd 2 can use (1.14.3 or newer), in place of the machine's; "": no pods by crun.
CRUN = os.environ.get("NVC_KUBERNETES_CRUN", "")
#: The file for the times of each start; "": none.
STARTS = os.environ.get("NVC_KUBERNETES_STARTS", "")
#: Rows of the table at the end: what of the acceptance, its goal, what there was.
_ROWS: list[tuple[str, str, str]] = []


def count(what: str, usual: int) -> int:
    """How many of something, unless the make target was told."""
    return int(_COUNTS.get(what) or usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not PROGRAMS.is_absolute():
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason="`make test-kubernetes` starts these"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of docs/measured/kubernetes.md."""
    if _ROWS:
        terminalreporter.write_line("| what | goal | got |\n|---|---|---|")
        for row in _ROWS:
            terminalreporter.write_line("| " + " | ".join(row) + " |")


@pytest.fixture
def measured() -> Callable[[str, str, str], None]:
    """Note a row: what, goal, got."""
    return lambda what, goal, got: _ROWS.append((what, goal, got))


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    bed = Bed()
    yield bed
    leftovers.end_processes(bed.token)
    cgroupview.remove_when_empty(bed.token)
    left = [str(path) for path in cgroupview.directories(bed.token)]
    bed.close()
    assert left == [], "tests left these cgroups on the machine:\n" + "\n".join(left)


@pytest.fixture(scope="session")
def cluster(bed: Bed) -> Iterator[Cluster]:
    """The control plane."""
    cluster = Cluster(PROGRAMS, PROGRAMS.parent / "node", bed.directory("cluster"), bed.env, [NAME])
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def classes(cluster: Cluster) -> None:
    """The chart's objects; its driver runs on no node."""
    helm.deploy(cluster, helm.NOWHERE)


@pytest.fixture(scope="session")
def node(cluster: Cluster, bed: Bed) -> Iterator[Node]:
    """A node that is ready, with our agent, and without a driver."""
    node = Node(cluster, bed, "" if MACHINE == "real" else MACHINE, has_crun=bool(CRUN))
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


@pytest.fixture(scope="session")
def driver(node: Node, classes: None) -> Node:
    """The node with our driver; a test that stops it starts it again."""
    node.start_driver()
    return node
