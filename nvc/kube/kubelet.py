"""The kubelet's side: two sockets, by which it finds the driver and asks it, and the answers.

Two processes of the driver may be registered at once while it is upgraded: each has sockets of its own names.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc

from nvc.base import directories
from nvc.base.errors import InitializationError, NvcError, reason
from nvc.kube import wire
from nvc.kube.names import DRIVER, PLUGINS, REGISTRY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from nvc.kube.prepare import Allotted

#: What is served at the endpoint, as the kubelet writes it when it chooses.
SERVICES = ("v1.DRAPlugin", wire.HEALTH, wire.HEALTH_V1)
_TYPE = "DRAPlugin"
#: Calls at a time; each health stream has one of them for as long as it lasts.
_WORKERS = 12
#: Claims of one call at a time: each waits for the API server and the disk.
_CLAIMS = 4
#: Seconds for calls that are being answered when the process is to end.
_GRACE_S = 5.0
#: Seconds between looks of the kubelet at the registration sockets, and one more: until then it may ask this process,
#: although it knows another one.
_FORGET_S = 2.0
#: Seconds after which health is said again; the kubelet takes silence for unknown after 30 s.
_HEALTH_S = 10.0
_HEALTHY, _UNHEALTHY = 1, 2
_MESSAGE_LIMIT = 1024

_DRA = "k8s.io.kubelet.pkg.apis.dra.v1"
_PREPARE, _PREPARED = (wire.message(f"{_DRA}.NodePrepareResource{end}Response") for end in ("s", ""))
_UNPREPARE, _UNPREPARED = (wire.message(f"{_DRA}.NodeUnprepareResource{end}Response") for end in ("s", ""))
_INFO = wire.message("pluginregistration.PluginInfo")
_NOTED = wire.message("pluginregistration.RegistrationStatusResponse")
_HEALTH = wire.message("v1alpha1.NodeWatchResourcesResponse")


class Work:
    """What the kubelet asks of the driver. Methods raise NvcError, and are called from several threads."""

    def prepare(self, namespace: str, name: str, uid: str) -> Sequence[Allotted]:
        """Make a claim's devices ready."""
        raise NotImplementedError

    def unprepare(self, uid: str) -> None:
        """Take them back; of a claim that is not known too."""
        raise NotImplementedError

    def refused(self, namespace: str, name: str, uid: str, message: str) -> None:
        """A claim was refused."""

    def registered(self) -> None:
        """The kubelet asks this process from now on."""


