"""Requests to an API server: a path's object as data.

Of the official client this takes the configuration (kubeconfig, service account, tokens that are renewed) and the
connections. Its functions for objects have other parameters in each of its versions, and 20 MB of models.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvc.base.errors import InputError, NvcError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: Path and query -> the object; None where there is none (404). Raises NvcError.
    Get = Callable[[str], Any]

#: Seconds to connect, and for an answer.
_TIMEOUT_S = 5.0
_DONE, _MISSING = 200, 404
#: Of one answer. Five thousand nodes have some 50 MB.
_LIMIT = 64 << 20
#: A node's own, where kubectl's are not; the first that there is.
_NODE_FILES = ("/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml", "/etc/kubernetes/kubelet.conf")
_HINT = "--kubeconfig=FILE names one, such as /etc/kubernetes/admin.conf"


def kubeconfig(named: str = "") -> str:
    """The file that says where the API server is: the one that is named, as kubectl looks, or a node's own.

    "" inside of a pod, whose service account says it. Raises InputError.
    """
    if named or os.environ.get("KUBECONFIG"):
        return named or os.environ["KUBECONFIG"]
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return ""
    found = next((path for path in (os.path.expanduser("~/.kube/config"), *_NODE_FILES) if os.path.exists(path)), "")
    if not found:
        raise InputError("no kubeconfig is known", hint=_HINT)
    return found


class Connection:
    """Connections to one API server. May be used from any thread."""

    def __init__(self, path: str) -> None:
        """path: of ``kubeconfig``. Raises InputError for a file that cannot be used."""
        from kubernetes import client, config

        self._settings = client.Configuration()
        try:
            if path:
                config.load_kube_config(path, client_configuration=self._settings)
            else:
                config.load_incluster_config(client_configuration=self._settings)
        # Its classes change with the client's version, YAML's and the file's come as they are.
        except Exception as error:
            raise InputError(f"{path or 'service account'}: {' '.join(str(error).split())}", hint=_HINT) from error
        self._pool = client.ApiClient(self._settings).rest_client.pool_manager
        self.host = self._settings.host

    def request(self, method: str, where: str, **options: Any) -> Any:
        """urllib3's response. where: path and query. options: of urllib3's request.

        Raises urllib3's HTTPError, OSError, ValueError.
        """
        token = self._settings.auth_settings().get("BearerToken", {}).get("value", "")
        headers = {"Accept": "application/json, text/plain", **({"Authorization": token} if token else {})}
        headers |= options.pop("headers", {})
        return self._pool.request(method, f"{self.host.rstrip('/')}{where}", headers=headers, **options)

    def close(self) -> None:
        """End every connection."""
        self._pool.clear()


def connect(path: str) -> Get:
    """path: of ``kubeconfig``. Raises InputError for a file that cannot be used."""
    from urllib3.exceptions import HTTPError

    server = Connection(path)

    def get(where: str) -> Any:
        try:
            answer = server.request("GET", where, timeout=_TIMEOUT_S, retries=False)
        except (HTTPError, OSError, ValueError) as error:
            hint = "is the API server up, and the kubeconfig this cluster's?"
            raise NvcError(f"{server.host} does not answer: {type(error).__name__}", hint=hint) from error
        if answer.status == _MISSING:
            return None
        if answer.status != _DONE:
            raise Refused(f"the API server answers {answer.status} to {where.partition('?')[0]}", answer.status)
        if len(answer.data) > _LIMIT:
            raise NvcError(f"the API server's answer to {where} has more than {_LIMIT >> 20} MiB")
        text = answer.data.decode("utf-8", "replace")
        return text if where.endswith("/metrics") else _decoded(text, where)

    return get


class Refused(NvcError):
    """The API server's answer is an error. status: of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, hint="use a kubeconfig that may read it" if status in (401, 403) else "")
        self.status = status


def _decoded(text: str, where: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        hint = "is another program at this address?"
        raise NvcError(f"the API server's answer to {where} is not JSON: {error}", hint=hint) from error
