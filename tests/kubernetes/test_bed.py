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


def test_a_pod_reaches_the_api_server_with_its_accounts_token(node: Node, pods: Pods) -> None:
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    # busybox has no TLS: the server's refusal of plain HTTP is an answer.
    ask = "wget -O- http://$KUBERNETES_SERVICE_HOST:443 2>&1 | grep -o 400"
    command = ["/bin/sh", "-c", f"cat {place}/namespace; ls {place}; {ask}"]
    body = pod([], command=command, runtime_class=None)
    body["spec"]["automountServiceAccountToken"] = True

    name = pods.start(body)

    assert pods.ended(name)["status"]["phase"] == "Succeeded", pods.log(name)
    assert pods.log(name) == "defaultca.crt\nnamespace\ntoken\n400\n"
