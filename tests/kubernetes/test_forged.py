"""What a pod can try to get more than its claim was given (acceptance 2): each way is held, or refused with words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nvc.kube.names import DRIVER
from tests.support.cluster import Api, ApiError, Cluster, apply
from tests.support.kubenode import Node
from tests.support.leftovers import until
from tests.support.pod_changes import Change, container, environment, metadata, volume, whole
from tests.support.pods import Pods, claim_spec, pod
from tests.support.shares import holds

pytestmark = pytest.mark.timeout(300)
SHARE = {"memory": "10Gi", "compute": 30}
GREEDY = "localhost/greedy:1"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


HELD: dict[str, Change] = {
    "variable": environment(NVC_SHARE="mem=80Gi,weight=1000"),
    "variable off": environment(NVC_SHARE="off"),
    "devices by variable": environment(NVIDIA_VISIBLE_DEVICES="all", NVIDIA_DRIVER_CAPABILITIES="all"),
    "variables of HAMi": environment(
        CUDA_DEVICE_MEMORY_LIMIT="80000m", CUDA_DEVICE_SM_LIMIT="100", GPU_CORE_UTILIZATION_POLICY="disable"
    ),
    "variable of the CDI hooks": environment(NVIDIA_GPU_MEMORY_LIMIT="80000"),
    "preloaded library": environment(LD_PRELOAD="/tmp/nothing.so", LD_LIBRARY_PATH="/tmp"),
    "image": container(image=GREEDY),
    "label": metadata("labels", nvc_share="off"),
    "annotation": metadata("annotations", nvc_share="mem=80Gi"),
    "annotation off": metadata("annotations", nvc_share="off"),
    "namespace of processes": whole(shareProcessNamespace=True),
    "profile": container(securityContext={"seccompProfile": {"type": "Unconfined"}}),
    "profile of the pod": whole(securityContext={"seccompProfile": {"type": "Unconfined"}}),
    "volume over the preloaded list": volume("/etc", {"emptyDir": {}}),
    "volume over the share's files": volume("/run", {"emptyDir": {}}),
    "host network": whole(hostNetwork=True),
}


@pytest.fixture(scope="module")
def greedy(driver: Node) -> None:
    """An image that asks for everything."""
    tree = driver.bed.rootfs()
    (tree / "etc/ld.so.preload").write_text("/usr/lib/nothing.so\n")
    driver.import_image(
        tree, GREEDY, ["NVC_SHARE=mem=80Gi", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GPU_MEMORY_LIMIT=80000"]
    )


@pytest.mark.parametrize("way", HELD)
def test_what_a_pod_says_changes_nothing(driver: Node, pods: Pods, greedy: None, way: str) -> None:
    body = pod([pods.claim(claim_spec(SHARE))])
    HELD[way](body)

    name = pods.start(body)
    pods.running(name)

    holds(driver, pods.container(name), "mem=10Gi,weight=300")


def test_an_annotation_against_the_guard_is_refused(driver: Node, pods: Pods) -> None:
    body = pod([pods.claim(claim_spec(SHARE))])
    body["metadata"]["annotations"] = {"nvc.guard": "off"}

    pods.refused(pods.start(body), "nvc.guard=off is not allowed on this node")


def test_another_claims_device_by_annotation(driver: Node, pods: Pods) -> None:
    """The runtime takes CDI devices from annotations; a claim's devices come from kubelet alone."""
    rich = pods.claim(claim_spec({"memory": "60Gi", "compute": 70}))
    pods.running(pods.start(pod([rich])))
    uid = pods.read_claim(rich)["metadata"]["uid"]
    body = pod([pods.claim(claim_spec(SHARE))])
    body["metadata"]["annotations"] = {"cdi.k8s.io/more": f"nvc.dev/claim={uid}-0"}

    name = pods.start(body)
    pods.running(name)

    holds(driver, pods.container(name), "mem=10Gi,weight=300")


def test_a_cap_above_the_nodes_maximum_is_refused(driver: Node, pods: Pods) -> None:
    with driver.rules('[share]\nmaximum = "cap=50%"\n'):
        name = pods.start(pod([pods.claim(claim_spec(SHARE, parameters={"cap": "80%"}))]))

        assert "maximum" in pods.refused(name, "cap")


PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "memory": ({"mem": "80Gi"}, "memory and compute are capacities"),
    "words": ({"share": "mem=80Gi"}, "memory and compute are capacities"),
    "group": ({"group": "other"}, "memory and compute are capacities"),
    "kind": ({"kind": "Everything"}, "kind: Share"),
    "version": ({"apiVersion": "nvc.dev/v9"}, "kind: Share"),
    "cap": ({"cap": "500%"}, "cap is reservation, none, or a percentage"),
    "cap with more words": ({"cap": "50%,mem=80Gi"}, "cap is reservation, none, or a percentage"),
    "priority": ({"priority": "highest"}, "priority is low, normal or high"),
    "a high priority": ({"priority": "high"}, "is a DeviceClass's to give"),
    "guard off": ({"guard": "off"}, "guard is require"),
}


