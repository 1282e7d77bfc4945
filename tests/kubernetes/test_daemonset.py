"""The chart's driver as pods of the image that `make image` made: with its account, installed hooks, upgrades (6)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nvc
from nvc.kube.names import NAMESPACE
from tests.support import helm
from tests.support.cluster import Object
from tests.support.kubenode import Node
from tests.support.launchers import CHECKOUT
from tests.support.leftovers import until
from tests.support.pods import Pods, claim_spec, pod
from tests.support.shares import holds

Measured = Callable[[str, str, str], None]
pytestmark = pytest.mark.timeout(600)
ARCHIVE = CHECKOUT / f"dist/nvc-py_{nvc.__version__}_{os.uname().machine}.oci.tar"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component%3Ddriver"
SHARE, HELD = {"memory": "10Gi", "compute": 30}, "mem=10Gi,weight=300"
HOOK = "/opt/nvc-py/bin/nvc-cdi-hook"
#: Upgrades one after the other, and pods that start in each at most.
UPGRADES, MOST = 3, 60


@pytest.fixture(scope="module")
def deployed(driver: Node, classes: None) -> Iterator[Node]:
    """The node with the chart's DaemonSet in place of the bed's driver."""
    done = driver.ctr("images", "import", str(ARCHIVE))
    assert done.code == 0, f"{ARCHIVE} (make image): {done.text}"
    driver.stop("driver")
    for one in driver.slices():
        driver.cluster.admin.delete(f"/apis/resource.k8s.io/v1/resourceslices/{one['metadata']['name']}")
    deploy(driver, "first")
    yield driver
    helm.deploy(driver.cluster, helm.NOWHERE)
    assert until(lambda: driver.cluster.admin.items(PODS) == [], seconds=60)
    driver.start_driver()


def deploy(node: Node, version: str) -> None:
    """The chart with a driver for the bed's machine. version: a change of it makes new pods."""
    environment = {"driver.environment[0].name": "VERSION", "driver.environment[0].value": version}
    helm.deploy(node.cluster, {"node.simulatedMachine": str(node.machine), **environment})


def drivers(node: Node, version: str = "") -> list[Object]:
    """The driver's pods that are ready. version: those of a deployment alone."""
    found = []
    for one in node.cluster.admin.items(PODS):
        own = {each["name"]: each.get("value") for each in one["spec"]["containers"][0]["env"]}
        states = one["status"].get("containerStatuses", [])
        if states and all(each["ready"] for each in states) and version in ("", own["VERSION"]):
            found.append(one)
    return found


def explain(node: Node) -> str:
    text = [str(one["status"]) for one in node.cluster.admin.items(PODS)]
    for directory in Path("/var/log/pods").glob(f"{NAMESPACE}_nvc-driver*/*"):
        text += [file.read_text()[-2000:] for file in directory.iterdir()]
    return "\n".join(text)


def test_the_driver_serves_from_its_image(deployed: Node, pods: Pods, measured: Measured) -> None:
    """Libraries, device nodes, rules and agent are the node's, seen through the pod's mount of its root directory."""
    assert until(lambda: len(deployed.devices()) == 8 and bool(drivers(deployed)), seconds=120), explain(deployed)
    attributes = [device["attributes"] for one in deployed.slices() for device in one["spec"]["devices"]]
    assert [{"bool": True}] * 8 == [one["guard"] for one in attributes], "the agent is found"
    name = pods.start(pod([pods.claim(claim_spec(SHARE))]))
    pods.running(name)

    holds(deployed, pods.container(name), HELD)
    (file,) = deployed.claim_files()
    text = Path(deployed.cdi, file).read_text()
    assert f'"path": "{HOOK}"' in text
    assert "/host" not in text
    assert os.access(HOOK, os.X_OK)
    measured("6: a pod's share from the chart's DaemonSet and image", "held", "held")


def test_an_upgrade_leaves_no_moment_without_a_driver(deployed: Node, pods: Pods, measured: Measured) -> None:
    """The new pod serves before the old one goes; pods start and end all the while, and none has a failed prepare."""
    assert until(lambda: bool(drivers(deployed)), seconds=120), explain(deployed)
    kept = pods.start(pod([pods.claim(claim_spec(SHARE))]))
    pods.running(kept)
    failed: list[str] = []
    started = 0
    for number in range(UPGRADES):
        version = f"next-{number}"
        deploy(deployed, version)
        before = started
        while not (drivers(deployed, version) and drivers(deployed) == drivers(deployed, version)):
            assert started - before < MOST, explain(deployed)
            name = pods.start(pod([pods.claim(claim_spec({"memory": "1Gi"}))]))
            pods.running(name, seconds=180)
            failed += pods.failed_prepares(name)
            pods.remove(name)
            started += 1

    holds(deployed, pods.container(kept), HELD)
    pods.remove(kept)
    assert until(lambda: deployed.claim_files() == [], seconds=10), "what an instance before prepared"
    measured(f"6: failed prepares of {started} pods beside {UPGRADES} upgrades of the DaemonSet", "0", str(len(failed)))
    assert started
    assert failed == []


def test_the_chart_is_uninstalled_when_no_pod_has_a_claim(deployed: Node, pods: Pods) -> None:
    name = pods.start(pod([pods.claim(claim_spec(SHARE))]))
    pods.running(name)

    done = helm.helm(deployed.cluster, "uninstall", helm.RELEASE, "--timeout=60s")

    assert done.code != 0
    assert "Job/nvc-system/nvc-uninstall" in done.text
    assert drivers(deployed)
    holds(deployed, pods.container(name), HELD)
    pods.clear()
    done = helm.helm(deployed.cluster, "uninstall", helm.RELEASE, "--timeout=60s")
    assert done.code == 0, done.text
    assert until(lambda: deployed.cluster.admin.items(PODS) == [], seconds=60)
