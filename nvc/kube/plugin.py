"""``nvc-py kube device-plugin``: GPUs and equal shares of them for clusters that have no DRA.

A server for each resource at a socket of its own, registered with the kubelet; both again when the kubelet starts anew,
because it empties the directory. Which CDI device a set of ids is was decided before the first call.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc

from nvc.base.errors import DeviceError, InitializationError, NvcError, UsageError
from nvc.kube import wire
from nvc.kube.names import DEVICE_PLUGINS
from nvc.kube.plugin_cdi import kind
from nvc.kube.plugin_prefer import Place, preferred

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from nvc.kube.plugin_config import PluginConfig
    from nvc.kube.plugin_devices import Resource

API_VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
#: Seconds: between looks at the kubelet's socket, between looks at the GPUs' health, for one answer of the kubelet.
LOOK_S, HEALTH_S, REGISTER_S = 1.0, 5.0, 5.0
#: Streams of kubelets that have gone keep a thread until they are noticed.
_THREADS = 16
#: Of one message to the kubelet or from it; thousands of ids fit.
_OPTIONS = (("grpc.max_receive_message_length", 16 << 20), ("grpc.so_reuseport", 0))
_ANNOTATION = "nvc"
#: Kubernetes: the name in an annotation's key, behind its prefix, has 63 characters at most.
_KEY_LIMIT = 63


class Service:
    """The device plugin API of one resource (k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1).

    places: of GPUs in the machine, by UUID. A request that cannot be granted ends with a message for the pod's event.
    """

    def __init__(self, resource: Resource, config: PluginConfig, places: Mapping[str, Place]) -> None:
        self.resource = resource
        self._config = config
        self._places = dict(places)
        self._ids = dict(resource.ids())
        self._gpu_of = {name: device.gpu for name, device in self._ids.items()}
        self._kind = kind(resource)
        self._changed = threading.Condition()
        self._reasons: dict[str, str] = {}
        self._version = 0
        self._is_over = False

    def set_health(self, reasons: Mapping[str, str]) -> None:
        """reasons: UUID of a GPU -> why no container may get it. All streams get it when it differs."""
        gpus = {device.gpu for device in self.resource.devices}
        mine = {gpu: why for gpu, why in reasons.items() if gpu in gpus}
        with self._changed:
            if mine != self._reasons:
                self._reasons = mine
                self._version += 1
                self._changed.notify_all()

    def end(self) -> None:
        """End all streams."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return _message("DevicePluginOptions")(get_preferred_allocation_available=True)

    def PreStartContainer(self, request: Any, context: Any) -> Any:
        return _message("PreStartContainerResponse")()

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:
        # The thread of a stream that the kubelet left wakes up and ends.
        context.add_callback(self._wake)
        sent = -1
        while True:
            with self._changed:
                while self._version == sent and not self._is_over and context.is_active():
                    self._changed.wait()
                if self._is_over or not context.is_active():
                    return
                sent, reasons = self._version, self._reasons
            yield self._list(reasons)

    def GetPreferredAllocation(self, request: Any, context: Any) -> Any:
        reply = _message("PreferredAllocationResponse")()
        for one in request.container_requests:
            given = list(one.available_deviceIDs), list(one.must_include_deviceIDs), one.allocation_size
            found = preferred(self._gpu_of, self.resource.replicas, *given, self._places)
            reply.container_responses.add(deviceIDs=found)
        return reply

    def Allocate(self, request: Any, context: Any) -> Any:
        reply = _message("AllocateResponse")()
        try:
            for one in request.container_requests:
                self._allocate(list(one.devices_ids), reply.container_responses.add())
        except NvcError as error:
            hint = f"; {error.hint}" if error.hint else ""
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"nvc-py: {error}{hint}")
        return reply

    def _allocate(self, ids: Sequence[str], into: Any) -> None:
        resource = self.resource
        if self._config.only_one and resource.replicas > 1 and len(ids) > 1:
            raise UsageError(
                f"{resource.name}: {len(ids)} are asked for, and failRequestsGreaterThanOne is set",
                hint="ask for 1: more would be no more than one",
            )
        names = [f"{self._kind}={name}" for name in resource.cdi_names(ids, self._ids)]
        for name in ids:
            why = self._reasons.get(self._ids[name].gpu)
            if why:
                raise DeviceError(
                    f"{resource.name}: GPU {self._ids[name].index}: {why}", hint="delete the pod, and it is placed anew"
                )
        if self._config.by_annotation:
            # A container with two resources gets the annotations of both answers.
            key = f"{_ANNOTATION}_{resource.name.replace('/', '_')}"[:_KEY_LIMIT].rstrip("-._")
            into.annotations[f"{self._config.prefix}{key}"] = ",".join(names)
            return
        for name in names:
            into.cdi_devices.add(name=name)

    def _list(self, reasons: Mapping[str, str]) -> Any:
        reply = _message("ListAndWatchResponse")()
        for name, device in self._ids.items():
            one = reply.devices.add(ID=name, health=UNHEALTHY if device.gpu in reasons else HEALTHY)
            numa = self._places.get(device.gpu, Place()).numa
            if numa >= 0:
                one.topology.nodes.add(ID=numa)
        return reply

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Plugin:
    """Serves some resources until ``stop``. directory: the kubelet's. health: why which GPUs must not be given.

    say: gets what happens, as an event and its fields.
    """

    def __init__(
        self,
        services: Sequence[Service],
        directory: str,
        health: Callable[[], Mapping[str, str]],
        say: Callable[..., None],
    ) -> None:
        self._directory = f"{directory}/{DEVICE_PLUGINS}"
        self._health = health
        self._say = say
        self._served = [_Served(service, self._directory) for service in services]
        self._kubelet: tuple[int, ...] = ()
        self._problem = ""

    def run(self, stop: threading.Event) -> None:
        """Raises InitializationError where no socket can be made."""
        next_health = 0.0
        try:
            while not stop.is_set():
                if time.monotonic() >= next_health:
                    reasons = self._health()
                    for served in self._served:
                        served.service.set_health(reasons)
                    next_health = time.monotonic() + HEALTH_S
                self.look()
                stop.wait(LOOK_S)
        finally:
            for served in self._served:
                served.stop()

    def look(self) -> None:
        """Serve and register what the kubelet does not know: at the start, and when it made its socket anew."""
        kubelet = _identity(f"{self._directory}/{KUBELET_SOCKET}")
        lost = [served for served in self._served if not served.is_there()]
        if not kubelet:
            self._tell(f"the kubelet does not listen at {self._directory}/{KUBELET_SOCKET}")
            self._kubelet = ()
            return
        if kubelet == self._kubelet and not lost:
            return
        for served in lost:
            served.start()
        try:
            for served in self._served:
                served.register()
        except grpc.RpcError as error:
            self._tell(f"the kubelet does not register {DEVICE_PLUGINS}: {_reason(error)}")
            return
        self._kubelet, self._problem = kubelet, ""
        for served in self._served:
            resource = served.service.resource
            self._say("registered", resource=resource.name, devices=len(resource.ids()), replicas=resource.replicas)

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._say("warning", message=problem, hint="it is tried again every second")