class HealthBoard:
    """The health of all devices, which streams wait for. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._devices: dict[str, str] = {}
        self._version = 0
        self._closed = False

    def set(self, devices: Mapping[str, str]) -> None:
        """devices: name -> why it is not fit for use, "" for one that is."""
        with self._changed:
            if devices != self._devices:
                self._devices, self._version = dict(devices), self._version + 1
                self._changed.notify_all()

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def stream(self, is_active: Callable[[], bool]) -> Iterator[dict[str, str]]:
        """The whole list, at once, with every change, and from time to time."""
        seen = -1
        while is_active():
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._version != seen, _HEALTH_S)  # noqa: B023
                if self._closed:
                    return
                seen, devices = self._version, dict(self._devices)
            yield devices


class Sockets:
    """A server, and the names of its two sockets. One for both: each server of gRPC's wakes ten times a second.

    kubelet: its directory. instance: "" or a word that no other process of the driver has.
    """

    def __init__(self, kubelet: str, instance: str, pool: str, work: Work, board: HealthBoard, say: Any) -> None:
        suffix = f"-{instance}" if instance else ""
        self.registration = f"{kubelet}/{REGISTRY}/{DRIVER}{suffix}-reg.sock"
        self.endpoint = f"{kubelet}/{PLUGINS}/{DRIVER}/dra{suffix}.sock"
        self._say = say
        self._board = board
        self._forget = _FORGET_S if instance else 0.0
        driver, health = _Driver(pool, work, say), _Health(pool, board)
        # One process a path; without this two could listen at one name.
        self._server = grpc.server(ThreadPoolExecutor(_WORKERS), options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers(
            (
                wire.handlers(wire.DRA, driver),
                wire.handlers(wire.HEALTH, health),
                wire.handlers(wire.HEALTH, health, wire.HEALTH_V1),
                wire.handlers(wire.REGISTRATION, _Registration(self.endpoint, work, say)),
            )
        )

    def start(self) -> None:
        """Serve, then be found. Raises InitializationError."""
        for directory in (os.path.dirname(self.registration), os.path.dirname(self.endpoint)):
            try:
                directories.make(directory)
                _remove_stale(directory, DRIVER if directory.endswith(REGISTRY) else "dra")
            except OSError as error:
                raise InitializationError(
                    f"{directory}: {reason(error)}",
                    hint="--kubelet-dir names the kubelet's directory, /var/lib/kubelet",
                ) from error
        # The kubelet connects as soon as the registration's socket is there, and is answered from the start on.
        for path in (self.endpoint, self.registration):
            if os.path.exists(path):
                raise InitializationError(
                    f"{path}: another process of the driver answers there",
                    hint="end it, or give this one a name of its own: --instance",
                )
            try:
                if not self._server.add_insecure_port(f"unix:{path}"):
                    raise RuntimeError("not bound")
            except RuntimeError as error:
                raise InitializationError(
                    f"{path}: no socket can be made there: {error}",
                    hint="paths of sockets have 107 characters at most; is another driver running?",
                ) from error
        self._server.start()

    def stop(self) -> None:
        """Stop being found, finish what is being answered, end."""
        _unlink(self.registration)
        time.sleep(self._forget)
        self._board.close()
        self._server.stop(_GRACE_S).wait()
        _unlink(self.endpoint)


class _Registration:
    def __init__(self, endpoint: str, work: Work, say: Any) -> None:
        self._endpoint = endpoint
        self._work = work
        self._say = say

    def GetInfo(self, request: Any, context: Any) -> Any:
        return _INFO(type=_TYPE, name=DRIVER, endpoint=self._endpoint, supported_versions=SERVICES)

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        if request.plugin_registered:
            self._say("registered", endpoint=self._endpoint)
            self._work.registered()
        else:
            self._say("registration-refused", message=request.error, hint="nvc-py kube check compares versions")
        return _NOTED()


class _Driver:
    def __init__(self, pool: str, work: Work, say: Any) -> None:
        self._pool = pool
        self._work = work
        self._say = say
        self._threads = ThreadPoolExecutor(_CLAIMS, "claims")

    def NodePrepareResources(self, request: Any, context: Any) -> Any:
        return _PREPARE(claims=self._each(self._prepare, request.claims))

    def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        return _UNPREPARE(claims=self._each(self._unprepare, request.claims))

    def _each(self, answer: Callable[[Any], Any], claims: Sequence[Any]) -> dict[str, Any]:
        answers = self._threads.map(answer, claims) if len(claims) > 1 else map(answer, claims)
        return {claim.uid: found for claim, found in zip(claims, answers, strict=True)}

    def _prepare(self, claim: Any) -> Any:
        begun = time.monotonic()
        try:
            devices = self._work.prepare(claim.namespace, claim.name, claim.uid)
        except NvcError as error:
            return _PREPARED(error=self._refuse("prepare", claim, _text(error)))
        except Exception as error:
            return _PREPARED(error=self._refuse("prepare", claim, _unexpected(error)))
        self._say(
            "prepared",
            claim=f"{claim.namespace}/{claim.name}",
            uid=claim.uid,
            devices=[one.device for one in devices],
            ms=round((time.monotonic() - begun) * 1000, 1),
        )
        return _PREPARED(
            devices=[
                {
                    "request_names": [one.request],
                    "pool_name": self._pool,
                    "device_name": one.device,
                    "cdi_device_ids": one.cdi,
                    **({"share_id": one.share_id} if one.share_id else {}),
                }
                for one in devices
            ]
        )

    def _unprepare(self, claim: Any) -> Any:
        try:
            self._work.unprepare(claim.uid)
        except NvcError as error:
            return _UNPREPARED(error=self._refuse("unprepare", claim, _text(error)))
        except Exception as error:
            return _UNPREPARED(error=self._refuse("unprepare", claim, _unexpected(error)))
        self._say("unprepared", claim=f"{claim.namespace}/{claim.name}", uid=claim.uid)
        return _UNPREPARED()

    def _refuse(self, what: str, claim: Any, message: str) -> str:
        self._say("refused", what=what, claim=f"{claim.namespace}/{claim.name}", uid=claim.uid, message=message)
        if what == "prepare":
            self._work.refused(claim.namespace, claim.name, claim.uid, message)
        return message


class _Health:
    def __init__(self, pool: str, board: HealthBoard) -> None:
        self._pool = pool
        self._board = board

    def NodeWatchResources(self, request: Any, context: Any) -> Iterator[Any]:
        for devices in self._board.stream(context.is_active):
            now = int(time.time())
            yield _HEALTH(
                devices=[
                    {
                        "device": {"pool_name": self._pool, "device_name": name},
                        "health": _UNHEALTHY if problem else _HEALTHY,
                        "last_updated_time": now,
                        "message": problem[:_MESSAGE_LIMIT],
                    }
                    for name, problem in sorted(devices.items())
                ]
            )


def _text(error: NvcError) -> str:
    return f"{error}; {error.hint}" if error.hint else str(error)


def _unexpected(error: Exception) -> str:
    return f"internal error: {type(error).__name__}: {error}; please report it"


def _remove_stale(directory: str, prefix: str) -> None:
    """Sockets of processes of the driver that were killed: nothing answers there, and the kubelet would try."""
    for name in os.listdir(directory):
        if name.startswith(prefix) and name.endswith(".sock"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
                probe.settimeout(1.0)
                try:
                    probe.connect(f"{directory}/{name}")
                except ConnectionRefusedError:
                    _unlink(f"{directory}/{name}")
                except OSError:
                    continue


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
