"""Restarts and upgrades beside pods that start all the while (acceptance 6)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.kubernetes.conftest import count
from tests.support.kubenode import Node
from tests.support.leftovers import until
from tests.support.pods import Pods, claim_spec, pod
from tests.support.shares import holds

Measured = Callable[[str, str, str], None]
pytestmark = pytest.mark.timeout(1500)
#: Pods that start meanwhile; the acceptance has 200.
PODS = count("pods", 40)
SHARE, HELD = {"memory": "10Gi", "compute": 30}, "mem=10Gi,weight=300"
SMALL = {"memory": "1Gi"}


def test_slices_come_back_after_a_restart_of_kubelet(driver: Node, pods: Pods, measured: Measured) -> None:
    """kubelet deletes its node's slices when it starts; a pod that runs goes on."""
    name = pods.start(pod([pods.claim(claim_spec(SHARE))]))
    pods.running(name)
    pid = driver.pid(pods.container(name))
    before = {one["metadata"]["uid"] for one in driver.slices()}

    def are_back() -> bool:
        """Whether they are all others than before, with every GPU."""
        there = {one["metadata"]["uid"] for one in driver.slices()}
        return bool(there) and not there & before and len(driver.devices()) == 8

    driver.stop("kubelet")
    begun = time.monotonic()
    driver.start_kubelet(ready=are_back)
    back = time.monotonic() - begun
    assert until(driver.is_ready, seconds=60), driver.log("kubelet")
    ready = time.monotonic() - begun
    time.sleep(5)  # nothing is deleted once more

    assert are_back()
    assert driver.pid(pods.container(name)) == pid
    holds(driver, pods.container(name), HELD)
    measured("6: slices published again after a start of kubelet", "5 s", f"{back:.1f} s")
    measured("6: the node ready after it: kubelet's own", "", f"{ready:.1f} s")
    assert back < 5
    late = pods.start(pod([pods.claim(claim_spec(SHARE))]))
    pods.running(late)


def test_an_upgrade_with_two_instances_fails_no_pod(driver: Node, pods: Pods, measured: Measured) -> None:
    """One after the other is started beside the one before, which then ends; pods start all the while."""
    failed: list[str] = []
    wave, instance = 10, "driver"
    for begin in range(0, PODS, wave):
        names = [pods.start(pod([pods.claim(claim_spec(SMALL))])) for _ in range(wave)]
        following = f"driver-{begin}"
        driver.start_driver("--instance", following, instance=following)
        driver.stop(instance)
        instance = following
        for name in names:
            pods.running(name, seconds=180)
            failed += pods.failed_prepares(name)
        pods.clear()

    driver.start_driver()
    driver.stop(instance)
    measured(f"6: failed prepares of {PODS} pods beside {PODS // wave} upgrades", "0", str(len(failed)))
    assert failed == []
    assert until(lambda: driver.claim_files() == [], seconds=10)


def test_a_reboot_of_the_node(driver: Node, pods: Pods, measured: Measured) -> None:
    """Nothing of /run is left, claims' files are; kubelet starts the pod again, without asking the driver maybe."""
    body = pod([pods.claim(claim_spec(SHARE))])
    body["spec"]["restartPolicy"] = "Always"
    name = pods.start(body)
    pods.running(name)
    before, files = pods.container(name), driver.claim_files()

    driver.reboot()

    assert driver.claim_files() == files
    assert until(lambda: pods.container(name) != before, seconds=120)
    pods.running(name, seconds=120)
    holds(driver, pods.container(name), HELD)
    measured("6: a pod with a share after a reboot of the node", "runs with its share", "runs with its share")
