"""A claim becomes exactly its share, held by the guard (acceptance 1), also for several containers (4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvc.kube.names import DRIVER
from tests.kubernetes.conftest import count
from tests.support.cluster import ApiError
from tests.support.kubenode import Node
from tests.support.leftovers import until
from tests.support.pods import Pods, claim_spec, pod, request
from tests.support.shares import holds, is_guarded, rows, words

Measured = Callable[[str, str, str], None]
pytestmark = pytest.mark.timeout(600)
#: Starts of acceptance 1.
STARTS = count("starts", 100)
SHARE = {"memory": "10Gi", "compute": 30}
HELD = "mem=10Gi,weight=300"


def test_a_pod_has_exactly_what_its_claim_was_given(driver: Node, pods: Pods) -> None:
    name = pods.start(pod([pods.claim(claim_spec(SHARE))]))
    pods.running(name)

    holds(driver, pods.container(name), HELD)


@pytest.mark.timeout(1200)
def test_every_start_has_its_share(driver: Node, pods: Pods, measured: Measured) -> None:
    """100 of 100, in waves that fill most of the machine: three claims of 30 percent a GPU."""
    held, wave = 0, 20
    for begin in range(0, STARTS, wave):
        names = [pods.start(pod([pods.claim(claim_spec(SHARE))])) for _ in range(begin, min(begin + wave, STARTS))]
        for name in names:
            pods.running(name, seconds=180)
        uuids = []
        for name in names:
            holds(driver, pods.container(name), HELD)
            uuids += [row["gpu"] for row in rows(driver, pods.container(name))]
            held += 1
        assert max(uuids.count(uuid) for uuid in uuids) <= 3
        pods.clear()

    measured("1: starts with exactly the claim's share, under the guard", "100 of 100", f"{held} of {STARTS}")
    assert held == STARTS
    assert until(lambda: rows(driver) == [], seconds=10)


@pytest.mark.parametrize(
    ("capacity", "parameters", "share"),
    [
        ({"memory": "1Gi"}, None, "mem=1Gi,weight=1"),
        (SHARE, {"cap": "reservation"}, "mem=10Gi,cap=30%,weight=300"),
        (
            {"memory": "10Gi", "compute": 30},
            {"cap": "50%", "priority": "low"},
            "mem=10Gi,cap=50%,weight=300,priority=low",
        ),
        ({"memory": "1000M"}, None, "mem=954Mi,weight=1"),
    ],
    ids=["memory alone", "cap by reservation", "cap and priority", "rounded up"],
)
def test_what_the_scheduler_rounded_and_the_claim_said(
    driver: Node, pods: Pods, capacity: dict[str, str | int], parameters: dict[str, str] | None, share: str
) -> None:
    name = pods.start(pod([pods.claim(claim_spec(capacity, parameters=parameters))]))
    pods.running(name)

    holds(driver, pods.container(name), share)


def test_a_claim_without_amounts_has_a_gpu_alone(driver: Node, pods: Pods) -> None:
    """Nothing is held of it, and no other claim comes to that GPU."""
    claims = [pods.claim(claim_spec(None)) for _ in range(8)]
    names = [pods.start(pod([claim])) for claim in claims]
    for name in names:
        pods.running(name)

    devices = [pods.allocated(claim)[0]["device"] for claim in claims]
    late = pods.start(pod([pods.claim(claim_spec({"memory": "64Mi"}))]))

    assert sorted(devices) == [f"gpu-{number}" for number in range(8)]
    assert "FailedScheduling" in pods.refused(late, "cannot allocate all claims")
    seen = pods.run_in(driver, names[0], "ls", "/dev")
    nodes = [word for word in seen.split() if word.startswith("nvidia") and word[6:].isdigit()]
    assert nodes == [f"nvidia{devices[0][4:]}"]


def test_two_gpus_by_one_request(driver: Node, pods: Pods) -> None:
    spec = claim_spec(SHARE)
    spec["devices"]["requests"][0]["exactly"]["count"] = 2
    # Without it 1.35 does not give two GPUs.
    spec["devices"]["constraints"] = [{"requests": ["gpu"], "distinctAttribute": f"{DRIVER}/uuid"}]
    if driver.cluster.version.startswith("1.34."):
        with pytest.raises(ApiError, match="write a request for each GPU"):
            pods.claim(spec)
        return
    name = pods.start(pod([pods.claim(spec)]))
    pods.running(name)

    holds(driver, pods.container(name), HELD, HELD)
    assert len({row["gpu"] for row in rows(driver, pods.container(name))}) == 2


def test_two_gpus_by_two_requests(driver: Node, pods: Pods) -> None:
    """More than half of a GPU each: no constraint is needed, which 1.34 would not keep."""
    wanted: dict[str, str | int] = {"memory": "50Gi", "compute": 30}
    spec = claim_spec(wanted)
    spec["devices"]["requests"].append({**request(wanted), "name": "second"})
    name = pods.start(pod([pods.claim(spec)]))
    pods.running(name)

    holds(driver, pods.container(name), "mem=50Gi,weight=300", "mem=50Gi,weight=300")
    assert len({row["gpu"] for row in rows(driver, pods.container(name))}) == 2


def test_two_claims_in_one_container(driver: Node, pods: Pods) -> None:
    """The starts of the share hook add up to one share: each GPU has what its claim was given."""
    first = pods.claim(claim_spec({"memory": "60Gi"}))
    second = pods.claim(claim_spec({"memory": "50Gi", "compute": 10}))
    name = pods.start(pod([first, second]))
    pods.running(name)

    holds_all = sorted(words(driver, pods.container(name)))

    assert holds_all == ["mem=50Gi,weight=100", "mem=60Gi,weight=1"]
    is_guarded(driver, pods.container(name))


@pytest.mark.parametrize("users", ["2 containers", "4 containers", "4 pods", "2 pods of 2 containers"])
def test_a_claim_is_one_quota_for_all_that_use_it(driver: Node, pods: Pods, measured: Measured, users: str) -> None:
    """Acceptance 4: all containers of a claim are one tenant of the guard, whose quota is the allocation."""
    claim = pods.claim(claim_spec(SHARE))
    count = int(users.split()[0]) if "pods" in users else 1
    each = int(users.split()[-2]) if "containers" in users else 1
    names = [pods.start(pod([claim], containers=each)) for _ in range(count)]
    for name in names:
        pods.running(name)

    containers = [pods.container(name, number) for name in names for number in range(each)]
    for container in containers:
        holds(driver, container, HELD)
    tenants = driver.tenants()

    uid = pods.read_claim(claim)["metadata"]["uid"]
    assert [(one.container, len(one.gpus), one.gpus[0].limit) for one in tenants] == [(f"group:{uid}-0", 1, 10 << 30)]
    measured(f"4: one claim, {users}: memory of all together", "10 GiB", f"{tenants[0].gpus[0].limit >> 30} GiB")
