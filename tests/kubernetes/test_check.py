"""``nvc-py kube check`` beside a real cluster: nothing is wrong with it, and what is taken away is found."""

from __future__ import annotations

import json

import pytest

from nvc.kube.names import CLASS_ANY
from tests.support.cluster import Object, apply
from tests.support.kubenode import NAME, Node

pytestmark = pytest.mark.timeout(300)
RULES = 'accept-nvidia-visible-devices-envvar-when-unprivileged = false\n[share]\nguard = "require"\n'
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


def problems(node: Node) -> dict[str, str]:
    """Check -> what it says, of warnings and errors."""
    # No GPU is looked for: the files are those of the bed, whose machine is its own.
    words = ("kube", "check", "--node", NAME, "--json")
    with node.rules(RULES):
        done = node.bed.call(node.bed.commands.nvc, *words, f"--kubeconfig={node.cluster.configs['admin']}")
    found: list[Object] = json.loads(done.out)["findings"]
    assert len(found) > 15
    return {one["check"]: one["what"] for one in found if one["level"] in ("warning", "error")}


def test_a_cluster_that_works(driver: Node) -> None:
    assert {} == problems(driver)


def test_a_class_that_was_taken_away(driver: Node) -> None:
    api = driver.cluster.admin
    before = api.get(f"{CLASSES}/{CLASS_ANY}")
    api.delete(f"{CLASSES}/{CLASS_ANY}")
    try:
        assert {"cluster-classes": f"device class {CLASS_ANY} does not exist: no claim can name it"} == problems(driver)
    finally:
        metadata = {"name": CLASS_ANY, "labels": before["metadata"].get("labels", {})}
        apply(api, [{**before, "metadata": metadata}])