class _Served:
    """One service with its socket."""

    def __init__(self, service: Service, directory: str) -> None:
        self.service = service
        self._directory = directory
        # A name of the kubelet's directory: a slash stands in every resource's name.
        self._endpoint = f"nvc-{service.resource.name.replace('/', '-')}.sock"
        self._path = f"{directory}/{self._endpoint}"
        self._server: Any = None
        self._identity: tuple[int, ...] = ()

    def is_there(self) -> bool:
        """Whether its socket is where the kubelet looks. Raises InitializationError where another program's is."""
        found = _identity(self._path)
        if self._server is not None and found and found != self._identity:
            raise InitializationError(
                f"another program made {self._path}: it serves {self.service.resource.name} now",
                hint="one device plugin a node: stop the other one",
            )
        return self._server is not None and found == self._identity

    def start(self) -> None:
        """Raises InitializationError."""
        self._halt()
        self._server = grpc.server(ThreadPoolExecutor(_THREADS), options=_OPTIONS)
        self._server.add_generic_rpc_handlers((wire.handlers(wire.DEVICE_PLUGIN, self.service),))
        # Renamed: a socket is there at any time, and a server's end removes its own name, not the next one's socket.
        made = f"{self._directory}/nvc-{os.urandom(8).hex()}.sock"
        before = os.umask(0o077)
        try:
            self._server.add_insecure_port(f"unix://{made}")
            self._server.start()
            os.rename(made, self._path)
        except (OSError, RuntimeError) as error:
            hint = f"is {self._directory} the kubelet's directory? --kubelet names another"
            raise InitializationError(f"no socket can be made at {self._path}: {error}", hint=hint) from error
        finally:
            os.umask(before)
        self._identity = _identity(self._path)

    def register(self) -> None:
        """Raises grpc.RpcError."""
        options = self.service.GetDevicePluginOptions(None, None)
        request = _message("RegisterRequest")(
            version=API_VERSION,
            endpoint=self._endpoint,
            resource_name=self.service.resource.name,
            options=options,
        )
        with grpc.insecure_channel(f"unix://{self._directory}/{KUBELET_SOCKET}") as channel:
            stub = wire.stub(channel, wire.DEVICE_PLUGIN_REGISTRATION)
            stub.Register(request, timeout=REGISTER_S)

    def stop(self) -> None:
        self.service.end()
        self._halt()

    def _halt(self) -> None:
        if self._server is not None:
            # Streams of a kubelet that went are cut; calls that are under way end.
            self._server.stop(grace=None).wait()
            self._server = None
        if self._identity and _identity(self._path) == self._identity:
            with contextlib.suppress(FileNotFoundError):  # a kubelet that starts removes it, too
                os.unlink(self._path)
        self._identity = ()


def _message(name: str) -> Any:
    return wire.message(f"{API_VERSION}.{name}")


def _identity(path: str) -> tuple[int, ...]:
    """What tells this file from one made later at its path; () where there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _reason(error: Any) -> str:
    return f"{error.code().name}: {error.details()}" if hasattr(error, "details") else str(error)
