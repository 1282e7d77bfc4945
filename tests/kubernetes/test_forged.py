"""What a pod can try to get more than its claim was given (acceptance 2): each way is held, or refused with words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.cluster import Api, ApiError, Cluster, Object, apply
from tests.support.kubenode import Node
from tests.support.pods import Pods, claim_spec, pod
from tests.support.shares import holds

pytestmark = pytest.mark.timeout(300)
SHARE = {"memory": "10Gi", "compute": 30}
GREEDY = "localhost/greedy:1"
CONFINED = "confined"
Change = Callable[[Object], None]


def environment(**variables: str) -> Change:
    def change(body: Object) -> None:
        body["spec"]["containers"][0]["env"] = [{"name": key, "value": value} for key, value in variables.items()]

    return change


def metadata(kind: str, **values: str) -> Change:
    def change(body: Object) -> None:
        body["metadata"][kind] = {key.replace("__", "/").replace("_", "."): value for key, value in values.items()}

    return change


def container(**fields: Any) -> Change:
    return lambda body: body["spec"]["containers"][0].update(fields)


def whole(**fields: Any) -> Change:
    return lambda body: body["spec"].update(fields)


def volume(path: str, source: Object) -> Change:
    def change(body: Object) -> None:
        body["spec"]["volumes"] = [{"name": "v", **source}]
        body["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": path}]

    return change


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
    "guard off": ({"guard": "off"}, "guard is auto or require"),
}


@pytest.mark.parametrize("way", PARAMETERS)
def test_parameters_that_ask_for_more_are_refused_when_the_claim_is_made(driver: Node, pods: Pods, way: str) -> None:
    parameters, words = PARAMETERS[way]

    with pytest.raises(ApiError, match=words):
        pods.claim(claim_spec(SHARE, parameters=parameters))


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


CONFINEMENT: dict[str, tuple[Change, str]] = {
    "privileged": (container(securityContext={"privileged": True}), "may be privileged"),
    "privileged init container": (
        lambda body: body["spec"].update(
            initContainers=[{**body["spec"]["containers"][0], "name": "i", "securityContext": {"privileged": True}}]
        ),
        "may be privileged",
    ),
    "capability": (container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "may add the capabilities"),
    "nodes of the host": (volume("/host", {"hostPath": {"path": "/dev"}}), "may not mount the host's /dev"),
    "shares of the host": (volume("/host", {"hostPath": {"path": "/run/nvc"}}), "may not mount the host's /run/nvc"),
    "claims of the host": (volume("/host", {"hostPath": {"path": "/var/lib/nvc/cdi"}}), "may not mount the host's"),
    "the host": (volume("/host", {"hostPath": {"path": "/"}}), "may not mount the host's /"),
    "processes of the host": (whole(hostPID=True), "may not have the host's pid"),
    "another runtime": (lambda body: body["spec"].pop("runtimeClassName"), "needs runtimeClassName: nvc"),
    "a /proc without masks": (
        lambda body: body["spec"].update(
            hostUsers=False,
            containers=[{**body["spec"]["containers"][0], "securityContext": {"procMount": "Unmasked"}}],
        ),
        "may have an unmasked /proc",
    ),
}


@pytest.fixture
def confined(cluster: Cluster, classes: None) -> Iterator[Pods]:
    """Pods of a namespace with the label."""
    labels = {"nvc.dev/confined": "true"}
    apply(cluster.admin, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CONFINED, "labels": labels}}])
    pods = Pods(cluster.admin, CONFINED)
    yield pods
    pods.clear()


@pytest.mark.parametrize("way", CONFINEMENT)
def test_what_gets_around_a_share_is_refused_in_a_confined_namespace(confined: Pods, way: str) -> None:
    change, words = CONFINEMENT[way]
    body = pod(["claim"])
    change(body)

    with pytest.raises(ApiError, match=words):
        confined.start(body)


def test_a_plain_pod_with_a_claim_is_admitted_there(confined: Pods) -> None:
    confined.start(pod(["claim"]))


def test_a_privileged_pod_without_a_claim_is_none_of_the_policys_business(confined: Pods) -> None:
    confined.start(pod([], securityContext={"privileged": True}))


def test_a_container_added_later_is_refused_too(confined: Pods, cluster: Cluster) -> None:
    name = confined.start(pod(["claim"]))
    path = f"/api/v1/namespaces/{CONFINED}/pods/{name}"
    body = cluster.admin.get(path)
    one = {"name": "later", "image": "localhost/probe:1", "securityContext": {"privileged": True}}
    body["spec"]["ephemeralContainers"] = [one]

    with pytest.raises(ApiError, match="may be privileged"):
        cluster.admin.call("PUT", f"{path}/ephemeralcontainers", body)
