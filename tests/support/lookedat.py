"""An API server that answers questions from a table, and a node's files: for what only looks at a cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nvc.doctor.finding import Finding
from nvc.kube import api, check_cluster, names

TOKEN = "looking"
RESOURCES = "/apis/resource.k8s.io"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def ask(table: dict[str, Any]) -> Callable[[str], Any]:
    """Answers of an API server: path -> object; a number is an HTTP status."""

    def get(path: str) -> Any:
        found = table.get(path)
        if isinstance(found, int):
            raise api.Refused(f"the API server answers {found} to {path}", found)
        return found

    return get


def bad(found: Iterable[Finding]) -> set[tuple[str, str]]:
    """Level and check of what is wrong."""
    return {(finding.level, finding.check) for finding in found if finding.level in ("warning", "error")}


def listed(*items: dict[str, Any]) -> dict[str, Any]:
    return {"items": list(items)}


def named(name: str, **rest: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **rest}


def device_class(name: str, **spec: Any) -> dict[str, Any]:
    selector = {"cel": {"expression": f'device.driver == "{names.DRIVER}"'}}
    return named(name, spec={"selectors": [selector], **spec})


def slice_of(node: str, gpu: int = 0, count: int = 1, **device: Any) -> dict[str, Any]:
    made = {"name": f"gpu-{gpu}", "allowMultipleAllocations": True, **device}
    spec = {"driver": names.DRIVER, "nodeName": node, "devices": [made]}
    return named(f"{node}-{gpu}", spec={**spec, "pool": {"name": node, "generation": 1, "resourceSliceCount": count}})


def node(name: str, kubelet: str = "v1.36.1", engine: str = "containerd://2.1.4", **resources: str) -> dict[str, Any]:
    info = {"kubeletVersion": kubelet, "containerRuntimeVersion": engine}
    return named(name, status={"nodeInfo": info, "allocatable": {"cpu": "8", **resources}})


def policy(name: str, *, older: bool = False) -> dict[str, Any]:
    """older: as an older chart makes it."""
    condition = check_cluster.NEWER.get(name, ("has-claims", ""))[0]
    return named(name, spec={"matchConditions": [{"name": "has-claims" if older else condition}]})


def cluster(version: str = "v1.36.1") -> dict[str, Any]:
    """Path -> object of a cluster of one node in which all is well."""
    policies = ["nvc-parameters", "nvc-confinement", "nvc-driver-own-node"]
    policies += ["nvc-one-device"] if version.startswith("v1.34.") else []
    return {
        "/version": {"gitVersion": version},
        RESOURCES: {"versions": [{"version": "v1"}, {"version": "v1beta2"}]},
        f"{RESOURCES}/v1/deviceclasses": listed(device_class(names.CLASS_ANY), device_class(names.CLASS_GUARDED)),
        f"{RESOURCES}/v1/resourceslices": listed(slice_of("gpu-1")),
        "/apis/node.k8s.io/v1/runtimeclasses": listed(named(names.RUNTIME_CLASS, handler="nvc")),
        f"{ADMISSION}/validatingadmissionpolicies": listed(*map(policy, policies)),
        f"{ADMISSION}/validatingadmissionpolicybindings": listed(
            *(named(name, spec={"policyName": name}) for name in policies)
        ),
        "/api/v1/nodes": listed(node("gpu-1")),
        "/api/v1/nodes/gpu-1": node("gpu-1"),
        "/api/v1/nodes/gpu-1/proxy/configz": {"kubeletconfig": {"featureGates": {"DRAConsumableCapacity": True}}},
        "/metrics": 'kubernetes_feature_enabled{name="DRAConsumableCapacity",stage="BETA"} 1\n',
    }


@contextmanager
def server(table: dict[str, Any]) -> Iterator[str]:
    """Serves ``table``: a number is an HTTP status, a text itself, an object JSON. The server's URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = table.get(self.path.partition("?")[0], 404)
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                found = 401
            body = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(found if isinstance(found, int) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}"
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def kubeconfig(path: Path, url: str, token: str = TOKEN) -> Path:
    data = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": url}}],
        "users": [{"name": "one", "user": {"token": token}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    }
    path.write_text(json.dumps(data))
    return path
