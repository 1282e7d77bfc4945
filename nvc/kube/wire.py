"""The kubelet's gRPC interfaces: messages and services, made from the descriptions in ``proto``.

`make native` compiles those into one file of descriptors; classes are made from it when this module is imported. So no
generated source has to fit the installed protobuf: every version from 3.20 on does.

    reply = stub(channel, DRA).NodePrepareResources(message("...NodePrepareResourcesRequest")(claims=[...]))
    server.add_generic_rpc_handlers((handlers(DRA, servicer),))
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from nvc.base.errors import InitializationError
from nvc.base.record import Record

if TYPE_CHECKING:
    from typing import Any

#: Services by their name in ``proto``.
REGISTRATION = "pluginregistration.Registration"
DRA = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH = "v1alpha1.DRAResourceHealth"
DEVICE_PLUGIN, DEVICE_PLUGIN_REGISTRATION = "v1beta1.DevicePlugin", "v1beta1.Registration"
#: The same as HEALTH to newer kubelets.
HEALTH_V1 = "v1.DRAResourceHealth"
FILE = "kubelet.binpb"


class Method(Record):
    """A method of a service. request, reply: message classes. is_stream: it answers with any number of replies."""

    name: str
    request: Any
    reply: Any
    is_stream: bool


class Stub:
    """The methods of a service as attributes, to be called with a request (grpc's callables)."""

    def __init__(self, channel: Any, service: str, methods: tuple[Method, ...]) -> None:
        for method in methods:
            make = channel.unary_stream if method.is_stream else channel.unary_unary
            path = f"/{service}/{method.name}"
            setattr(self, method.name, make(path, method.request.SerializeToString, method.reply.FromString))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def message(name: str) -> Any:
    """The class of a message, by its full name. Raises KeyError."""
    return _class(_pool.FindMessageTypeByName(name))


def methods(service: str) -> tuple[Method, ...]:
    """The methods of a service. Raises KeyError."""
    return tuple(
        Method(row.name, message(row.input_type[1:]), message(row.output_type[1:]), row.server_streaming)
        for row in _services[service].method
    )


def handlers(service: str, servicer: object, name: str = "") -> Any:
    """What a grpc server needs to answer for ``service``: a method of the same name of ``servicer`` for each.

    name: under which the service is offered, where that is another one.
    """
    table = {}
    for method in methods(service):
        make = grpc.unary_stream_rpc_method_handler if method.is_stream else grpc.unary_unary_rpc_method_handler
        table[method.name] = make(
            getattr(servicer, method.name), method.request.FromString, method.reply.SerializeToString
        )
    return grpc.method_handlers_generic_handler(name or service, table)


def stub(channel: Any, service: str, name: str = "") -> Stub:
    """A client of a service. name: as for ``handlers``."""
    return Stub(channel, name or service, methods(service))


def _class(descriptor: Any) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_pool).GetPrototype(descriptor)  # before 4.22


def _read() -> bytes:
    """Beside this module where it is installed, build/kube in a checkout."""
    here = os.path.dirname(os.path.realpath(__file__))
    for directory in (here, f"{os.path.dirname(os.path.dirname(here))}/build/kube"):
        try:
            with open(f"{directory}/{FILE}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            continue
    raise InitializationError(f"{FILE} is not installed", hint="run `make native`, or install the package again")


_pool: Any = descriptor_pool.DescriptorPool()
_services: dict[str, Any] = {}
for _file in descriptor_pb2.FileDescriptorSet.FromString(_read()).file:
    _pool.AddSerializedFile(_file.SerializeToString())
    _services.update({f"{_file.package}.{_service.name}": _service for _service in _file.service})
