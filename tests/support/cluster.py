"""Kubernetes' control plane for tests: etcd, API server, scheduler and controller manager, and a client of the API."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import leftovers
from tests.support.daemons import Daemon

#: An object of the API, or a list of them.
Object = dict[str, Any]
#: Also the address of the service `kubernetes`, which is on the loopback interface: no kube-proxy is needed for it.
SERVICE = "10.98.0.1"
SERVER = f"https://{SERVICE}"
#: Token -> user and groups, as in --token-auth-file. kubelet's is that of its node.
_USERS = {
    "admin": ("admin", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "manager": ("system:kube-controller-manager", "system:masters"),
}
START_SECONDS = 90.0
#: kube-scheduler's own default; its burst is twice that.
SCHEDULER_QPS = 50
#: Of a connection that the server closed before it read the request.
_CLOSED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)
#: What DRA needs where it is not on by default.
GATES = {"1.34": "DRAConsumableCapacity=true", "1.35": "DRAConsumableCapacity=true"}


class ApiError(Exception):
    """What the API server refused. code: HTTP's; the text is its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class _Connection(http.client.HTTPSConnection):
    """Ends with the thread that has it."""

    def __del__(self) -> None:
        self.close()


class Api:
    """A client of the API server with one token. Each thread has a connection, which it keeps."""

    def __init__(self, token: str, server: str = SERVER) -> None:
        self.token, self.server = token, server
        # The server signs its own certificate; nothing else is in this network.
        self._context = ssl._create_unverified_context()
        self._own = threading.local()

    def call(self, method: str, path: str, body: Object | None = None, *, kind: str = "application/json") -> Object:
        """One request. Raises ApiError, and OSError while there is no server."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        status, text = self._answer(method, path, data, headers)
        if status >= 400:
            try:
                message = json.loads(text)["message"]
            except (ValueError, KeyError):
                message = text.decode(errors="replace")
            raise ApiError(status, message)
        try:
            found = json.loads(text)
        except ValueError:
            found = {"text": text.decode(errors="replace")}
        assert isinstance(found, dict)
        return found

    def _answer(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """Status and body. A connection that the server has closed meanwhile takes no request: another one does."""
        while True:
            known = getattr(self._own, "connection", None)
            connection = known or self._connect()
            self._own.connection = None
            try:
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                found = answer.status, answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if known is None or not isinstance(error, _CLOSED):
                    raise OSError(f"{method} {path}: {error!r}") from error
            else:
                self._own.connection = connection
                return found

    def _connect(self) -> _Connection:
        return _Connection(self.server.removeprefix("https://"), timeout=30, context=self._context)

    def get(self, path: str) -> Object:
        return self.call("GET", path)

    def items(self, path: str) -> list[Object]:
        """The objects of a list."""
        found = self.get(path)["items"]
        assert isinstance(found, list)
        return found

    def create(self, path: str, body: Object) -> Object:
        return self.call("POST", path, body)

    def merge(self, path: str, body: Object) -> Object:
        """A merge patch."""
        return self.call("PATCH", path, body, kind="application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Delete; an object that is not there is no error."""
        try:
            self.call("DELETE", path)
        except ApiError as error:
            if error.code != 404:
                raise

    def find(self, path: str) -> Object | None:
        """The object, or None when there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code != 404:
                raise
            return None


def kubeconfig(target: Path, token: str, authority: Path, server: str = SERVER) -> Path:
    """Write a client's configuration. authority: the file of the API server's certificate."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "bed", "user": {"token": token}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "bed"}}],
        "current-context": "bed",
    }
    target.write_text(json.dumps(config))
    target.chmod(0o600)
    return target


