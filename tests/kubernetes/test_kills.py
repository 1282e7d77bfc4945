"""kill -9 of driver, kubelet and containerd at random moments, beside pods that start and end all the while (5)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.kubernetes.conftest import count
from tests.support.kubenode import Node
from tests.support.leftovers import until
from tests.support.pods import Pods, claim_spec, pod
from tests.support.runtimes import execute
from tests.support.shares import rows

Measured = Callable[[str, str, str], None]
#: Kills; the acceptance has 500.
ROUNDS = count("kills", 25)
pytestmark = pytest.mark.timeout(600 + 20 * ROUNDS)
#: The driver is meant; the others ask it, and start what it prepared.
VICTIMS = ("driver", "driver", "driver", "kubelet", "containerd")
#: runc's directory of what containerd's shims made for kubelet.
STATE = "/run/containerd/runc/k8s.io"
#: Pods that come and go at a time, and seconds between a start and the next kill at most.
AT_ONCE, PAUSE_S = 8, 2.0
#: Seconds until kubelet tries a pod again whose driver did not answer, as the specification has it.
RETRY_S = 120


def test_kills_leave_nothing_behind(driver: Node, pods: Pods, measured: Measured) -> None:
    random = Random(ROUNDS)
    again = {"driver": driver.start_driver, "kubelet": driver.start_kubelet, "containerd": driver.start_containerd}
    claims: dict[str, str] = {}
    #: containerd's, of each time that it ran: a start makes the file anew.
    logs: list[str] = []
    ended = 0

    def revived() -> bool:
        """Whether all run: what has ended is started, as systemd does. kubelet ends without an answer of containerd."""
        over = [
            name for name in again if (process := driver.daemons[name].process) is None or process.poll() is not None
        ]
        for name in over:
            again[name]()
        return not over

    for _ in range(ROUNDS):
        while len(claims) < AT_ONCE:
            claim = pods.claim(claim_spec({"memory": "1Gi", "compute": 1}))
            body = pod([claim])
            body["spec"]["restartPolicy"] = "Always"
            claims[pods.start(body)] = claim
        time.sleep(random.uniform(0, PAUSE_S))
        assert until(revived, seconds=60)
        victim = random.choice(VICTIMS)
        process = driver.daemons[victim].process
        assert process is not None
        process.kill()
        process.wait()
        if victim == "containerd":
            logs += driver.log("containerd", 100_000).splitlines()
        again[victim]()
        # Pods end beside kills too: one at least has to have come up.
        assert until(lambda: revived() and any(runs(pods, each) for each in claims), seconds=RETRY_S + 30)
        for name in [each for each in claims if runs(pods, each)][: AT_ONCE // 2]:
            pods.api.delete(f"/api/v1/namespaces/default/pods/{name}")
            del claims[name]
            ended += 1

    begun = time.monotonic()
    time.sleep(PAUSE_S)
    assert until(revived, seconds=30)
    for name in claims:
        pods.running(name, seconds=RETRY_S + 30)
    took = time.monotonic() - begun
    wanted = {pods.read_claim(claim)["metadata"]["uid"] for claim in claims.values()}
    assert until(lambda: {uid(file) for file in driver.claim_files()} == wanted, seconds=RETRY_S + 30)
    assert len(rows(driver)) == len(claims)
    pods.clear()

    assert until(lambda: driver.claim_files() == [], seconds=RETRY_S + 30)
    assert until(lambda: rows(driver) == [], seconds=30), explain(driver, logs)
    assert [name for name in os.listdir(driver.cdi) if ".tmp" in name or name.endswith(".new")] == []
    # What ended containers left of their shares goes at the next start with one.
    name = pods.start(pod([pods.claim(claim_spec({"memory": "1Gi"}))]))
    pods.running(name)
    assert [path.name for path in Path("/run/nvc/share").iterdir()] == [pods.container(name)]
    assert len(driver.devices()) == 8
    measured(
        f"5: {ROUNDS} kills of driver, kubelet, containerd beside {ended} pods: left files, claims, tenants", "0", "0"
    )
    measured("5: the last pods run, after the last kill", f"{RETRY_S} s", f"{took:.0f} s")


def runs(pods: Pods, name: str) -> bool:
    states = pods.read(name)["status"].get("containerStatuses", [])
    return bool(states) and all("running" in one["state"] for one in states)


def explain(node: Node, logs: list[str]) -> str:
    """The containers that runc has when no pod is left, with what containerd said of them."""
    found = execute(["runc", "--root", STATE, "list"], env=node.env).text + node.ctr("containers", "ls", "-q").text
    ids = [path.name for path in Path(STATE).iterdir()]
    lines = [*logs, *node.log("containerd", 100_000).splitlines()]
    return "\n".join([found, str(rows(node)), *(line for line in lines if any(one in line for one in ids))])


def uid(file: str) -> str:
    return file.removeprefix("nvc.dev-claim_").removesuffix(".yaml")
