"""The chart as Helm renders it: Helm's own checks, and the schemas of every version of Kubernetes that it is for."""

from __future__ import annotations

import subprocess

import kubernetes_validate
import pytest

from tests.support import chart
from tests.support.cluster import Cluster
from tests.support.kubenode import Node
from tests.support.pods import Pods, claim_spec, pod

VERSIONS = ("1.34", "1.35", "1.36", "1.37")
VALUES: dict[str, dict[str, str]] = {
    "defaults": {},
    "extended resource": {"extendedResourceName": "nvidia.com/gpu"},
    "default runtime": {"runtimeClass.handler": ""},
    "nothing more": {"node.install": "false", "confinement.enabled": "false"},
    "everything": {
        "node.selector.gpu": "yes",
        "confinement.hostPaths[0]": "/data",
        "driver.arguments[0]": "--debug",
        "image.tag": "1",
    },
}


def test_lint(cluster: Cluster) -> None:
    words = [str(cluster.node_programs / "helm"), "lint", "--strict", str(chart.CHART)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert (done.returncode, "[ERROR]" in done.stdout, "[WARNING]" in done.stdout) == (0, False, False), done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VALUES)
def test_objects_are_valid(cluster: Cluster, values: str, version: str) -> None:
    if (values, version) == ("extended resource", "1.34"):
        pytest.skip("refused: the next test")
    objects = chart.render(cluster.node_programs / "helm", VALUES[values], hooks=True, version=version)

    assert len(objects) > 8
    assert ("nvc-one-device" in {one["metadata"]["name"] for one in objects}) == (version == "1.34")
    for one in objects:
        kubernetes_validate.validate(one, version, strict=True)


def test_a_resource_name_is_refused_where_a_pods_limit_ends_the_scheduler(cluster: Cluster) -> None:
    """The request is the scheduler's own: no policy sees it."""
    with pytest.raises(subprocess.CalledProcessError) as refused:
        chart.render(cluster.node_programs / "helm", VALUES["extended resource"], version="1.34")

    assert "ends the scheduler of Kubernetes 1.34" in refused.value.stderr


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, {"--root=/host", "--hook=/opt/nvc-py/bin/nvc-cdi-hook"}),
        ({"node.install": "false"}, {"--root=/host", "--hook=/usr/bin/nvc-cdi-hook"}),
        ({"node.driverRoot": "/run/nvidia/driver", "node.hook": "/x"}, {"--root=/host/run/nvidia/driver", "--hook=/x"}),
        ({"node.simulatedMachine": "/m"}, {"--sim=/host/m", "--hook=/opt/nvc-py/bin/nvc-cdi-hook"}),
    ],
    ids=["defaults", "the host's package", "a driver container", "a simulated machine"],
)
def test_where_the_driver_looks_and_what_hooks_start(cluster: Cluster, values: dict[str, str], words: set[str]) -> None:
    objects = chart.render(cluster.node_programs / "helm", values)
    (driver,) = [one for one in objects if one["kind"] == "DaemonSet"]
    command = driver["spec"]["template"]["spec"]["containers"][0]["command"]

    assert words == {word for word in command if word.startswith(("--root", "--sim", "--hook"))}


def test_a_field_of_another_version_is_found() -> None:
    """The check is one: a class with a field that no version has."""
    broken = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "x"}, "spec": {"no": 1}}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.36", strict=True)


def test_claims_that_pods_have_keep_the_driver(driver: Node, pods: Pods) -> None:
    """What the pre-delete hook's job runs."""
    command = (driver.bed.commands.nvc, "kube", "claims", "--kubeconfig", str(driver.cluster.configs["admin"]))
    claim = pods.claim(claim_spec({"memory": "1Gi"}))
    before = driver.bed.call(*command)
    name = pods.start(pod([claim]))
    pods.running(name)

    said = driver.bed.call(*command)

    assert (before.code, before.out) == (0, "")
    assert (said.code, said.out) == (1, f"default/{claim} on node-1: {name}\n")
