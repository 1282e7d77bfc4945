"""Several GPUs in one slice: schedulers of 1.34 compare every request with the first of them (acceptance 7).

The driver publishes one slice a GPU, which every version places. Nodes and slices are objects here: nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, Object
from tests.support.leftovers import until
from tests.support.pods import Pods, claim_spec, pod

pytestmark = pytest.mark.timeout(300)
NODE = "node-of-slices"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
#: A small GPU, then a large one; what only the large one has.
SIZES, WANTED = ("10Gi", "80Gi"), "40Gi"
DRIVER = "gpu.nvc.dev"


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


@pytest.mark.parametrize("slices", [1, 2], ids=["one slice of both GPUs", "one slice a GPU"])
def test_where_a_request_for_the_larger_gpu_is_placed(cluster: Cluster, pods: Pods, place: str, slices: int) -> None:
    rows = [[device(0), device(1)]] if slices == 1 else [[device(0)], [device(1)]]
    for number, devices in enumerate(rows):
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": len(rows)}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices}
        metadata = {"name": f"{NODE}-{number}"}
        body: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        cluster.admin.create(SLICES, body)
    claim = pods.claim(claim_spec({"memory": WANTED}))
    body = pod([claim], runtime_class=None)
    body["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": NODE}, "tolerations": [{"operator": "Exists"}]}
    # Without a kubelet nothing else would end it.
    body["spec"]["terminationGracePeriodSeconds"] = 0
    name = pods.start(body)

    placed = until(lambda: "allocation" in pods.read_claim(claim).get("status", {}), seconds=10)

    assert placed == (slices == 2 or not cluster.version.startswith("1.34.")), pods.events(name)
    assert not placed or [one["device"] for one in pods.allocated(claim)] == ["gpu-1"]
