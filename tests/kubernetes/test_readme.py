"""README's pod (docs/assets/part-of-a-gpu.yaml) on the bed's cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support import readme
from tests.support.cluster import apply
from tests.support.containerd import IMAGE
from tests.support.kubenode import Node
from tests.support.pods import NAMESPACE, SLEEP, Pods
from tests.support.shares import holds

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]


def test_the_pod(driver: Node, pods: Pods) -> None:
    """README.md: as it stands but for the image, which no node here can pull.

    No driver is behind this bed's nodes, so nvidia-smi names the machine's memory: the share is looked at.
    """
    (lines,) = [block for block in readme.blocks() if block[0].startswith("kubectl")]
    file, name = lines[0].split()[-1], lines[1].split()[-1]
    assert lines == [f"kubectl apply -f {file}", f"kubectl logs {name}"]
    template, pod = yaml.safe_load_all((ROOT / file).read_text())
    template["metadata"]["namespace"] = NAMESPACE
    container = pod["spec"]["containers"][0] | {"image": IMAGE, "imagePullPolicy": "Never"}
    pod["spec"]["containers"] = [container]
    apply(pods.api, [template])
    assert pods.start(pod) == name
    assert pods.ended(name)["status"]["phase"] == "Succeeded"
    assert pods.log(name, "main").splitlines()[0] == readme.shown().splitlines()[0]

    pod["metadata"]["name"] = "stays"
    container["command"] = [*SLEEP]
    pods.running(pods.start(pod))
    holds(driver, pods.container("stays"), "mem=10Gi,weight=300")
