"""Many nodes with 8 GPUs each: slices by the driver's own code, two claims a node by the scheduler (acceptance 9).

Nodes are objects: no kubelet is needed for placement. Controllers that would miss them are left out.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from nvc.kube.cluster import Cluster as ClusterClient
from nvc.kube.cluster import ClusterError
from nvc.kube.devices import Condition, slices
from nvc.kube.publish import Publisher
from nvc.kube.quantity import parse
from nvc.model import Inventory
from tests.kubernetes.conftest import PROGRAMS, count
from tests.support import chart
from tests.support.bed import Bed
from tests.support.cluster import SCHEDULER_QPS, Api, Cluster, Object, apply
from tests.support.leftovers import until
from tests.support.pods import Pods, claim_spec, pod

Measured = Callable[[str, str, str], None]
pytestmark = pytest.mark.timeout(1800)
NODES, GPUS = count("nodes", 100), 8
CLAIMS = 2 * NODES
QPS = count("qps", SCHEDULER_QPS)
#: Requests at a time.
AT_ONCE = 8


@pytest.fixture(scope="module")
def large(bed: Bed) -> Iterator[Cluster]:
    """A control plane with these nodes."""
    controllers = "*,-node-lifecycle-controller,-pod-garbage-collector-controller,-taint-eviction-controller"
    cluster = Cluster(
        PROGRAMS,
        PROGRAMS.parent / "node",
        bed.directory("large"),
        bed.env,
        [],
        port=7443,
        controllers=controllers,
        scheduler_qps=QPS,
    )
    try:
        cluster.start()
        classes = [one for one in chart.render(cluster.node_programs / "helm") if one["kind"] == "DeviceClass"]
        apply(cluster.admin, classes)
        each(lambda number: add_node(cluster.admin, number), range(NODES))
        yield cluster
    finally:
        cluster.stop()


def add_node(api: Api, number: int) -> None:
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    name = f"node-{number}"
    api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status})
    # Admission says that a new node is not ready, and the controller that would take it back is left out.
    api.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


def each(do: Callable[[Any], object], values: Iterable[Any]) -> None:
    """Several at a time. Raises what the first one raised."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(do, values):
            pass


def test_slices_of_many_nodes_and_two_claims_each(bed: Bed, large: Cluster, measured: Measured) -> None:
    found = bed.call(bed.commands.nvc, f"--sim={bed.machine('h100x8')}", "kube", "inventory", check=True).out
    wanted = slices(Inventory.from_data(json.loads(found)), Condition(guard=True))
    client = ClusterClient(str(large.configs["admin"]))

    def publish(number: int) -> None:
        publisher = Publisher(client, f"node-{number}", lambda *_, **__: None)
        publisher.set(wanted)
        assert until(lambda: published_all(publisher), seconds=300)

    begun, before = time.monotonic(), processor(large)
    each(publish, range(NODES))
    took, spent = time.monotonic() - begun, processor(large) - before
    published = large.admin.items("/apis/resource.k8s.io/v1/resourceslices")
    assert len(published) == NODES * (1 if large.version >= "1.36" else GPUS)
    assert sum(len(one["spec"]["devices"]) for one in published) == NODES * GPUS
    measured(f"9: slices of {NODES} nodes x {GPUS} GPUs published", f"{60 * NODES // 1000} s", f"{took:.0f} s")
    measured("9: processor time of that for each node", "", shown(spent, NODES))

    pods, random = Pods(large.admin), Random(1)
    amounts = [{"memory": f"{random.randint(4, 40)}Gi", "compute": random.randint(10, 60)} for _ in range(CLAIMS)]
    begun, before = time.monotonic(), processor(large)
    each(lambda amount: pods.start(pod([pods.claim(claim_spec(amount))], runtime_class=None)), amounts)
    assert until(lambda: placed_all(large.admin), seconds=1200)
    took, spent = time.monotonic() - begun, processor(large) - before
    measured(
        f"9: {CLAIMS} claims placed, {QPS} requests a second of the scheduler",
        "15 a second",
        f"{CLAIMS / took:.1f} a second",
    )
    measured("9: processor time of that for each claim", "", shown(spent, CLAIMS))

    memory, compute = used(placed(large.admin))
    room = parse(published[0]["spec"]["devices"][0]["capacity"]["memory"]["value"])
    measured("9: GPUs above their capacity", "0", str(sum(value > room for value in memory.values())))
    assert max(memory.values()) <= room
    assert max(compute.values()) <= 100
    measured("9: GPUs used by these claims", "", f"{len(memory)} of {NODES * GPUS}")


def processor(cluster: Cluster) -> Counter[str]:
    """Milliseconds that each program has taken, and this one, in which the drivers' code runs."""
    found = {name: daemon.processor_s() for name, daemon in cluster.daemons.items()}
    return Counter({name: round(1000 * value) for name, value in {**found, "this test": time.process_time()}.items()})


def shown(spent: Counter[str], count: int) -> str:
    return ", ".join(f"{name} {value / count:.1f} ms" for name, value in spent.most_common())


def published_all(publisher: Publisher) -> bool:
    """As the driver's thread: an API server that does not answer in time is asked again."""
    try:
        publisher.sync(newest=False)
    except ClusterError:
        return False
    return True


def placed_all(api: Api) -> bool:
    """Asked seldom: a list of thousands is work for the API server."""
    time.sleep(1)
    return len(placed(api)) == CLAIMS


def placed(api: Api) -> list[Object]:
    """The allocation results of all claims."""
    claims = api.items("/apis/resource.k8s.io/v1/resourceclaims")
    found = [
        one["status"]["allocation"]["devices"]["results"] for one in claims if "allocation" in one.get("status", {})
    ]
    return [result for results in found for result in results]


def used(results: Iterable[Object]) -> tuple[Counter[str], Counter[str]]:
    """Memory and compute by node and GPU."""
    memory: Counter[str] = Counter()
    compute: Counter[str] = Counter()
    for one in results:
        place = f"{one['pool']}/{one['device']}"
        memory[place] += parse(one["consumedCapacity"]["memory"])
        compute[place] += parse(one["consumedCapacity"]["compute"])
    return memory, compute
