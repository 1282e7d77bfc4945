"""Which Kubernetes has what of what pods with GPUs need. Data; sources: the KEPs and release notes of Kubernetes."""

from __future__ import annotations

import re

from nvc.base.record import Record

_VERSION = re.compile(r"v?1\.(\d{1,3})(?:[.+-]|$)")


class Feature(Record):
    """gate: of Kubernetes. what: it is for. since: minor version that has it; on: that has it by default."""

    gate: str
    what: str
    since: int
    on: int


DRA = Feature("DynamicResourceAllocation", "claims of devices (resource.k8s.io/v1)", 31, 34)
CONSUMABLE = Feature("DRAConsumableCapacity", "fractions of a GPU, placed by what is left", 34, 36)
EXTENDED = Feature("DRAExtendedResource", "`nvidia.com/gpu: 1` served by a device class", 34, 36)
TAINTS = Feature("DRADeviceTaints", "a GPU with a fault gets no new pods", 33, 36)
PRIORITIZED = Feature("DRAPrioritizedList", "a claim with alternatives", 33, 34)
HEALTH = Feature("ResourceHealthStatus", "a GPU's health in the pod's status", 31, 36)
#: Schedulers before it end on a request of several devices (the chart's one-device.yaml).
SEVERAL_A_REQUEST = 35
FEATURES = (DRA, CONSUMABLE, EXTENDED, TAINTS, PRIORITIZED, HEALTH)


def minor(version: str) -> int:
    """34 of "v1.34.9", "1.34.9+k3s1"; -1 for what is no version of Kubernetes 1."""
    found = _VERSION.match(version)
    return int(found[1]) if found else -1