class Cluster:
    """The control plane, its state below one directory.

    programs: what tools/kubernetes/build made of a version. port: of the API server; etcd has the two beside it.
    controllers: as for the controller manager's option. scheduler_qps: requests a second that the scheduler's client
    allows itself.
    """

    def __init__(
        self,
        programs: Path,
        node_programs: Path,
        place: Path,
        env: Mapping[str, str],
        nodes: Sequence[str],
        *,
        port: int = 443,
        controllers: str = "*",
        scheduler_qps: int = SCHEDULER_QPS,
    ) -> None:
        self.programs, self.node_programs, self.place = programs, node_programs, place
        self.version = programs.name
        self.gates = GATES.get(self.version.rpartition(".")[0], "")
        usual = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
        self.env = {"PATH": f"{programs}:{node_programs}:{usual}", **env}
        self.daemons: dict[str, Daemon] = {}
        self.server = SERVER if port == 443 else f"{SERVER}:{port}"
        self.port, self.controllers, self.scheduler_qps = port, controllers, scheduler_qps
        self.admin = Api("admin", self.server)
        users = dict(_USERS)
        users |= {f"kubelet-{node}": (f"system:node:{node}", "system:nodes") for node in nodes}
        lines = [f'{token},{user},{user},"{groups}"\n' for token, (user, groups) in users.items()]
        (place / "tokens.csv").write_text("".join(lines))
        self.configs = {token: self.write_config(place / f"{token}.kubeconfig", token) for token in users}
        key = ["openssl", "genrsa", "-out", str(place / "service-account.key"), "2048"]
        subprocess.run(key, check=True, capture_output=True)

    def write_config(self, target: Path, token: str) -> Path:
        """A kubeconfig with this token."""
        return kubeconfig(target, token, self.place / "certificates/apiserver.crt", self.server)

    @property
    def etcd(self) -> str:
        """Where etcd answers clients."""
        return f"http://127.0.0.1:{self.port + 1}"

    def start(self) -> None:
        """All of it. Raises daemons.NotReady."""
        self.start_etcd()
        self.start_server()
        self.start_others()

    def start_etcd(self) -> None:
        words = [
            str(self.node_programs / "debian/usr/bin/etcd"),
            f"--data-dir={self.place}/etcd",
            f"--listen-client-urls={self.etcd}",
            f"--advertise-client-urls={self.etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{self.port + 2}",
            "--unsafe-no-fsync",
        ]
        self.run("etcd", words, lambda: _answers(f"{self.etcd}/health"))

    def start_server(self) -> None:
        """The API server. Raises daemons.NotReady."""
        key = f"{self.place}/service-account.key"
        words = [
            str(self.programs / "kube-apiserver"),
            f"--etcd-servers={self.etcd}",
            "--bind-address=0.0.0.0",
            f"--secure-port={self.port}",
            "--advertise-address=10.99.0.1",
            f"--cert-dir={self.place}/certificates",
            f"--token-auth-file={self.place}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.98.0.0/24",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            *self._gate_words(),
        ]
        self.run("kube-apiserver", words, self.is_ready)

    def start_others(self) -> None:
        """Scheduler and controller manager."""
        self.start_scheduler()
        self.start_manager()

    def start_scheduler(self) -> None:
        client = {
            "kubeconfig": str(self.configs["scheduler"]),
            "qps": self.scheduler_qps,
            "burst": 2 * self.scheduler_qps,
        }
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": client,
        }
        (self.place / "scheduler.json").write_text(json.dumps(config))
        scheduler = [
            str(self.programs / "kube-scheduler"),
            f"--config={self.place}/scheduler.json",
            "--secure-port=0",
            *self._gate_words(),
        ]
        self.run("kube-scheduler", scheduler, lambda: True)

    def start_manager(self) -> None:
        manager = [
            str(self.programs / "kube-controller-manager"),
            f"--kubeconfig={self.configs['manager']}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--service-account-private-key-file={self.place}/service-account.key",
            f"--controllers={self.controllers}",
            f"--root-ca-file={self.place}/certificates/apiserver.crt",
            *self._gate_words(),
        ]
        self.run("kube-controller-manager", manager, lambda: True)

    def is_ready(self) -> bool:
        """Whether the API server serves."""
        try:
            return self.admin.get("/readyz")["text"] == "ok"
        except (OSError, ApiError):
            return False

    def run(self, name: str, words: Sequence[str], ready: Callable[[], bool]) -> None:
        """Start a program, again where it was stopped. Raises daemons.NotReady."""
        self.daemons[name] = Daemon(name, words, self.env, self.place / f"{name}.log")
        self.daemons[name].start(ready, seconds=START_SECONDS)

    def stop(self, *names: str) -> None:
        """End these programs; without names, all of them in the other order."""
        for name in names or tuple(reversed(self.daemons)):
            self.daemons[name].stop()

    def account(self, namespace: str, name: str, pod: str = "") -> Api:
        """A client with a service account's token. pod: the pod of its namespace to which the token is bound."""
        spec: Object = {"expirationSeconds": 3600}
        if pod:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        return Api(self.admin.create(path, {"spec": spec})["status"]["token"], self.server)

    def _gate_words(self) -> list[str]:
        return [f"--feature-gates={self.gates}"] if self.gates else []

    def until(self, holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait for something of the API. Fails with ``what``."""
        assert leftovers.until(holds, seconds=seconds), what

    def log(self, name: str, lines: int = 30) -> str:
        """The end of a program's log."""
        text = (self.place / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def apply(api: Api, objects: Sequence[Object]) -> None:
    """Create or replace objects, as `kubectl apply --server-side` does. Raises ApiError."""
    for one in objects:
        path = path_of(api, one)
        api.call("PATCH", f"{path}?fieldManager=bed&force=true", one, kind="application/apply-patch+yaml")


def path_of(api: Api, one: Object) -> str:
    """Where an object is, by the server's own list of kinds. Raises KeyError for an unknown kind."""
    version = one["apiVersion"]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    kinds = {row["kind"]: row for row in api.get(prefix)["resources"] if "/" not in row["name"]}
    row = kinds[one["kind"]]
    place = f"/namespaces/{one['metadata']['namespace']}" if row["namespaced"] else ""
    return f"{prefix}{place}/{row['name']}/{one['metadata']['name']}"
