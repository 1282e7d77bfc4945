"""README's pod (docs/assets/part-of-a-gpu.yaml) on the bed's cluster: its log is what README shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support import readme
from tests.support.cluster import apply
from tests.support.containerd import IMAGE
from tests.support.kubenode import Node
from tests.support.pods import NAMESPACE, Pods

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]


def test_the_pod(driver: Node, pods: Pods) -> None:
    """README.md: as it stands but for the image, which no node here can pull."""
    (lines,) = [block for block in readme.blocks() if block[0].startswith("kubectl")]
    file, name = lines[0].split()[-1], lines[1].split()[-1]
    assert lines == [f"kubectl apply -f {file}", f"kubectl logs {name}"]
    template, pod = yaml.safe_load_all((ROOT / file).read_text())
    template["metadata"]["namespace"] = NAMESPACE
    pod["spec"]["containers"][0] |= {"image": IMAGE, "imagePullPolicy": "Never"}
    apply(pods.api, [template])
    assert pods.start(pod) == name

    assert pods.ended(name)["status"]["phase"] == "Succeeded"
    assert pods.log(name, "main") == readme.shown()
