"""``nvc-py kube check``: what is wrong with a cluster and a node. Rows, findings and reports are the doctor's.

Only looks; what cannot be seen is a note that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nvc.base.errors import NvcError
from nvc.base.record import Record
from nvc.doctor.finding import Check, Finding
from nvc.kube.names import CDI_DIRECTORY, KUBELET_DIRECTORY, RUNTIME_CLASS
from nvc.kube.versions import CONSUMABLE, minor

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe
    from nvc.kube.api import Get

AREAS = {"cluster": "the API server and the objects in it", "node": "this machine's kubelet, engine and agent"}
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
_RESOURCES = "/apis/resource.k8s.io/v1"


class Cluster:
    """What the API server says, each thing asked for once. node: its name, "" for none."""

    def __init__(self, get: Get, node: str = "") -> None:
        self._get = get
        self.node = node
        self._known: dict[str, Any] = {}

    def get(self, path: str) -> Any:
        """The object at a path; None without one. Raises NvcError, each time the same."""
        if path not in self._known:
            try:
                self._known[path] = self._get(path)
            except NvcError as error:
                self._known[path] = error
        found = self._known[path]
        if isinstance(found, NvcError):
            raise found
        return found

    def items(self, path: str) -> list[dict[str, Any]]:
        """The objects of a list; none where the API is not served."""
        found = as_object(self.get(path)).get("items")
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

    def named(self, path: str) -> dict[str, dict[str, Any]]:
        """The same by name."""
        return {as_text(at(item, "metadata", "name")): item for item in self.items(path)}

    @property
    def minor(self) -> int:
        return minor(as_text(at(self.get("/version"), "gitVersion")))

    def slices(self) -> list[dict[str, Any]]:
        return self.items(f"{_RESOURCES}/resourceslices")

    def classes(self) -> dict[str, dict[str, Any]]:
        return self.named(f"{_RESOURCES}/deviceclasses")

    def node_object(self) -> dict[str, Any]:
        """The node's; {} where none is named or there is none."""
        return as_object(self.get(f"/api/v1/nodes/{self.node}")) if self.node else {}

    def uses_claims(self) -> bool:
        """Whether this cluster can place fractions, by its version alone."""
        return self.minor >= CONSUMABLE.since


class Row(Record):
    """A check before it knows what to look at. Fields as in ``nvc.doctor.finding.Check``."""

    name: str
    area: str
    sees: str
    why: str


#: What a row's function gets: the machine, the cluster (None: not known), the settings.
Look = Callable[["Seen"], Iterator[Finding]]


class Seen:
    """What the checks look at. cluster: None where only the machine is looked at. cdi, kubelet: directories.

    agent: raises NvcError where no agent answers.
    """

    def __init__(
        self,
        probe: Probe,
        cluster: Cluster | None,
        *,
        agent: Callable[[], None] = lambda: None,
        cdi: str = CDI_DIRECTORY,
        kubelet: str = KUBELET_DIRECTORY,
    ) -> None:
        self.probe = probe
        self._cluster = cluster
        self.agent = agent
        self.cdi = cdi
        self.kubelet = kubelet

    @property
    def cluster(self) -> Cluster:
        """Rows of the area "cluster" are left out where there is none."""
        assert self._cluster is not None
        return self._cluster

    def node_object(self) -> dict[str, Any]:
        """The node's object; {} where it is not known. Raises nothing: other rows say what the API server refuses."""
        try:
            return self._cluster.node_object() if self._cluster is not None else {}
        except NvcError:
            return {}

    def handler(self) -> str:
        """Of our RuntimeClass; "" where it is not known."""
        try:
            found = self._cluster.named(RUNTIME_CLASSES).get(RUNTIME_CLASS) if self._cluster is not None else None
        except NvcError:
            found = None
        return as_text(at(found, "handler"))


def checks(seen: Seen, areas: tuple[str, ...]) -> tuple[Check, ...]:
    """The rows of these areas, for the doctor's runner."""
    from nvc.kube.check_rows import ROWS

    def bound(look: Look) -> Callable[[Probe], Iterator[Finding]]:
        return lambda probe: look(seen)

    return tuple(Check(row.name, row.area, bound(look), row.sees, row.why) for row, look in ROWS if row.area in areas)


def at(data: Any, *keys: str) -> Any:
    """The value at keys; None where one is missing."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def as_object(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def as_text(data: Any) -> str:
    return data if isinstance(data, str) else ""
