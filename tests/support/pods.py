"""Pods and claims of the bed's cluster: made, waited for, asked, removed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from nvc.kube.names import CLASS_ANY, DRIVER, PARAMETERS_KIND, PARAMETERS_VERSION, RUNTIME_CLASS
from tests.support.cluster import Api, Object
from tests.support.containerd import IMAGE
from tests.support.kubenode import Node
from tests.support.leftovers import until

NAMESPACE = "default"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
_numbers = itertools.count(1)
_NOT_YET = "no relationship found between node"
SLEEP = ("/bin/sleep", "100000")


def name(kind: str) -> str:
    """A new name."""
    return f"{kind}-{next(_numbers)}"


def request(capacity: Mapping[str, str | int] | None, *, device_class: str = CLASS_ANY) -> Object:
    """A claim's request of one device; capacity None: a whole GPU."""
    exactly: Object = {"deviceClassName": device_class}
    if capacity is not None:
        exactly["capacity"] = {"requests": {key: str(value) for key, value in capacity.items()}}
    return {"name": "gpu", "exactly": exactly}


def claim_spec(capacity: Mapping[str, str | int] | None, *, parameters: Mapping[str, Any] | None = None) -> Object:
    """The spec of a claim of one device. parameters: opaque ones, without their version and kind."""
    devices: Object = {"requests": [request(capacity)]}
    if parameters is not None:
        whole = {"apiVersion": PARAMETERS_VERSION, "kind": PARAMETERS_KIND, **parameters}
        devices["config"] = [{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": whole}}]
    return {"devices": devices}


def pod(
    claims: Sequence[str],
    *,
    command: Sequence[str] = SLEEP,
    containers: int = 1,
    runtime_class: str | None = RUNTIME_CLASS,
    **container: Any,
) -> Object:
    """A pod whose containers use all of the claims. container: more fields of each container."""
    names = [f"claim{number}" for number in range(len(claims))]
    one = {
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": {"claims": [{"name": each} for each in names]},
        **container,
    }
    spec: Object = {
        "restartPolicy": "Never",
        # 0 would take the object away before the container.
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "resourceClaims": [
            {"name": each, "resourceClaimName": claim} for each, claim in zip(names, claims, strict=True)
        ],
        "containers": [{"name": f"c{number}", **one} for number in range(containers)],
    }
    if runtime_class is not None:
        spec["runtimeClassName"] = runtime_class
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name("pod")}, "spec": spec}


class Pods:
    """Makes objects in one namespace, and removes them at the end."""

    def __init__(self, api: Api, namespace: str = NAMESPACE) -> None:
        self.api, self.namespace = api, namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._claims = _CLAIMS.format(namespace)
        self.made: list[str] = []

    def claim(self, spec: Object) -> str:
        """Make a claim; its name."""
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name("claim")},
            "spec": spec,
        }
        found = str(self.api.create(self._claims, body)["metadata"]["name"])
        self.made.append(f"{self._claims}/{found}")
        return found

    def read_claim(self, claim: str) -> Object:
        return self.api.get(f"{self._claims}/{claim}")

    def allocated(self, claim: str) -> list[Object]:
        """The claim's allocation results."""
        found = self.read_claim(claim)["status"]["allocation"]["devices"]["results"]
        assert isinstance(found, list)
        return found

    def change_claim(self, claim: str, body: Object) -> Object:
        """Raises ApiError."""
        return self.api.merge(f"{self._claims}/{claim}", body)

    def start(self, body: Object) -> str:
        """Make a pod; its name. Raises ApiError where admission refuses it."""
        found = str(self.api.create(self._pods, body)["metadata"]["name"])
        self.made.insert(0, f"{self._pods}/{found}")
        return found

    def read(self, pod: str) -> Object:
        return self.api.get(f"{self._pods}/{pod}")

    def events(self, pod: str) -> list[str]:
        """Reason and message of the pod's events, in the order in which they came."""
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=involvedObject.name%3D{pod}"
        found = sorted(self.api.items(path), key=lambda one: str(one["metadata"]["creationTimestamp"]))
        return [f"{one['reason']}: {one['message']}" for one in found]

    def failed_prepares(self, pod: str) -> list[str]:
        """Events of the pod that say so, but for kubelet's own: it may ask for a claim before the API server's
        authorizer knows that a pod with it came to the node, and asks again.
        """
        return [one for one in self.events(pod) if "FailedPrepare" in one and _NOT_YET not in one]

    def running(self, pod: str, *, seconds: float = 60.0) -> Object:
        """The pod once all its containers run. Fails with its events."""
        assert until(lambda: self._runs(pod), seconds=seconds), self.explain(pod)
        return self.read(pod)

    def _runs(self, pod: str) -> bool:
        status = self.read(pod)["status"]
        assert status.get("phase") != "Failed", self.explain(pod)
        states = status.get("containerStatuses", [])
        return status.get("phase") == "Running" and all("running" in one["state"] for one in states)

    def ended(self, pod: str, *, seconds: float = 60.0) -> Object:
        """The pod once it has ended."""
        phases = ("Succeeded", "Failed")
        assert until(lambda: self.read(pod)["status"].get("phase") in phases, seconds=seconds), self.explain(pod)
        return self.read(pod)

    def refused(self, pod: str, words: str, *, seconds: float = 60.0) -> str:
        """The first event of the pod that has these words; the pod must not have come to run."""

        def found() -> list[str]:
            return [event for event in self.events(pod) if words in event]

        assert until(lambda: bool(found()), seconds=seconds), self.explain(pod)
        states = self.read(pod)["status"].get("containerStatuses", [])
        assert not any("running" in one["state"] for one in states), self.explain(pod)
        return found()[0]

    def container(self, pod: str, number: int = 0) -> str:
        """The engine's id of a container."""
        return str(self.read(pod)["status"]["containerStatuses"][number]["containerID"]).removeprefix("containerd://")

    def run_in(self, node: Node, pod: str, *command: str) -> str:
        """What another program in the pod's first container says."""
        done = node.ctr("task", "exec", "--exec-id", name("exec"), self.container(pod), *command)
        assert done.code == 0, done.text
        return done.out

    def log(self, pod: str, container: str = "c0") -> str:
        return str(self.api.get(f"{self._pods}/{pod}/log?container={container}")["text"])

    def remove(self, pod: str, *, seconds: float = 60.0) -> None:
        """Delete a pod and wait until kubelet says that it is gone."""
        path = f"{self._pods}/{pod}"
        self.api.delete(path)
        assert until(lambda: self.api.find(path) is None, seconds=seconds), self.explain(pod)
        self.made.remove(path)

    def clear(self) -> None:
        """Remove everything that was made: pods first."""
        for path in self.made:
            self.api.delete(path)
        for path in self.made:
            assert until(lambda path=path: self.api.find(path) is None, seconds=120), self.api.find(path)  # type: ignore[misc]
        self.made.clear()

    def names(self) -> list[str]:
        """Of the pods that were made and not removed by ``remove``."""
        return [path.rpartition("/")[2] for path in self.made if path.startswith(self._pods)]

    def explain(self, pod: str) -> str:
        """Status and events."""
        return "\n".join([pod, str((self.api.find(f"{self._pods}/{pod}") or {}).get("status")), *self.events(pod)])
