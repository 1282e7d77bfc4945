"""kill -9 of driver, kubelet and containerd at random moments, beside pods that start and end all the while (5)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from nvc.share.entry import GROUPS
from tests.kubernetes.conftest import count
from tests.support.kubenode import Node
from tests.support.leftovers import until
from tests.support.pods import Pods, claim_spec, pod
from tests.support.runtimes import execute
from tests.support.shares import rows

Measured = Callable[[str, str, str], None]
#: Kills; the acceptance has 500. After so many it is looked at what is left.
KILLS, SERIES = count("kills", 25), 25
pytestmark = pytest.mark.timeout(600 + 20 * KILLS)
NAMES = ("containerd", "kubelet", "driver")
#: The driver is meant; the others ask it, and start what it prepared.
VICTIMS = (*NAMES, "driver", "driver")
#: runc's directory of what containerd's shims made for kubelet.
STATE = Path("/run/containerd/runc/k8s.io")
#: Where nvc-runtime keeps what it knows of containers with a share.
SHARES = Path("/run/nvc/share")
#: Pods that come and go at a time, and seconds between a start and the next kill at most.
AT_ONCE, PAUSE_S = 8, 2.0
#: Seconds until kubelet tries a pod again whose driver did not answer, as the specification has it.
RETRY_S = 120


def test_kills_leave_nothing_behind(driver: Node, pods: Pods, measured: Measured) -> None:
    random = Random(KILLS)
    before = set(os.listdir(driver.cdi))
    claims: dict[str, str] = {}
    #: containerd's log of each time that it ran: a start makes the file anew.
    logs: list[str] = []
    left: list[str] = []
    ended, slowest = 0, 0.0

    for number in range(1, KILLS + 1):
        while len(claims) < AT_ONCE:
            claim = pods.claim(claim_spec({"memory": "1Gi", "compute": 1}))
            body = pod([claim])
            body["spec"]["restartPolicy"] = "Always"
            claims[pods.start(body)] = claim
        time.sleep(random.uniform(0, PAUSE_S))
        driver.revive(*NAMES)
        victim = random.choice(VICTIMS)
        process = driver.daemons[victim].process
        assert process is not None
        process.kill()
        process.wait()
        if victim == "containerd":
            logs += driver.log("containerd", 100_000).splitlines()
        # Pods end beside kills too: one at least has to have come up.
        wait(driver, pods, lambda: any(runs(pods, each) for each in claims))
        for name in [each for each in claims if runs(pods, each)][: AT_ONCE // 2]:
            pods.api.delete(f"/api/v1/namespaces/default/pods/{name}")
            del claims[name]
            ended += 1
        if number % SERIES == 0 or number == KILLS:
            slowest = max(
                slowest, wait(driver, pods, lambda: driver.answer(*NAMES) and all(runs(pods, each) for each in claims))
            )
            found = look(driver, pods, claims, before, left)
            if found:
                print("\n".join([*found, explain(driver, logs)]), flush=True)
            left += found
            claims.clear()
            logs.clear()
        print(f"kill {number} of {KILLS}: {victim}; {ended} pods ended, left behind: {len(left)}", flush=True)

    assert left == []
    # What ended containers left of their shares goes at the next start with one.
    name = pods.start(pod([pods.claim(claim_spec({"memory": "1Gi"}))]))
    pods.running(name)
    entries = [path.name for path in SHARES.iterdir() if path.name != GROUPS]
    assert entries == [pods.container(name)]
    assert len(driver.devices()) == 8
    measured(
        f"5: {KILLS} kills of driver, kubelet, containerd beside {ended} pods: left files, claims, tenants", "0", "0"
    )
    measured(f"5: all pods run, after a kill, {-(-KILLS // SERIES)} times, at most", f"{RETRY_S} s", f"{slowest:.0f} s")


def wait(node: Node, pods: Pods, holds: Callable[[], bool]) -> float:
    """Seconds until it holds, within kubelet's retry; what ends meanwhile is started again."""

    def revived() -> bool:
        node.revive(*NAMES)
        return holds()

    begun = time.monotonic()
    assert until(revived, seconds=RETRY_S + 30), "\n".join([*map(node.log, NAMES), *map(pods.explain, pods.names())])
    return time.monotonic() - begun


def look(node: Node, pods: Pods, claims: dict[str, str], before: set[str], known: list[str]) -> list[str]:
    """Remove all pods, which run; what the node has beside theirs before that, and after it, and what is known."""
    files = {f"nvc.dev-claim_{pods.read_claim(claim)['metadata']['uid']}.yaml" for claim in claims.values()}
    found = strays(node, before | files, {pods.container(name) for name in claims}, known)
    pods.clear()
    return found + strays(node, before, set(), [*known, *found])


def strays(node: Node, files: set[str], containers: set[str], known: list[str]) -> list[str]:
    """Of these and what the node has, what is not in both after kubelet's retry."""
    found: list[str] = []

    def none() -> bool:
        held = {one.name for tenant in node.tenants() for one in tenant.containers}
        wrong = {
            "file": set(os.listdir(node.cdi)) ^ files,
            "container": {str(row["container"]) for row in rows(node)} ^ containers,
            "tenant": held ^ containers,
        }
        lines = [f"{kind} {name}" for kind, names in wrong.items() for name in sorted(names)]
        found[:] = [line for line in lines if line not in known]
        return found == []

    until(none, seconds=RETRY_S + 30)
    return found


def runs(pods: Pods, name: str) -> bool:
    states = pods.read(name)["status"].get("containerStatuses", [])
    return bool(states) and all("running" in one["state"] for one in states)


def explain(node: Node, logs: list[str]) -> str:
    """The containers that runc has when no pod is left, with what containerd said of them."""
    known = execute(["runc", "--root", str(STATE), "list"], env=node.env).text + node.ctr("containers", "ls", "-q").text
    ids = [path.name for path in STATE.iterdir()]
    lines = [*logs, *node.log("containerd", 100_000).splitlines()]
    return "\n".join([known, *(line for line in lines if any(one in line for one in ids))])
