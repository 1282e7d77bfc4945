"""The driver with its service account: each right is used, none is missing (acceptance 11)."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from nvc.kube.names import DRIVER, NAMESPACE
from tests.support import chart
from tests.support.cluster import Api, ApiError, Cluster, Object, apply
from tests.support.containerd import IMAGE
from tests.support.kubenode import NAME, Node
from tests.support.leftovers import until
from tests.support.pods import Pods, claim_spec, pod

pytestmark = pytest.mark.timeout(300)
ACCOUNT = "nvc-driver"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
STALE = f"{SLICES}/stale"
ROLE = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{ACCOUNT}"
SHARE = {"memory": "10Gi", "compute": 30}


def role() -> Object:
    """The chart's."""
    text = (chart.CHART / "templates/rights.yaml").read_text()
    found = re.search(r"^kind: ClusterRole\n.*?^rules:\n(.*?)^---", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return {"rules": yaml.safe_load(found[1].replace('{{ include "nvc.driver" . }}', DRIVER))}


#: Rule, right: each of the chart's.
RIGHTS = [(number, verb) for number, rule in enumerate(role()["rules"]) for verb in rule["verbs"]]


def shown(right: Any) -> str:
    rule = role()["rules"][right[0]]
    return f"{right[1]} {'/'.join(rule['resources'])}" if isinstance(right, tuple) else str(right)


@pytest.fixture(scope="module")
def account(driver: Node) -> Iterator[Api]:
    """The driver's account, with a token as a pod of the node has it. The driver with all rights is away meanwhile."""
    admin = driver.cluster.admin
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "driver", "namespace": NAMESPACE},
        "spec": {
            "nodeName": NAME,
            "serviceAccountName": ACCOUNT,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never"}],
        },
    }
    apply(admin, [body])
    driver.stop("driver")
    yield driver.cluster.account(NAMESPACE, ACCOUNT, "driver")
    driver.start_driver()
    admin.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/driver")


@pytest.fixture
def rules(cluster: Cluster) -> Iterator[list[Object]]:
    """The account's rules; they are there again at the end."""
    before = cluster.admin.get(ROLE)["rules"]
    yield copy.deepcopy(before)
    cluster.admin.merge(ROLE, {"rules": before})


def exercise(node: Node, pods: Pods, account: Api) -> list[str]:
    """Everything that the driver asks of the API server; what did not come about."""
    admin = node.cluster.admin
    for one in node.slices():
        admin.delete(f"{SLICES}/{one['metadata']['name']}")
    config = node.cluster.write_config(node.place / "driver.kubeconfig", account.token)
    # Registered: a pod that comes before is tried again after a minute and more.
    node.run("driver", node.driver_words(config), lambda: '"registered"' in node.log("driver", 1000))
    missing: list[str] = []

    def expect(what: str, holds: Callable[[], bool]) -> None:
        if not until(holds, seconds=1 if missing else 12):
            missing.append(what)

    expect("slices", lambda: len(node.devices()) == 8)
    expect("the owner", lambda: all("ownerReferences" in one["metadata"] for one in node.slices()))
    if not missing:
        _disturb(node, expect)
    claim = pods.claim(claim_spec(SHARE))
    started = pods.start(pod([claim]))
    expect("a pod", lambda: pods.read(started)["status"].get("phase") == "Running")
    expect("the devices' state", lambda: bool(pods.read_claim(claim)["status"].get("devices")))
    with node.rules('[share]\nmaximum = "cap=50%"\n'):
        refused = pods.claim(claim_spec(SHARE, parameters={"cap": "80%"}))
        pods.start(pod([refused]))
        path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{refused}"
        expect("an event", lambda: bool(admin.items(path)))
    return missing


def _disturb(node: Node, expect: Callable[[str, Callable[[], bool]], None]) -> None:
    """Delete a slice, add one of nothing, change one."""
    admin, first = node.cluster.admin, node.slices()[0]
    admin.delete(f"{SLICES}/{first['metadata']['name']}")
    expect("a slice that was deleted", lambda: len(node.devices()) == 8)
    admin.create(SLICES, {**first, "metadata": {"name": "stale"}})
    expect("the end of a slice of nothing", lambda: admin.find(STALE) is None)
    name = node.slices()[0]["metadata"]["name"]
    devices = copy.deepcopy(node.slices()[0]["spec"]["devices"])
    devices[0]["attributes"]["index"]["int"] = 99
    admin.merge(f"{SLICES}/{name}", {"spec": {"devices": devices}})
    expect("a slice that was changed", lambda: _index(admin.find(f"{SLICES}/{name}")) != 99)


def _index(found: Object | None) -> int:
    return 99 if found is None else int(found["spec"]["devices"][0]["attributes"]["index"]["int"])


def denied(node: Node) -> bool:
    """Whether the API server refused the driver something."""
    return re.search(r"403|[Ff]orbidden", node.log("driver", 1000)) is not None


@pytest.fixture
def ended(driver: Node, pods: Pods) -> Iterator[None]:
    """What a test's driver prepared is unprepared by it; then it ends."""
    yield
    pods.clear()
    driver.stop("driver")
    driver.cluster.admin.delete(STALE)


def test_with_its_rights_everything_works(driver: Node, pods: Pods, account: Api, ended: None) -> None:
    assert exercise(driver, pods, account) == []
    assert not denied(driver)


@pytest.mark.parametrize("right", RIGHTS, ids=shown)
def test_no_right_is_left_over(
    driver: Node, pods: Pods, account: Api, rules: list[Object], ended: None, right: tuple[int, str]
) -> None:
    number, verb = right
    rules[number]["verbs"].remove(verb)
    driver.cluster.admin.merge(ROLE, {"rules": [rule for rule in rules if rule["verbs"]]})

    missing = exercise(driver, pods, account)

    assert missing or denied(driver)


def slice_of(node: str, *, driver: str = DRIVER) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "forged"}, "spec": spec}


def test_slices_of_another_node_are_refused(driver: Node, account: Api) -> None:
    with pytest.raises(ApiError, match="may change slices of its own node only"):
        account.create(SLICES, slice_of("node-2"))


def test_slices_of_another_driver_are_refused(driver: Node, account: Api) -> None:
    with pytest.raises(ApiError, match=f"may change slices of {DRIVER} only"):
        account.create(SLICES, slice_of(NAME, driver="gpu.example.com"))


def test_a_token_of_no_node_is_refused(driver: Node, account: Api) -> None:
    with pytest.raises(ApiError, match="bound to no node"):
        driver.cluster.account(NAMESPACE, ACCOUNT).create(SLICES, slice_of(NAME))


def test_a_slice_of_another_node_cannot_be_deleted(driver: Node, account: Api) -> None:
    admin = driver.cluster.admin
    admin.create(SLICES, slice_of("node-2"))
    try:
        with pytest.raises(ApiError, match="may change slices of its own node only"):
            account.call("DELETE", f"{SLICES}/forged")
    finally:
        admin.delete(f"{SLICES}/forged")
