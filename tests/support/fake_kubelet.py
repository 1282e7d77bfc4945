"""What a kubelet asks of a driver of claims: finds it by its registration socket, and calls it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc

from nvc.kube import wire

DRA = "k8s.io.kubelet.pkg.apis.dra.v1"
SECONDS = 20


class FakeKubelet:
    """directory: as /var/lib/kubelet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def registrations(self) -> list[Path]:
        """Sockets in its directory, the oldest first."""
        return sorted(self.directory.glob("plugins_registry/*-reg.sock"), key=lambda path: path.stat().st_ctime_ns)

    def register(self, path: Path | None = None) -> Any:
        """Ask one of the sockets what is behind it, and accept that."""
        path = path or self.registrations()[-1]
        with grpc.insecure_channel(f"unix:{path}") as channel:
            stub = wire.stub(channel, wire.REGISTRATION)
            info = stub.GetInfo(wire.message("pluginregistration.InfoRequest")(), timeout=SECONDS)
            status = wire.message("pluginregistration.RegistrationStatus")(plugin_registered=True)
            stub.NotifyRegistrationStatus(status, timeout=SECONDS)
        return info

    def prepare(self, *claims: tuple[str, str], endpoint: str = "") -> dict[str, Any]:
        """claims: (name, uid) in namespace ``space``. The answer of each, by uid."""
        return self._call("NodePrepareResources", claims, endpoint)

    def unprepare(self, *claims: tuple[str, str], endpoint: str = "") -> dict[str, Any]:
        return self._call("NodeUnprepareResources", claims, endpoint)

    def health(self, endpoint: str = "", name: str = wire.HEALTH_V1) -> Iterable[dict[str, int]]:
        """The health of each device, as the stream says it."""
        with grpc.insecure_channel(f"unix:{endpoint or self._endpoint()}") as channel:
            watch = wire.stub(channel, wire.HEALTH, name).NodeWatchResources
            for answer in watch(wire.message("v1alpha1.NodeWatchResourcesRequest")(), timeout=SECONDS):
                yield {one.device.device_name: one.health for one in answer.devices}

    def _call(self, method: str, claims: Iterable[tuple[str, str]], endpoint: str) -> dict[str, Any]:
        request = wire.message(f"{DRA}.{method}Request")(
            claims=[{"namespace": "space", "name": name, "uid": uid} for name, uid in claims]
        )
        with grpc.insecure_channel(f"unix:{endpoint or self._endpoint()}") as channel:
            return dict(getattr(wire.stub(channel, wire.DRA), method)(request, timeout=SECONDS).claims)

    def _endpoint(self) -> str:
        return str(self.register().endpoint)
