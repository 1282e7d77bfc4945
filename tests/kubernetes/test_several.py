"""Several GPUs in one slice, or for one request: what the scheduler of 1.34 does with them (acceptance 7).

It compares every request with a slice's first device, and ends when a request's second device is in a slice of one.
The driver publishes one slice a GPU, which every version places. Nodes and slices are objects here: nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nvc.kube.names import CLASS_ANY, DRIVER
from tests.support.cluster import ApiError, Cluster, Object, apply
from tests.support.leftovers import until
from tests.support.pods import Pods, claim_spec, pod, request

pytestmark = pytest.mark.timeout(300)
NODE = "node-of-slices"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
#: A small GPU, then a large one; what only the large one has.
SIZES, WANTED = ("10Gi", "80Gi"), "40Gi"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/nvc-one-device"
OLD = "1.34."


def device(number: int) -> Object:
    size = SIZES[number]
    policy = {"default": size, "validRange": {"min": "64Mi", "step": "1Mi"}}
    return {
        "name": f"gpu-{number}",
        "allowMultipleAllocations": True,
        "attributes": {"type": {"string": "gpu"}, "guard": {"bool": True}},
        "capacity": {"memory": {"value": size, "requestPolicy": policy}},
    }


@pytest.fixture
def place(cluster: Cluster, classes: None) -> Iterator[str]:
    """A node that is ready, without a kubelet: for half a minute its controller does not miss one."""
    room = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"kubernetes.io/hostname": NODE}
    body: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}, "status": status}
    cluster.admin.create("/api/v1/nodes", body)
    cluster.admin.merge(f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}})
    yield NODE
    for one in cluster.admin.items(SLICES):
        if one["spec"].get("nodeName") == NODE:
            cluster.admin.delete(f"{SLICES}/{one['metadata']['name']}")
    cluster.admin.delete(f"/api/v1/nodes/{NODE}")


def publish(cluster: Cluster, slices: list[list[Object]]) -> None:
    """These devices of the node, slice by slice."""
    for number, devices in enumerate(slices):
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": len(slices)}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices}
        metadata = {"name": f"{NODE}-{number}"}
        body: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        cluster.admin.create(SLICES, body)


def start(pods: Pods, claim: str) -> str:
    """A pod with the claim, for the node."""
    body = pod([claim], runtime_class=None)
    body["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": NODE}, "tolerations": [{"operator": "Exists"}]}
    # Without a kubelet nothing else would end it.
    body["spec"]["terminationGracePeriodSeconds"] = 0
    return pods.start(body)


def is_placed(pods: Pods, claim: str) -> bool:
    return "allocation" in pods.read_claim(claim).get("status", {})


@pytest.mark.parametrize("slices", [1, 2], ids=["one slice of both GPUs", "one slice a GPU"])
def test_where_a_request_for_the_larger_gpu_is_placed(cluster: Cluster, pods: Pods, place: str, slices: int) -> None:
    publish(cluster, [[device(0), device(1)]] if slices == 1 else [[device(0)], [device(1)]])
    claim = pods.claim(claim_spec({"memory": WANTED}))
    name = start(pods, claim)

    placed = until(lambda: is_placed(pods, claim), seconds=10)

    assert placed == (slices == 2 or not cluster.version.startswith(OLD)), pods.events(name)
    assert not placed or [one["device"] for one in pods.allocated(claim)] == ["gpu-1"]


def several(device_class: str = CLASS_ANY, **fields: str | int) -> Object:
    """A claim's spec."""
    one = request({"memory": "1Gi"}, device_class=device_class)
    one["exactly"] |= fields
    return {"devices": {"requests": [one]}}


def alternatives(**fields: str | int) -> Object:
    """The same by a list of alternatives."""
    one = {"name": "first", "deviceClassName": CLASS_ANY, **fields}
    return {"devices": {"requests": [{"name": "gpu", "firstAvailable": [one]}]}}


def refusal(cluster: Cluster, path: str, body: Object) -> str:
    """The API server's words against an object; "" where it takes it."""
    try:
        cluster.admin.create(path, body)
    except ApiError as error:
        return str(error)
    return ""


def claim_of(spec: Object) -> Object:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "several"}, "spec": spec}


def until_refused(cluster: Cluster, is_refused: bool) -> None:
    """The API server knows a change of a policy a moment later."""
    path, claim = f"{CLAIMS}?dryRun=All", claim_of(several(count=2))
    assert until(lambda: (refusal(cluster, path, claim) != "") == is_refused, seconds=30)


@pytest.fixture(scope="module")
def enforced(cluster: Cluster, classes: None) -> None:
    until_refused(cluster, cluster.version.startswith(OLD))


@pytest.mark.parametrize("kind", ["claim", "template"])
@pytest.mark.parametrize(
    ("spec", "is_refused"),
    [
        (several(count=2), True),
        (several(allocationMode="All"), True),
        (several("nvc-gpu-of-the-administrator", count=2), True),
        (alternatives(count=2), True),
        (alternatives(allocationMode="All"), True),
        (several(), False),
        (alternatives(count=1), False),
        (several("another-driver", count=2), False),
    ],
    ids=["count", "all", "own class", "count in a list", "all in a list", "one", "one in a list", "another driver"],
)
def test_what_ends_the_scheduler_is_refused(
    cluster: Cluster, enforced: None, spec: Object, is_refused: bool, kind: str
) -> None:
    of = {"claim": ("ResourceClaim", spec), "template": ("ResourceClaimTemplate", {"spec": spec})}
    name, whole = of[kind]
    body: Object = {"apiVersion": "resource.k8s.io/v1", "kind": name, "metadata": {"name": "several"}, "spec": whole}
    path = f"{CLAIMS.rpartition('/')[0]}/{name.lower()}s"

    # Nothing is left of it, and no pod has it.
    said = refusal(cluster, f"{path}?dryRun=All", body)

    assert ("write a request for each GPU" in said) == (is_refused and cluster.version.startswith(OLD))
    assert is_refused or said == ""


def test_a_request_of_two_gpus_without_the_policy(cluster: Cluster, pods: Pods, place: str) -> None:
    """Why there is one on 1.34, and none later."""
    is_old = cluster.version.startswith(OLD)
    before = cluster.admin.find(BINDING)
    assert is_old == (before is not None)
    publish(cluster, [[device(1)], [device(1) | {"name": "gpu-2"}]])
    if before:
        cluster.admin.delete(BINDING)
        until_refused(cluster, False)
    try:
        claim = pods.claim(several(count=2))
        start(pods, claim)

        ended = until(lambda: cluster.daemons["kube-scheduler"].has_ended() or is_placed(pods, claim), seconds=30)

        assert ended
        assert is_placed(pods, claim) != is_old
        assert not is_old or "index out of range [1] with length 1" in cluster.log("kube-scheduler", 100)
    finally:
        pods.clear()
        if before:
            metadata = {"name": before["metadata"]["name"], "labels": before["metadata"]["labels"]}
            apply(cluster.admin, [{**before, "metadata": metadata}])
            cluster.stop("kube-scheduler")
            cluster.start_scheduler()
            until_refused(cluster, True)
