"""Keeps this node's slices in the API server as they should be.

The kubelet deletes all slices of its node when it starts, and those of a driver that stays away: publishing once is not
enough, so they are watched: listed once, then followed by the watch's events. Every change of content is a new
generation of the pool, in all of its slices; what is missing of the same content comes back with the same. So the fewer
slices, the fewer writes: all GPUs are in one, where the scheduler can do that.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from nvc.kube.cluster import ClusterError
from nvc.kube.devices import joined
from nvc.kube.names import DRIVER, RESOURCE_GROUP, RESOURCE_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from nvc.kube.cluster import Cluster
    from nvc.kube.devices import Slice

#: Longest name of an object.
_NAME_LIMIT = 253
#: Seconds after an error, the first and the longest time.
_AGAIN_S, _AGAIN_MOST_S = 0.5, 4.0
#: Minor version of API servers whose schedulers, which may be a version older, take several GPUs in a slice.
_JOINED = 36


class Publisher:
    """The slices of one node.

    ``sync`` may be called from any thread; ``start`` begins a thread that calls it when something changes there.
    """

    def __init__(
        self, cluster: Cluster, node: str, say: Callable[..., None], turn: Callable[[], bool] = lambda: True
    ) -> None:
        """say: takes an event's name and fields. turn: whether this process is the one that publishes."""
        self._cluster = cluster
        self._node = node
        self._say = say
        self._turn = turn
        self._lock = threading.Lock()
        self._wanted: tuple[Slice, ...] = ()
        self._generation = 0
        self._is_joined = False
        #: Name -> the slice as the API server has it, by the last list, the watch since then and what was written.
        self._found: dict[str, dict[str, Any]] = {}
        #: Of what the API server made of a slice: it leaves fields out whose gate is off.
        self._kept: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._owner: list[dict[str, Any]] | None = None
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def set(self, wanted: Iterable[Slice]) -> bool:
        """Say what is to be published, for ``sync``; whether that is something new."""
        with self._lock:
            before, self._wanted = self._wanted, tuple(wanted)
            return before != self._wanted

    def sync(self, *, newest: bool = True) -> bool:
        """Make it so; whether anything had to be changed. newest: as for ``Cluster.slices``. Raises ClusterError."""
        with self._lock:
            self._list(newest=newest)
            return self._sync()

    def withdraw(self) -> None:
        """Delete the node's slices, for a driver that is uninstalled. Raises ClusterError."""
        self.set(())
        self.sync()

    def start(self) -> None:
        """Begin to watch, in a thread."""
        thread = threading.Thread(target=self._run, name="slices", daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End the thread soon. Slices stay: the next process of the driver goes on with them."""
        self._stopped.set()

    def _run(self) -> None:
        # What the watch tells from an older version on puts an older list right.
        pause, newest = _AGAIN_S, False
        while not self._stopped.is_set():
            try:
                with self._lock:
                    version = self._list(newest=newest)
                    self._sync()
                for kind, one in self._cluster.watch_slices(self._node, version):
                    if self._stopped.is_set():
                        return
                    with self._lock:
                        if self._follow(kind, one):
                            self._sync()
                pause, newest = _AGAIN_S, False
            except ClusterError as error:
                newest = True
                if not error.is_conflict:
                    self._say("slices-failed", message=error.message, hint=error.hint)
            except Exception as error:  # the thread must not end: nothing would be published any more
                self._say("slices-failed", message=f"internal error: {type(error).__name__}: {error}", hint="report it")
            else:
                continue
            self._stopped.wait(pause)
            pause = min(pause * 2, _AGAIN_MOST_S)

    def _list(self, *, newest: bool) -> str:
        """Read what is there; the version from which to watch."""
        self._is_joined = self._cluster.minor() >= _JOINED
        found, version = self._cluster.slices(self._node, newest=newest)
        self._found = {one["metadata"]["name"]: one for one in found}
        return version

    def _follow(self, kind: str, one: dict[str, Any]) -> bool:
        """Take an event of the watch; whether it had something new. It may be older than what was written since."""
        name, is_deleted = one["metadata"]["name"], kind == "DELETED"
        known = self._found.get(name)
        if known is not None and (_version(one), is_deleted) <= (_version(known), False):
            return False
        if is_deleted:
            return self._found.pop(name, None) is not None
        self._found[name] = one
        return True

    def _sync(self) -> bool:
        if not self._turn():
            return False
        found = dict(self._found)
        rows = joined(self._wanted) if self._is_joined else self._wanted
        wanted = {slice_name(self._node, one.name): one for one in rows}
        contents = {name: self._content(one, len(wanted)) for name, one in wanted.items()}
        generations = {one["spec"]["pool"]["generation"] for one in found.values()}
        same = {name for name in found if name in contents and self._is_same(name, contents[name], found[name])}
        extra, missing = sorted(found.keys() - contents.keys()), sorted(contents.keys() - found.keys())
        if same == set(found) and len(generations) <= 1:
            if not missing:
                self._generation = max(generations, default=self._generation)
                return False
            generation = max((*generations, self._generation, 1))
        else:
            generation = max((*generations, self._generation)) + 1
        for name in extra:
            self._delete(name)
        for name in contents:
            if name in missing:
                self._put(name, contents[name], generation, None)
            elif name not in same or found[name]["spec"]["pool"]["generation"] != generation:
                self._put(name, contents[name], generation, found[name])
        self._generation = generation
        self._say("slices", slices=len(contents), generation=generation, created=len(missing), deleted=len(extra))
        return True

    def _content(self, one: Slice, count: int) -> dict[str, Any]:
        """A slice's spec, but for the generation."""
        pool = {"name": self._node, "resourceSliceCount": count}
        return {"driver": DRIVER, "nodeName": self._node, "pool": pool, "devices": list(one.devices)}

    def _is_same(self, name: str, content: dict[str, Any], found: dict[str, Any]) -> bool:
        there = _comparable(found["spec"])
        kept = self._kept.get(name)
        return there == content or (kept is not None and kept == (content, there))

    def _put(self, name: str, content: dict[str, Any], generation: int, old: dict[str, Any] | None) -> None:
        spec = {**content, "pool": {**content["pool"], "generation": generation}}
        metadata: dict[str, Any] = {"name": name, "ownerReferences": self._owners()}
        if old is not None:
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
        body = {
            "apiVersion": f"{RESOURCE_GROUP}/{RESOURCE_VERSION}",
            "kind": "ResourceSlice",
            "metadata": metadata,
            "spec": spec,
        }
        made = self._cluster.create_slice(body) if old is None else self._cluster.replace_slice(body)
        self._found[name] = made
        there = _comparable(made.get("spec") or {})
        self._kept[name] = content, there
        if there != content:
            lost = ", ".join(sorted(_lost(content["devices"], there.get("devices") or [])))
            hint = "turn on DRAConsumableCapacity in API server, scheduler and kubelets, or use Kubernetes 1.36"
            self._say("slices-cut", slice=name, message=f"the API server leaves out {lost}", hint=hint)

    def _delete(self, name: str) -> None:
        try:
            self._cluster.delete_slice(name)
        except ClusterError as error:
            if not error.is_missing:
                raise
        self._found.pop(name, None)

    def _owners(self) -> list[dict[str, Any]]:
        """The node, so that its slices go with it; no owner where its uid may not be read."""
        if self._owner is None:
            try:
                uid = self._cluster.node_uid(self._node)
                self._owner = [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid}]
            except ClusterError as error:
                if error.status not in (403, 404):
                    raise
                self._owner = []
        return self._owner


