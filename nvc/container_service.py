"""The container service: the one process that changes anything. Its start, its handlers and the caller's side."""

from __future__ import annotations

from nvc.container_messages import ApplyReply, ApplyRequest, InspectReply, InspectRequest
from rpc.errors import RemoteError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.log import Log
    from rpc.client import Client


class ContainerClient:
    """The caller's side. Failures of the service become the NvcError that it raised, or say what happened to it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def inspect(self, request: InspectRequest) -> InspectReply:
        """See ``nvc.container.inspect``. Raises ContainerError."""
        try:
            reply: InspectReply = self._client.call("inspect", request)
        except RemoteError as error:
            from nvc.services import raise_remote

            raise_remote(error)
        return reply

    def apply(self, request: ApplyRequest, *, deadline: float) -> int:
        """See ``nvc.apply.apply``. Returns the number of operations that changed something.

        Raises MountError, LdcacheError.
        """
        try:
            reply: ApplyReply = self._client.call("apply", request, deadline=deadline)
        except RemoteError as error:
            from nvc.services import raise_remote

            raise_remote(error)
        return reply.done

    def close(self) -> None:
        """End the service. Harmless when done twice."""
        self._client.close()


def start(*, deadline: float, log: Log) -> ContainerClient:
    """Fork the service. deadline: seconds for an answer. It inherits the debug log."""
    import os

    from nvc.linux import rights
    from nvc.services import CONTAINER, translate
    from rpc.process import start as start_service

    parent = os.getpid()

    def prepare() -> None:
        rights.set_name("nvc:[container]")
        rights.parent_death_signal(parent)
        rights.reduce_permitted()

    def inspect(request: InspectRequest, fds: list[int]) -> InspectReply:
        from nvc.container import inspect

        rights.use("container")
        return inspect(request, log)

    def apply(request: ApplyRequest, fds: list[int]) -> ApplyReply:
        from nvc.apply import apply

        rights.use("mount")
        return ApplyReply(apply(request.container, request.driver_root, request.operations, log))

    handlers = {"inspect": inspect, "apply": apply}
    return ContainerClient(start_service(CONTAINER, handlers, prepare=prepare, deadline=deadline, translate=translate))
