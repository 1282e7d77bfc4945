"""The API server, as far as these programs ask it: claims, slices, events. Objects are plain data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote

from nvc.base.errors import NvcError
from nvc.kube.api import Connection
from nvc.kube.names import DRIVER, RESOURCE_GROUP, RESOURCE_VERSION
from nvc.kube.versions import minor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Seconds to connect, and for an answer.
_CONNECT_S, _ANSWER_S = 3.0, 10.0
#: Seconds that a watch lasts before it is begun again.
_WATCH_S = 300
_SLICES, _CLAIMS = "resourceslices", "resourceclaims"
_RESOURCE = f"/apis/{RESOURCE_GROUP}/{RESOURCE_VERSION}"
_EVENTS = "/apis/events.k8s.io/v1"
_JSON, _MERGE_PATCH = "application/json", "application/merge-patch+json"


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
        """Another client was faster: look again."""
        return self.status in (409, 410)


class Cluster:
    """One API server. Its methods raise ClusterError and may be called from any thread."""

    def __init__(self, kubeconfig: str = "") -> None:
        """kubeconfig: file, "" for the pod's own service account. Raises InputError."""
        self._server = Connection(kubeconfig)

    def close(self) -> None:
        """End every connection."""
        self._server.close()

    def minor(self) -> int:
        """Of its version, 36 of 1.36.3; -1 where it does not say."""
        try:
            return minor(str(self._call("GET", "/version").get("gitVersion")))
        except ClusterError as error:
            if error.status not in (401, 403, 404):
                raise
            return -1

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """A claim."""
        return self._call("GET", _claim(namespace, name))

    def claims(self) -> list[dict[str, Any]]:
        """Those of all namespaces."""
        return self._call("GET", f"{_RESOURCE}/{_CLAIMS}").get("items") or []

    def patch_claim_status(self, namespace: str, name: str, status: dict[str, Any], version: str) -> None:
        """Change a claim's status as it was at this resource version."""
        body = {"metadata": {"resourceVersion": version}, "status": status}
        self._call("PATCH", f"{_claim(namespace, name)}/status", body, _MERGE_PATCH)

    def slices(self, node: str, *, newest: bool = True) -> tuple[list[dict[str, Any]], str]:
        """Our slices of a node, and the resource version for ``watch``.

        newest: else as the API server has them in memory. With etcd before 3.4.31 it reads and decodes those of all
        nodes for the newest.
        """
        found = self._call("GET", f"{_RESOURCE}/{_SLICES}?{_of(node)}{'' if newest else '&resourceVersion=0'}")
        return found.get("items") or [], found.get("metadata", {}).get("resourceVersion", "")

    def create_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        """The slice as it is there now."""
        return self._call("POST", f"{_RESOURCE}/{_SLICES}", body)

    def replace_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        """The same; body has the resource version that it replaces."""
        return self._call("PUT", f"{_RESOURCE}/{_SLICES}/{quote(body['metadata']['name'])}", body)

    def delete_slice(self, name: str) -> None:
        """Remove a slice."""
        self._call("DELETE", f"{_RESOURCE}/{_SLICES}/{quote(name)}")

    def watch_slices(self, node: str, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Kind (ADDED, MODIFIED, DELETED) and slice of each change of a node's, from ``version`` on, for a while."""
        words = f"{_of(node)}&watch=true&resourceVersion={quote(version)}&timeoutSeconds={_WATCH_S}"
        with _translated(f"watch {_SLICES}"):
            answer = self._request("GET", f"{_RESOURCE}/{_SLICES}?{words}", _WATCH_S + _ANSWER_S, preload_content=False)
            try:
                if answer.status != 200:
                    raise _refusal(f"watch {_SLICES}", answer.status, answer.data)
                for line in _lines(answer.stream(None, decode_content=False)):
                    event = json.loads(line)
                    if event["type"] == "ERROR":  # such as a version that is too old
                        raise _refusal(f"watch {_SLICES}", int(event["object"].get("code") or 0), line)
                    yield str(event["type"]), event["object"]
            finally:
                answer.close()

    def node_uid(self, node: str) -> str:
        """The uid of a node's object."""
        return str(self._call("GET", f"/api/v1/nodes/{quote(node)}").get("metadata", {}).get("uid", ""))

    def create_event(self, namespace: str, body: dict[str, Any]) -> None:
        """An event of events.k8s.io."""
        self._call("POST", f"{_EVENTS}/namespaces/{quote(namespace)}/events", body)

    def _call(self, method: str, where: str, body: dict[str, Any] | None = None, kind: str = _JSON) -> dict[str, Any]:
        what = f"{method} {where.partition('?')[0]}"
        options = {} if body is None else {"body": json.dumps(body), "headers": {"Content-Type": kind}}
        with _translated(what):
            answer = self._request(method, where, _ANSWER_S, **options)
            if not 200 <= answer.status < 300:
                raise _refusal(what, answer.status, answer.data)
            found = json.loads(answer.data)
        return found if isinstance(found, dict) else {}

    def _request(self, method: str, where: str, seconds: float, **options: Any) -> Any:
        from urllib3 import Timeout

        return self._server.request(method, where, timeout=Timeout(connect=_CONNECT_S, read=seconds), **options)


class _translated:
    """Errors of the connection as ClusterError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        from urllib3.exceptions import HTTPError

        # LookupError and TypeError: of an answer that is no object of the API.
        if isinstance(error, HTTPError | OSError | ValueError | LookupError | TypeError):
            raise ClusterError(
                f"API server: {self._what}: no answer: {type(error).__name__}", hint="it is asked again"
            ) from error


def _refusal(what: str, status: int, data: bytes) -> ClusterError:
    """data: of the answer, which has the message, in one line here."""
    try:
        found = json.loads(data)
        text = str(found.get("object", found).get("message", ""))
    except (ValueError, AttributeError):
        text = ""
    return ClusterError(f"API server: {what}: {status} {text}".replace("\n", " ")[:500], status, hint=_hint(status))


def _lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines of what comes in parts."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        yield from (line for line in lines if line)


def _hint(status: int) -> str:
    if status == 403:
        return "the service account lacks the right: install the chart's RBAC again"
    if status == 404:
        return "nvc-py kube check looks for what is missing; resource.k8s.io/v1 comes with Kubernetes 1.34"
    return ""


def _claim(namespace: str, name: str) -> str:
    return f"{_RESOURCE}/namespaces/{quote(namespace, safe='')}/{_CLAIMS}/{quote(name, safe='')}"


def _of(node: str) -> str:
    return f"fieldSelector=spec.driver%3D{DRIVER},spec.nodeName%3D{quote(node)}"
