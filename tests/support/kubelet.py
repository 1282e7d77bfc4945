"""A kubelet as device plugins see it: it registers them, watches what they have, and asks for devices.

The stubs are those of the product (``nvc.kube.wire``), made from the kubelet's own interface files.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from nvc.kube import wire

_WAIT_S = 30.0


def message(name: str) -> Any:
    return wire.message(f"v1beta1.{name}")


class Kubelet:
    """Listens at ``directory``/device-plugins/kubelet.sock; a context manager.

    plugins: resource -> what it was told about it last. registrations: the requests, in order.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "device-plugins"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.registrations: list[Any] = []
        self.devices: dict[str, dict[str, str]] = {}
        self.topology: dict[str, list[int]] = {}
        self._channels: dict[str, Any] = {}
        self._server: Any = None
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """As the kubelet does: it removes every socket of the directory, and then listens."""
        for path in self.directory.iterdir():
            path.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((wire.handlers(wire.DEVICE_PLUGIN_REGISTRATION, self),))
        self._server.add_insecure_port(f"unix://{self.directory}/kubelet.sock")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(grace=None).wait()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.directory / "kubelet.sock")
        with self._changed:
            channels, self._channels, self.devices = self._channels, {}, {}
        for channel in channels.values():
            channel.close()

    def Register(self, request: Any, context: Any) -> Any:
        assert "v1beta1" == request.version
        resource = request.resource_name
        channel = self._channels[resource] = grpc.insecure_channel(f"unix://{self.directory}/{request.endpoint}")
        threading.Thread(target=self._watch, args=(resource, channel), daemon=True).start()
        with self._changed:
            self.registrations.append(request)
            self._changed.notify_all()
        return message("Empty")()

    def _watch(self, resource: str, channel: Any) -> None:
        stub = wire.stub(channel, wire.DEVICE_PLUGIN)
        try:
            for reply in stub.ListAndWatch(message("Empty")()):
                with self._changed:
                    if self._channels.get(resource) is not channel:
                        return  # of a kubelet that was stopped
                    self.devices[resource] = {device.ID: device.health for device in reply.devices}
                    self.topology.update({d.ID: [node.ID for node in d.topology.nodes] for d in reply.devices})
                    self._changed.notify_all()
        except (grpc.RpcError, ValueError):
            pass  # the plugin ended, or this kubelet does

    def wait(self, condition: Any) -> None:
        """Until ``condition ()`` holds."""
        end = time.monotonic() + _WAIT_S
        with self._changed:
            while not condition():
                assert time.monotonic() < end, (self.registrations, self.devices)
                self._changed.wait(0.1)

    def has(self, resource: str) -> dict[str, str]:
        """Id -> health of a resource, once it was told."""
        self.wait(lambda: resource in self.devices)
        return self.devices[resource]

    def ask(self, resource: str) -> Any:
        """A client of the resource's plugin."""
        return wire.stub(self._channels[resource], wire.DEVICE_PLUGIN)

    def allocate(self, resource: str, *containers: Sequence[str]) -> Any:
        """What each container of a pod gets with these ids."""
        request = message("AllocateRequest")()
        for ids in containers:
            request.container_requests.add(devices_ids=ids)
        return self.ask(resource).Allocate(request, timeout=_WAIT_S).container_responses

    def prefer(self, resource: str, available: Sequence[str], size: int, must: Sequence[str] = ()) -> list[str]:
        request = message("PreferredAllocationRequest")()
        request.container_requests.add(available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size)
        return list(
            self.ask(resource).GetPreferredAllocation(request, timeout=_WAIT_S).container_responses[0].deviceIDs
        )
