"""What is reported beside the answers to the kubelet: events, and the devices' state in a claim's status.

In a thread of its own, because the kubelet waits for an answer and not for these. What cannot be reported is logged and
left: neither is needed for a pod to run.
"""

from __future__ import annotations

import datetime
import queue
import threading
import uuid
from typing import TYPE_CHECKING

from nvc.kube.cluster import ClusterError
from nvc.kube.names import DRIVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from nvc.kube.cluster import Cluster

#: Reports that wait; one more is dropped. Refusals that are remembered, so that each is reported once.
_WAITING, _TOLD = 256, 1024
#: Times that a status is written after another client wrote it.
_TRIES = 4
#: Limits of an event's note and of a condition's message.
_NOTE_LIMIT = 1000


class Reporter:
    """Tells the cluster what happened. Methods return at once."""

    def __init__(self, cluster: Cluster, node: str, say: Callable[..., None]) -> None:
        self._cluster = cluster
        self._node = node
        self._say = say
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(_WAITING)
        self._told: dict[tuple[str, str], None] = {}
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def refused(self, namespace: str, name: str, uid: str, message: str) -> None:
        """An event for a claim that was not prepared: one for each message."""
        if (uid, message) in self._told:
            return
        self._told[uid, message] = None
        while len(self._told) > _TOLD:
            self._told.pop(next(iter(self._told)))
        self._put(lambda: self._cluster.create_event(namespace, self._event(namespace, name, uid, message)))

    def ready(self, claim: dict[str, Any], devices: Iterable[dict[str, Any]]) -> None:
        """The state of a claim's devices: entries of its status.devices, ours alone. claim: as it was read."""
        own = list(devices)
        self._put(lambda: self._write(claim, own))

    def close(self, seconds: float = 2.0) -> None:
        """Tell what waits, for so long, and end."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _put(self, work: Callable[[], None]) -> None:
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            self._say("report-dropped", message="the API server takes reports too slowly")

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except ClusterError as error:
                if not error.is_missing:  # the claim is gone, and its events with it
                    self._say("report-failed", message=error.message, hint=error.hint)
            except Exception as error:  # the thread must not end: nothing would be reported any more
                self._say("report-failed", message=f"internal error: {type(error).__name__}: {error}", hint="report it")

    def _write(self, claim: dict[str, Any], own: list[dict[str, Any]]) -> None:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        for last in range(_TRIES - 1, -1, -1):
            there = (claim.get("status") or {}).get("devices") or []
            devices = [one for one in there if one.get("driver") != DRIVER] + [_since(one, there) for one in own]
            if devices == there:
                return
            try:
                version = claim["metadata"]["resourceVersion"]
                self._cluster.patch_claim_status(namespace, name, {"devices": devices}, version)
                return
            except ClusterError as error:
                if not error.is_conflict or not last:
                    raise
            uid, claim = claim["metadata"]["uid"], self._cluster.claim(namespace, name)
            if claim["metadata"]["uid"] != uid:
                return  # another claim of that name

    def _event(self, namespace: str, name: str, uid: str, message: str) -> dict[str, Any]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{name[:200]}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "eventTime": now(micro=True),
            "reportingController": DRIVER,
            "reportingInstance": self._node[:128],
            "action": "Prepare",
            "reason": "PrepareRefused",
            "type": "Warning",
            "note": message[:_NOTE_LIMIT],
            "regarding": {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "namespace": namespace,
                "name": name,
                "uid": uid,
            },
        }


def now(*, micro: bool = False) -> str:
    """The time as the API server has it."""
    form = "%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ"
    return datetime.datetime.now(datetime.UTC).strftime(form)


def state(pool: str, device: str, share_id: str, data: dict[str, Any]) -> dict[str, Any]:
    """An entry of a claim's status.devices: the device is ready. data: what it is, and what is held of it."""
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Prepared",
        "message": "",
        "lastTransitionTime": now(),
    }
    entry = {"driver": DRIVER, "pool": pool, "device": device, "conditions": [condition], "data": data}
    return entry | ({"shareID": share_id} if share_id else {})


def _since(own: dict[str, Any], there: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What is there already, where nothing but the time would change."""
    for one in there:
        known = {**own, "conditions": one.get("conditions")}
        if known == one and [c.get("status") for c in one.get("conditions") or ()] == ["True"]:
            return one
    return own