def slice_name(node: str, name: str) -> str:
    """Of the object: the same for every process of the driver, so that two of them do not publish twice."""
    full = f"{node}-{DRIVER}-{name}"
    if len(full) <= _NAME_LIMIT:
        return full
    digest = hashlib.sha256(full.encode()).hexdigest()[:16]
    return f"{full[: _NAME_LIMIT - len(digest) - 1].rstrip('.-')}-{digest}"


def _version(one: dict[str, Any]) -> int:
    """Of an object; the API server's are numbers that rise."""
    return int(one["metadata"]["resourceVersion"])


def _comparable(spec: dict[str, Any]) -> dict[str, Any]:
    """Without what the API server adds: the generation is compared apart, taints get the time."""
    pool = {key: value for key, value in spec.get("pool", {}).items() if key != "generation"}
    devices = [
        {**device, "taints": [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in device["taints"]]}
        if device.get("taints")
        else device
        for device in spec.get("devices") or []
    ]
    return {**spec, "pool": pool, "devices": devices}


def _lost(wanted: list[dict[str, Any]], there: list[dict[str, Any]]) -> set[str]:
    """Names of fields of devices that are not there."""
    found = set()
    for own, other in zip(wanted, there, strict=False):
        for key in own:
            if key not in other:
                found.add(key)
            elif key == "capacity" and own[key] != other[key]:
                found.add("requestPolicy")
    return found or {"what was published"}
