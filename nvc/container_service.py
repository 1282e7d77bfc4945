"""The container service: the one process that changes anything. Its start, its handlers and the caller's side.

It is forked before what it works with is imported: both processes then import at the same time, each its own half.
"""

from __future__ import annotations

import os

from nvc.container_messages import ApplyReply, ApplyRequest, InspectReply, InspectRequest
from nvc.container_verbs import CONTAINER
from nvc.errors import ContainerError, reason
from nvc.verbs import by_phase, raise_remote, translate
from rpc.errors import RemoteError
from rpc.process import start as start_service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from nvc.container import Located
    from nvc.log import Log
    from rpc.client import Client

    T = TypeVar("T")


#: Gives a service that was forked before it was known what for, or None (``nvc.agent.warm_service``).
in_advance: Callable[[float, Log], Client | None] | None = None


class ContainerClient:
    """The caller's side. Failures of the service become the NvcError that it raised, or say what happened to it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def inspect(self, request: InspectRequest) -> InspectReply:
        """See ``nvc.container.inspect``. Raises ContainerError."""
        return self.begin_inspect(request)()

    def begin_inspect(self, request: InspectRequest) -> Callable[[], InspectReply]:
        """Have the container looked up; calling the result gives the answer. See ``nvc.container.inspect``.

        Both raise ContainerError.
        """
        pending = _translated(lambda: self._client.begin("inspect", request))

        def answer() -> InspectReply:
            reply: InspectReply = _translated(pending.result)[0]
            return reply

        return answer

    def apply(self, request: ApplyRequest, *, deadline: float) -> int:
        """See ``nvc.apply.apply``. Returns the number of operations that changed something.

        Raises MountError, LdcacheError.
        """
        reply: ApplyReply = _translated(lambda: self._client.call("apply", request, deadline=deadline))
        return reply.done

    def close(self) -> None:
        """End the service. Harmless when done twice."""
        self._client.close()


def _translated(function: Callable[[], T]) -> T:
    try:
        return function()
    except RemoteError as error:
        raise_remote(error, CONTAINER)


class Handlers:
    """Runs in the helper. What ``inspect`` pinned is what ``apply`` works on: a later lookup could find another."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._parent = os.getpid()
        self._located: Located | None = None

    def prepare(self) -> None:
        """Name, parent-death signal, and no more rights than the phases need."""
        from nvc.linux import procfd, rights

        rights.set_name("nvc:[container]")
        # SIGTERM, not SIGKILL: a change that has begun is taken back.
        rights.parent_death_signal(self._parent, 15)
        # What the caller's umask hides would be hidden in the container too.
        os.umask(0o022)
        procfd.pin()
        rights.reduce_permitted()

    def inspect(self, request: InspectRequest, fds: list[int]) -> InspectReply:
        from nvc.container import inspect

        self._located = inspect(request, self._log)
        return self._located.reply()

    def let_go(self) -> None:
        """Of everything that is the caller's or the container's: what is left of this process is its memory."""
        if self._located is not None:
            self._located.close()
        os.chdir("/")
        os.closerange(0, 3)
        self._log.close()

    def get_ready(self) -> None:
        """While the caller plans: what ``apply`` will need whatever the plan is. Importing is most of it."""
        import nvc.apply  # noqa: F401 -- so that it is there when apply is called
        from nvc.linux import mounts

        mounts.modern()

    def apply(self, request: ApplyRequest, fds: list[int]) -> ApplyReply:
        if self._located is None:
            raise ContainerError("invalid argument: no container was looked up")
        from nvc.apply import apply

        return ApplyReply(apply(self._located, request.driver_root, request.operations, self._log))


def _use(phase: str) -> None:
    from nvc.linux.rights import use

    use(phase)


def fork(handlers: Handlers, log: Log, *, prepare: Callable[[], None], deadline: float) -> Client:
    """Fork the service. Raises OSError."""
    return start_service(
        CONTAINER,
        by_phase(CONTAINER, {"inspect": handlers.inspect, "apply": handlers.apply}, _use, log),
        prepare=prepare,
        deadline=deadline,
        translate=translate,
        idle=handlers.get_ready,
        farewell=handlers.let_go,
    )


def start(*, deadline: float, log: Log) -> ContainerClient:
    """Fork the service. deadline: seconds for an answer. It inherits the debug log. Raises ContainerError."""
    client = in_advance(deadline, log) if in_advance is not None else None
    if client is None:
        handlers = Handlers(log)
        try:
            client = fork(handlers, log, prepare=handlers.prepare, deadline=deadline)
        except OSError as error:
            raise ContainerError(f"the container service cannot be started: {reason(error)}") from error
    return ContainerClient(client)
