"""The chart, installed by Helm on the bed's cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nvc.kube.names import NAMESPACE
from tests.support.chart import CHART
from tests.support.runtimes import Result, execute

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

RELEASE = "nvc"
#: No node has it: the chart's objects are there, and its driver runs nowhere.
NOWHERE = {"node.selector.gpu": "nowhere"}


def helm(cluster: Cluster, *words: str) -> Result:
    """A command of Helm's."""
    own = (f"--kubeconfig={cluster.configs['admin']}", f"--namespace={NAMESPACE}")
    return execute([str(cluster.node_programs / "helm"), *words, *own], env={**cluster.env, "HOME": str(cluster.place)})


def deploy(cluster: Cluster, values: Mapping[str, str]) -> None:
    """Install the chart, or upgrade it. values: as for --set."""
    words = ["upgrade", RELEASE, str(CHART), "--install", "--create-namespace"]
    done = helm(cluster, *words, *(f"--set={name}={value}" for name, value in values.items()))
    assert done.code == 0, done.text
