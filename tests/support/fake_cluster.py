"""An API server in this process: claims, slices with their watch, events, nodes; nothing is checked but versions."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_RESOURCE = "/apis/resource.k8s.io/v1"


class FakeCluster:
    """A context manager.

    ignores: fields of a slice's devices that it leaves out, as an API server whose gate is off. refuse: (method, part
    of a path) -> HTTP status. asked: (method, path) of every request. kubernetes: its version. remembered: slices of
    before, which it has in memory; None: it has all.
    """

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        self.slices: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str]] = []
        self.refuse: dict[tuple[str, str], int] = {}
        self.ignores: set[str] = set()
        self.kubernetes = "v1.34.4"
        self.remembered: tuple[str, list[dict[str, Any]]] | None = None
        self.lists: list[str] = []
        self._barrier: tuple[str, threading.Barrier] | None = None
        self._version = 1
        self._changes: list[tuple[int, str, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    def __enter__(self) -> FakeCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; at the same port as before."""
        cluster = self

        class Handler(_Handler):
            api = cluster

        ThreadingHTTPServer.allow_reuse_address = True
        self._closed = False
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Nothing listens; watches end."""
        assert self._server is not None
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, directory: Path) -> str:
        """A file that leads here."""
        path = directory / "kubeconfig"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
            f"clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{self.port}'}}}}]\n"
            "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\n"
        )
        return str(path)

    def add_claim(self, results: list[dict[str, Any]], *, name: str = "claim", config: list[Any] | None = None) -> str:
        """An allocated claim in namespace ``space``; its uid."""
        uid = str(uuid.uuid4())
        rows = [{"driver": "gpu.nvc.dev", "pool": "node-a", "request": "gpu", **row} for row in results]
        devices = {"results": rows, "config": config or []}
        self.claims["space", name] = {
            "metadata": {"name": name, "namespace": "space", "uid": uid, "resourceVersion": self._next()},
            "spec": {},
            "status": {"allocation": {"devices": devices}},
        }
        return uid

    @contextlib.contextmanager
    def together(self, part: str, count: int) -> Iterator[None]:
        """Requests whose path has this part are answered when so many wait. Fails when they do not come."""
        barrier = threading.Barrier(count, timeout=10)
        self._barrier = part, barrier
        yield
        self._barrier = None
        assert not barrier.broken, f"{count} requests of {part} did not come at a time"

    def forget_slices(self) -> None:
        """As a kubelet that starts."""
        with self._changed:
            for name in list(self.slices):
                self._change("DELETED", self.slices.pop(name))

    def put(self, name: str, body: dict[str, Any], kind: str) -> dict[str, Any]:
        body = json.loads(json.dumps(body))
        body["metadata"]["resourceVersion"] = self._next()
        for device in body["spec"]["devices"]:
            for field in self.ignores & device.keys():
                del device[field]
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", "2026-01-01T00:00:00Z")
        self.slices[name] = body
        self._change(kind, body)
        return body

    def watch(self, since: int) -> Any:
        """Changes after a version, None when nothing comes for a while, until it is closed."""
        place = 0
        while True:
            with self._changed:
                if self._closed:
                    return
                new = self._changes[place:]
                place += len(new)
                if not new:
                    self._changed.wait(0.2)
            yield from ((kind, body) for version, kind, body in new if version > since)

    def _change(self, kind: str, body: dict[str, Any]) -> None:
        self._version += 1
        self._changes.append((self._version, kind, body))
        self._changed.notify_all()

    def _next(self) -> str:
        self._version += 1
        return str(self._version)

    def wait(self, path: str, method: str) -> None:
        """As ``together`` says."""
        barrier = self._barrier
        if barrier is not None and method == "GET" and barrier[0] in path:
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier[1].wait()

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def lock(self) -> threading.Condition:
        return self._changed

    @property
    def version(self) -> str:
        return str(self._version)


class _Handler(BaseHTTPRequestHandler):
    api: FakeCluster
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second of two waits for an acknowledgement

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ValueError):
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except OSError:
            pass  # the client has gone

    def do_GET(self) -> None:
        path, query = self._begin()
        if path is None:
            return None
        if query.get("watch") == ["true"] or query.get("watch") == ["True"]:
            return self._stream(int(query.get("resourceVersion", ["0"])[0] or 0))
        with self.api.lock:
            if path == f"{_RESOURCE}/resourceslices":
                self.api.lists.append(query.get("resourceVersion", [""])[0])
                if self.api.lists[-1] == "0" and self.api.remembered is not None:
                    version, items = self.api.remembered
                    return self._answer({"items": items, "metadata": {"resourceVersion": version}})
                wanted = dict(part.split("=") for part in query["fieldSelector"][0].split(","))
                items = [
                    one
                    for one in self.api.slices.values()
                    if one["spec"]["nodeName"] == wanted["spec.nodeName"]
                    and one["spec"]["driver"] == wanted["spec.driver"]
                ]
                return self._answer({"items": items, "metadata": {"resourceVersion": self.api.version}})
            if path == "/version":
                return self._answer({"gitVersion": self.api.kubernetes})
            if path.startswith("/api/v1/nodes/"):
                name = path.rpartition("/")[2]
                return self._answer({"kind": "Node", "metadata": {"name": name, "uid": f"uid-of-{name}"}})
            claim = self.api.claims.get(self._claim(path))
        self._answer(claim) if claim else self._missing()
        return None

    def do_POST(self) -> None:
        path, _ = self._begin()
        if path is None:
            return None
        body = self._body()
        with self.api.lock:
            if path.endswith("/events"):
                self.api.events.append(body)
                return self._answer(body, 201)
            name = body["metadata"]["name"]
            if name in self.api.slices:
                return self._fail(409, "already exists")
            self._answer(self.api.put(name, body, "ADDED"), 201)
        return None

    def do_PUT(self) -> None:
        path, _ = self._begin()
        if path is None:
            return None
        body = self._body()
        with self.api.lock:
            name = path.rpartition("/")[2]
            old = self.api.slices.get(name)
            if old is None:
                return self._missing()
            if old["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
                return self._fail(409, "the object has been modified")
            self._answer(self.api.put(name, body, "MODIFIED"))
        return None

    def do_DELETE(self) -> None:
        path, _ = self._begin()
        if path is None:
            return None
        with self.api.lock:
            found = self.api.slices.pop(path.rpartition("/")[2], None)
            if found is None:
                return self._missing()
            self.api._change("DELETED", found)
        self._answer({})
        return None

    def do_PATCH(self) -> None:
        path, _ = self._begin()
        if path is None:
            return None
        body = self._body()
        with self.api.lock:
            claim = self.api.claims.get(self._claim(path.removesuffix("/status")))
            if claim is None:
                return self._missing()
            if claim["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
                return self._fail(409, "the object has been modified")
            claim["status"].update(body["status"])
            claim["metadata"]["resourceVersion"] = self.api._next()
            self._answer(claim)
        return None

    def _begin(self) -> tuple[str | None, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        if self.api.is_closed:  # a connection that was open before
            self.close_connection = True
            return None, {}
        self.api.asked.append((self.command, parts.path))
        self.api.wait(parts.path, self.command)
        for (method, piece), status in list(self.api.refuse.items()):
            if method in ("", self.command) and piece in parts.path:
                self._body()
                self._fail(status, "refused by the test")
                return None, {}
        return parts.path, parse_qs(parts.query)

    def _body(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        return json.loads(self.rfile.read(length)) if length else {}

    def _claim(self, path: str) -> tuple[str, str]:
        words = path.split("/")
        return words[5], words[7]

    def _answer(self, data: Any, status: int = 200) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _missing(self) -> None:
        self._fail(404, "not found")

    def _fail(self, status: int, message: str) -> None:
        self._answer({"kind": "Status", "code": status, "message": message, "reason": message}, status)

    def _stream(self, since: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for kind, body in self.api.watch(since):
            line = json.dumps({"type": kind, "object": body}).encode() + b"\n"
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True
