"""How much later a pod with a share starts than one without a GPU, and what prepare takes (acceptance 8).

A pod's program tells the time at which it begins, by the machine's clock since its start: what the kubelet reports
comes up to a second later. Pods of all kinds start by turns. The parts of a start are in containerd's log.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nvc.kube.cluster import Cluster as ClusterClient
from nvc.kube.names import RUNTIME_CLASS
from tests.kubernetes.conftest import CRUN, MACHINE, STARTS, count
from tests.support import crun_handlers, start_parts
from tests.support.cluster import Object
from tests.support.kubenode import Node
from tests.support.pods import Pods, claim_spec, pod

Measured = Callable[[str, str, str], None]
#: Pods of each kind.
PAIRS = max(count("starts", 100) // 5, 2)
pytestmark = pytest.mark.timeout(120 + 30 * PAIRS)
#: The first column has hundredths of a second.
TOLD = ["/bin/sh", "-c", "cat /proc/uptime"]
#: Its container uses no device of it: scheduler, kubelet and driver do all that they do for a share's.
UNUSED = "with a claim, runc"
BY_CRUN = "with a share, crun"
SHARE: dict[str, str | int] = {"memory": "1Gi", "compute": 1}


def test_a_share_is_a_few_milliseconds_of_a_start(driver: Node, pods: Pods, measured: Measured) -> None:
    kinds = {"without a GPU, runc": "", "without a GPU, nvc": RUNTIME_CLASS, UNUSED: "", "with a share": RUNTIME_CLASS}
    if CRUN:
        crun_handlers.make_classes(pods.api)
        kinds |= {"without a GPU, crun": crun_handlers.PLAIN, BY_CRUN: crun_handlers.OURS}
    taken: dict[str, list[Start]] = {kind: [] for kind in kinds}
    for _ in range(PAIRS):
        for kind, rows in taken.items():
            claims = [pods.claim(claim_spec(SHARE))] if not kind.startswith("without") else []
            body = pod(claims, command=TOLD, runtime_class=kinds[kind] or None)
            if kind == UNUSED:
                del body["spec"]["containers"][0]["resources"]
            rows.append(started(pods, body))
        pods.clear()
        save(taken)  # the test may be ended before its last start
    prepared = [float(row["ms"]) for row in lines(driver) if row.get("event") == "prepared"]
    split = split_up(driver, taken)
    save(taken, split, prepared)

    base = {
        kind: [statistics.median(each) for each in zip(*((one.whole, one.node) for one in rows), strict=True)]
        for kind, rows in taken.items()
    }
    for kind, (whole, node) in base.items():
        measured(
            f"8: start of a pod {kind}, {PAIRS} pods: median of all, of the node's part",
            "",
            f"{whole:.0f} ms, {node:.0f} ms",
        )
    for kind, goal in ((UNUSED, ""), ("with a share", "30 ms"), (BY_CRUN, "30 ms")):
        for other in (name for name in ("without a GPU, runc", "without a GPU, crun") if kind in base and name in base):
            later = [mine - its for mine, its in zip(base[kind], base[other], strict=True)]
            what = f"8: a pod {kind} starts later than one {other}: all, the node's part"
            measured(what, goal, f"{later[0]:.0f} ms, {later[1]:.0f} ms")
    for number, part in enumerate(start_parts.PARTS):
        known = [[split[one.pod][number] for one in rows if one.pod in split] for rows in taken.values()]
        medians = ", ".join(f"{statistics.median(rows):.1f}" if rows else "?" for rows in known)
        measured(f"8: medians of a part, kinds as above: {part}", "", f"{medians} ms")
    asked = sorted(api_calls(driver, pods))
    prepared.sort()
    measured(f"8: prepare with its API call, {len(prepared)} claims", "50 ms beside the call", summed(prepared))
    measured(f"8: the API call by itself, {len(asked)} times", "", summed(asked))
    assert len(prepared) >= PAIRS


def save(
    taken: Mapping[str, Sequence[Start]],
    split: Mapping[str, Sequence[float]] | None = None,
    prepared: Sequence[float] = (),
) -> None:
    """Write the times of each start to the file of NVC_KUBERNETES_STARTS. split: pod -> parts."""
    if STARTS:
        starts = {
            kind: [vars(one) | {"parts": (split or {}).get(one.pod)} for one in rows] for kind, rows in taken.items()
        }
        text = json.dumps({"machine": MACHINE, "parts": start_parts.PARTS, "starts": starts, "prepared": prepared})
        Path(STARTS).write_text(text)


def summed(rows: list[float]) -> str:
    """rows: sorted."""
    return f"median {statistics.median(rows):.1f} ms, p99 {rows[len(rows) * 99 // 100]:.1f} ms"


@dataclass(frozen=True)
class Start:
    """A pod's start: times of ``now``."""

    pod: str
    begun: float
    #: When the pod came to the node.
    bound: float
    #: When the program wrote its first word.
    word: float

    @property
    def whole(self) -> float:
        return self.word - self.begun

    @property
    def node(self) -> float:
        return self.word - self.bound


def started(pods: Pods, body: Object) -> Start:
    """Start the pod, and wait for its end."""
    begun = now()
    name = pods.start(body)
    while not pods.read(name)["spec"].get("nodeName"):
        time.sleep(0.002)
    bound = now()
    pods.ended(name)
    return Start(name, begun, bound, float(pods.log(name).split()[0]) * 1000)


def split_up(node: Node, taken: Mapping[str, Sequence[Start]]) -> dict[str, list[float]]:
    """Pod -> start_parts.PARTS, in ms; without those that containerd was asked for again."""
    marks = start_parts.marks(Path(node.place, "containerd.log").read_text())
    booted = time.time() * 1000 - now()
    return {
        one.pod: start_parts.parts(marks[one.pod], booted + one.begun, booted + one.word)
        for rows in taken.values()
        for one in rows
        if one.pod in marks
    }


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


def lines(node: Node) -> list[dict[str, Any]]:
    """The driver's log."""
    text = Path(node.place, "driver.log").read_text()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def api_calls(node: Node, pods: Pods) -> list[float]:
    """Milliseconds of a claim's read by the driver's own client."""
    client = ClusterClient(str(node.cluster.configs["admin"]))
    name = pods.claim(claim_spec(SHARE))
    taken = []
    for _ in range(100):
        begun = time.monotonic()
        client.claim(pods.namespace, name)
        taken.append((time.monotonic() - begun) * 1000)
    client.close()
    return taken
