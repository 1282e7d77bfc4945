"""The parts of a pod's start, by containerd's log of kubelet's calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

#: Each begins where the one before ends. The program's first word may come before StartContainer has returned.
PARTS = (
    "scheduler, kubelet, prepare: to RunPodSandbox",
    "RunPodSandbox",
    "to CreateContainer",
    "CreateContainer",
    "to StartContainer",
    "StartContainer, to the first word",
)
#: Call, and whether it has returned, in the order in which they come.
_MARKS = (("sandbox", False), ("sandbox", True), ("create", False), ("create", True), ("start", False))
_LINE = re.compile(r'time="([^"]+)" level=info msg="(.*)"$')
# Without the field ``attempt``, which a pod's first sandbox and a container's first start do not have.
_SANDBOX = re.compile(r"RunPodSandbox for name:(\S+) +uid:\S+ +namespace:\S+?(?: returns sandbox id (\w+))?$")
_CREATE = re.compile(
    r"CreateContainer within sandbox (\w+) for (?:container )?name:\w+(?: returns container id (\w+))?$"
)
_START = re.compile(r"StartContainer for (\w+)$")


def marks(log: str) -> dict[str, list[float]]:
    """Of each pod with one container, started once: the moments of _MARKS, in ms of the machine's clock."""
    found: dict[str, dict[tuple[str, bool], float]] = {}
    pods: dict[str, str] = {}
    for line in log.splitlines():
        taken = _LINE.match(line)
        if taken is None:
            continue
        at = datetime.fromisoformat(taken[1]).timestamp() * 1000
        words = taken[2].replace('\\"', "")
        if said := _SANDBOX.match(words):
            found.setdefault(said[1], {})["sandbox", bool(said[2])] = at
            pods[said[2] or ""] = said[1]
        elif (said := _CREATE.match(words)) and said[1] in pods:
            pod = pods[said[1]]
            found[pod]["create", bool(said[2])] = at
            pods[said[2] or ""] = pod
        elif (said := _START.match(words)) and said[1] in pods:
            found[pods[said[1]]]["start", False] = at
    return {pod: [one[mark] for mark in _MARKS] for pod, one in found.items() if set(one) == set(_MARKS)}


def parts(marked: Sequence[float], begun: float, word: float) -> list[float]:
    """PARTS of one pod, in ms. marked: of its ``marks``. begun, word: by the machine's clock."""
    return [end - start for start, end in pairwise((begun, *marked, word))]
