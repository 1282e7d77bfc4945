"""The bed is a cluster: its node is ready, and pods without a GPU run, beside our runtime and through it."""

from __future__ import annotations

import pytest

from nvc.kube.names import RUNTIME_CLASS
from tests.support.cluster import Cluster
from tests.support.kubenode import Node
from tests.support.pods import Pods, pod


def test_the_version_is_the_one_that_was_asked_for(cluster: Cluster) -> None:
    assert cluster.admin.get("/version")["gitVersion"].startswith(f"v{cluster.version}"[:5])


@pytest.mark.parametrize("runtime_class", [None, RUNTIME_CLASS], ids=["runc", "nvc"])
def test_a_pod_without_a_gpu_runs(node: Node, pods: Pods, runtime_class: str | None) -> None:
    name = pods.start(pod([], command=["/bin/sh", "-c", "echo hello"], runtime_class=runtime_class))

    assert pods.ended(name)["status"]["phase"] == "Succeeded"
    assert pods.log(name) == "hello\n"
