"""Metrics name the pod, and end with it (acceptance 10)."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

import pytest

from tests.support.kubenode import METRICS, Node
from tests.support.leftovers import until
from tests.support.pods import NAMESPACE, Pods, claim_spec, pod

Measured = Callable[[str, str, str], None]
pytestmark = pytest.mark.timeout(300)


def scrape() -> str:
    with urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=30) as answer:
        return bytes(answer.read()).decode()


@pytest.mark.parametrize("containers", [1, 2])
def test_series_have_the_pods_names_and_end_with_it(
    driver: Node, pods: Pods, measured: Measured, containers: int
) -> None:
    claim = pods.claim(claim_spec({"memory": "10Gi", "compute": 30}))
    name = pods.start(pod([claim], containers=containers))
    pods.running(name)
    uid = pods.read_claim(claim)["metadata"]["uid"]

    for number in range(containers):
        labels = (f'namespace="{NAMESPACE}"', f'pod="{name}"', f'container_name="c{number}"', uid)
        lines = [line for line in scrape().splitlines() if all(label in line for label in labels)]
        assert lines, scrape()

    pods.remove(name)
    assert until(lambda: name not in scrape() and uid not in scrape(), seconds=15)
    measured(f"10: series of a pod with {containers} containers name it and its claim, and end with it", "yes", "yes")


def test_scrape_is_prometheus_text(driver: Node) -> None:
    assert re.search(r"^# TYPE nvc_", scrape(), re.MULTILINE)