@pytest.mark.parametrize("way", PARAMETERS)
def test_parameters_that_ask_for_more_are_refused_when_the_claim_is_made(driver: Node, pods: Pods, way: str) -> None:
    parameters, words = PARAMETERS[way]

    with pytest.raises(ApiError, match=words):
        pods.claim(claim_spec(SHARE, parameters=parameters))


@pytest.fixture
def unchecked(cluster: Cluster, pods: Pods) -> Iterator[str]:
    """A claim with priority: high that was made while the policy did not hold; it holds again."""
    parameters = {"priority": "high"}
    (binding,) = (one for one in cluster.admin.items(BINDINGS) if one["metadata"]["name"] == "nvc-parameters")
    path = f"{BINDINGS}/nvc-parameters"
    cluster.admin.delete(path)
    claims: list[str] = []
    try:
        assert until(lambda: _is_made(pods, parameters, claims), seconds=20)
    finally:
        metadata = {key: binding["metadata"][key] for key in ("name", "labels", "annotations")}
        cluster.admin.create(BINDINGS, {**binding, "metadata": metadata})
    assert until(lambda: not _is_made(pods, parameters, []), seconds=20), "the policy holds again"
    yield claims[0]


def _is_made(pods: Pods, parameters: dict[str, str], made: list[str]) -> bool:
    try:
        made.append(pods.claim(claim_spec({"memory": "1Gi", "compute": 1}, parameters=parameters)))
    except ApiError:
        return False
    return True


def test_a_high_priority_of_a_claim_is_refused_on_the_node_too(
    driver: Node, pods: Pods, cluster: Cluster, unchecked: str
) -> None:
    """The API server asks no policy that is not there yet. What is there already can end: it loses its finalizer."""
    pods.refused(pods.start(pod([unchecked])), "priority high is a device class's to give")

    body = pods.read_claim(unchecked)
    body["metadata"].update(labels={"changed": "yes"}, resourceVersion=None)
    cluster.admin.call("PUT", f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{unchecked}", body)


def test_a_high_priority_is_a_classs_to_give(driver: Node, pods: Pods, cluster: Cluster) -> None:
    config = claim_spec(SHARE, parameters={"priority": "high"})["devices"]["config"][0]
    spec = {
        "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
        "config": [{"opaque": config["opaque"]}],
    }
    metadata = {"name": "urgent"}
    one = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": spec}
    apply(cluster.admin, [one])
    asked = claim_spec(SHARE, parameters={"cap": "50%"})
    asked["devices"]["requests"][0]["exactly"]["deviceClassName"] = "urgent"
    try:
        name = pods.start(pod([pods.claim(asked)]))
        pods.running(name)

        holds(driver, pods.container(name), "mem=10Gi,cap=50%,weight=300,priority=high")
    finally:
        cluster.admin.delete("/apis/resource.k8s.io/v1/deviceclasses/urgent")


@pytest.mark.parametrize(
    ("capacity", "words"),
    [
        ({"memory": "800Gi"}, "cannot allocate all claims"),
        ({"memory": "1Gi", "compute": 101}, "cannot allocate all claims"),
    ],
    ids=["memory", "compute"],
)
def test_more_than_a_gpu_has_is_not_placed(
    driver: Node, pods: Pods, capacity: dict[str, str | int], words: str
) -> None:
    name = pods.start(pod([pods.claim(claim_spec(capacity))]))

    assert "FailedScheduling" in pods.refused(name, words)


def test_admin_access_needs_a_namespace_for_it(driver: Node, pods: Pods) -> None:
    spec = claim_spec(None)
    spec["devices"]["requests"][0]["exactly"]["adminAccess"] = True

    with pytest.raises(ApiError, match="admin access to devices requires"):
        pods.claim(spec)


def test_a_claim_cannot_be_changed_when_it_was_made(driver: Node, pods: Pods) -> None:
    claim = pods.claim(claim_spec(SHARE))

    with pytest.raises(ApiError, match="field is immutable"):
        pods.change_claim(claim, {"spec": claim_spec({"memory": "80Gi"})})


@pytest.fixture(scope="module")
def tenant(cluster: Cluster) -> Iterator[Api]:
    """A user who may do everything in a namespace that an editor may."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant", "namespace": "default"}}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": "default"}],
    }
    apply(cluster.admin, [account, binding])
    yield cluster.account("default", "tenant")


def test_a_tenant_cannot_write_what_was_allocated(driver: Node, pods: Pods, tenant: Api) -> None:
    claim = pods.claim(claim_spec(SHARE))
    path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim}/status"

    with pytest.raises(ApiError, match="cannot patch resource"):
        tenant.merge(path, {"status": {"reservedFor": []}})


def test_a_tenant_cannot_publish_a_larger_gpu(driver: Node, tenant: Api) -> None:
    body = driver.slices()[0]
    path = f"/apis/resource.k8s.io/v1/resourceslices/{body['metadata']['name']}"

    with pytest.raises(ApiError, match="cannot patch resource"):
        tenant.merge(path, {"spec": {"devices": []}})
