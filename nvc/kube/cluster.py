"""The API server, as far as these programs ask it: claims, slices, events. Objects are plain data.

The Kubernetes client's own models know one version of the API each; its functions for custom objects take any group, so
one program serves every version of the cluster and of the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.errors import InitializationError, NvcError
from nvc.kube.names import DRIVER, RESOURCE_GROUP, RESOURCE_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Seconds to connect, and for an answer.
_TIMEOUT = (3.0, 10.0)
#: Seconds that a watch lasts before it is begun again.
_WATCH_S = 300
_SLICES, _CLAIMS = "resourceslices", "resourceclaims"
_EVENTS = ("events.k8s.io", "v1")


class ClusterError(NvcError):
    """The API server refused, or did not answer. status: of HTTP, 0 without an answer."""

    def __init__(self, message: str, status: int = 0, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status

    @property
    def is_missing(self) -> bool:
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """Somebody else was faster: look again."""
        return self.status in (409, 410)


class Cluster:
    """One API server. Its methods raise ClusterError and may be called from any thread."""

    def __init__(self, kubeconfig: str = "") -> None:
        """kubeconfig: file, "" for the pod's own service account. Raises InitializationError."""
        from kubernetes import client, config

        settings = client.Configuration()
        try:
            if kubeconfig:
                config.load_kube_config(kubeconfig, client_configuration=settings)
            else:
                config.load_incluster_config(client_configuration=settings)
        except (config.ConfigException, OSError) as error:
            raise InitializationError(
                f"{kubeconfig or 'service account'}: {error}",
                hint="outside of a pod, name a file: --kubeconfig=/etc/kubernetes/kubelet.conf",
            ) from error
        self._client = client.ApiClient(settings)
        self._objects = client.CustomObjectsApi(self._client)
        self._core = client.CoreV1Api(self._client)

    def close(self) -> None:
        """End every connection."""
        self._client.rest_client.pool_manager.clear()

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """A claim."""
        return self._call("get_namespaced_custom_object", namespace, _CLAIMS, name)

    def claims(self) -> list[dict[str, Any]]:
        """Those of all namespaces."""
        return self._call("list_cluster_custom_object", _CLAIMS).get("items") or []

    def patch_claim_status(self, namespace: str, name: str, status: dict[str, Any], version: str) -> None:
        """Change a claim's status as it was at this resource version."""
        body = {"metadata": {"resourceVersion": version}, "status": status}
        self._call("patch_namespaced_custom_object_status", namespace, _CLAIMS, name, body)

    def slices(self, node: str) -> tuple[list[dict[str, Any]], str]:
        """Our slices of a node, and the resource version for ``watch``."""
        found = self._call("list_cluster_custom_object", _SLICES, field_selector=_of(node))
        return found.get("items") or [], found.get("metadata", {}).get("resourceVersion", "")

    def create_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        """The slice as it is there now."""
        return self._call("create_cluster_custom_object", _SLICES, body)

    def replace_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        """The same; body has the resource version that it replaces."""
        return self._call("replace_cluster_custom_object", _SLICES, body["metadata"]["name"], body)

    def delete_slice(self, name: str) -> None:
        """Remove a slice."""
        self._call("delete_cluster_custom_object", _SLICES, name)

    def watch_slices(self, node: str, version: str) -> Iterator[str]:
        """The kind of each change of a node's slices (ADDED, MODIFIED, DELETED), from ``version`` on, for a while."""
        from kubernetes import watch

        with _translated(f"watch {_SLICES}"):
            stream = watch.Watch().stream(
                self._objects.list_cluster_custom_object,
                RESOURCE_GROUP,
                RESOURCE_VERSION,
                _SLICES,
                field_selector=_of(node),
                resource_version=version,
                timeout_seconds=_WATCH_S,
                _request_timeout=(_TIMEOUT[0], _WATCH_S + _TIMEOUT[1]),
            )
            for event in stream:
                yield str(event["type"])

    def node_uid(self, node: str) -> str:
        """The uid of a node's object."""
        with _translated(f"get node {node}"):
            found = self._core.read_node(node, _request_timeout=_TIMEOUT)
        return str(found.metadata.uid)

    def create_event(self, namespace: str, body: dict[str, Any]) -> None:
        """An event of events.k8s.io."""
        with _translated("create event"):
            self._objects.create_namespaced_custom_object(
                *_EVENTS, namespace, "events", body, _request_timeout=_TIMEOUT
            )

    def _call(self, function: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        words = " ".join(word for word in arguments if isinstance(word, str))
        with _translated(f"{function.partition('_')[0]} {words}"):
            called = getattr(self._objects, function)
            found = called(RESOURCE_GROUP, RESOURCE_VERSION, *arguments, _request_timeout=_TIMEOUT, **options)
        return found if isinstance(found, dict) else {}


class _translated:
    """Errors of the client and of the connection as ClusterError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or not isinstance(error, Exception) or isinstance(error, NvcError):
            return
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        if isinstance(error, ApiException):
            raise ClusterError(
                f"API server: {self._what}: {_said(error)}", int(error.status or 0), hint=_hint(error.status)
            ) from error
        if isinstance(error, HTTPError | OSError | ValueError):
            raise ClusterError(
                f"API server: {self._what}: no answer: {type(error).__name__}", hint="it is asked again"
            ) from error


def _said(error: Any) -> str:
    """The message in the body of an answer, in one line."""
    from rpc.codec import CodecError, loads

    try:
        text = loads(error.body or "").get("message", "")
    except (CodecError, AttributeError, TypeError, ValueError):
        text = ""
    return f"{error.status} {text or error.reason}".replace("\n", " ")[:500]


def _hint(status: int | None) -> str:
    if status == 403:
        return "the service account lacks the right: install the chart's RBAC again"
    if status == 404:
        return "nvc-py kube check looks for what is missing; resource.k8s.io/v1 comes with Kubernetes 1.34"
    return ""


def _of(node: str) -> str:
    return f"spec.driver={DRIVER},spec.nodeName={node}"
