"""The container service: the one process that changes anything. Its start, its handlers and the caller's side.

It is forked before its imports, so that both processes import at the same time, each what it needs.
"""

from __future__ import annotations

import os

from nvc.base import budgets
from nvc.base.errors import ContainerError, MountError, reason
from nvc.base.verbs import by_phase, raise_remote, translate
from nvc.container.messages import ApplyReply, ApplyRequest, InspectReply, InspectRequest
from nvc.container.operations import decode, encode
from nvc.container.verbs import CONTAINER
from rpc import channel, codec, stop
from rpc.errors import ChannelError, RemoteError
from rpc.process import start as start_service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from nvc.base.log import Log
    from nvc.base.verbs import HelperService
    from nvc.container.lookup import Located
    from nvc.container.operations import Operation
    from rpc.channel import Channel
    from rpc.client import Client, Pending
    from rpc.server import Handler

    T = TypeVar("T")


#: Returns a service that was forked before its request arrived, or None. Arguments as those of ``start``.
in_advance: Callable[[float, Log, bool], ContainerClient | None] | None = None


class ContainerClient:
    """The caller's side. A failed call raises the NvcError of the service, or one that says how the service failed.

    wait: whether ``close`` waits for the exit of the process.
    """

    def __init__(self, client: Client, *, wait: bool = True) -> None:
        self._client = client
        self._wait = wait

    def inspect(self, request: InspectRequest) -> InspectReply:
        """See ``nvc.container.lookup.inspect``. Raises ContainerError."""
        return self.begin_inspect(request)()

    def begin_inspect(self, request: InspectRequest) -> Callable[[], InspectReply]:
        """Send the request; calling the result waits for the reply. See ``nvc.container.lookup.inspect``.

        Both raise ContainerError.
        """
        pending = _translated(lambda: self._client.begin("inspect", request))

        def answer() -> InspectReply:
            reply: InspectReply = _translated(pending.result)[0]
            return reply

        return answer

    def apply(self, request: ApplyRequest, *, deadline: float, last: bool = False) -> int:
        """See ``nvc.container.apply.apply``. Returns the number of operations that changed something.

        last: no other call follows. Raises MountError, LdcacheError.
        """
        pending = _translated(lambda: self._client.begin("apply", request, deadline=deadline))
        if last:
            self._client.finish_requests()
        reply: ApplyReply = _translated(pending.result)[0]
        return reply.done

    def begin_apply(self, request: ApplyRequest, *, deadline: float) -> Applying:
        """Begin with the first part of a plan; ``Applying.finish`` has the rest. Raises MountError, OSError."""
        ours, theirs = channel.pair()
        try:
            pending = _translated(lambda: self._client.begin("apply", request, [theirs.fileno()], deadline))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return Applying(request.operations, self._client, pending, ours)

    def close(self) -> None:
        """End the service. May be repeated."""
        self._client.close(wait=self._wait)


class Applying:
    """An ``apply`` that has begun with ``operations``. Either method is to be called, before another of the client's.

    deadline: seconds from now.
    """

    def __init__(self, operations: tuple[Operation, ...], client: Client, pending: Pending, end: Channel) -> None:
        self.operations = operations
        self._client = client
        self._pending = pending
        self._end = end

    def finish(self, rest: tuple[Operation, ...], *, deadline: float, last: bool = False) -> int:
        """Have the rest of the plan applied too. As ``ContainerClient.apply``."""
        self._pending.allow(deadline)
        try:
            self._end.send(codec.dumps(encode(rest)), (), self._pending.until)
        except (ChannelError, OSError):
            pass  # it failed before, and its answer says why
        finally:
            self._end.close()
        if last:
            self._client.finish_requests()
        reply: ApplyReply = _translated(self._pending.result)[0]
        return reply.done

    def abandon(self, *, deadline: float) -> None:
        """Have everything undone, and wait for that."""
        self._end.close()
        self._pending.allow(deadline)
        try:
            self._pending.result()
        except RemoteError:
            pass


def _translated(function: Callable[[], T]) -> T:
    try:
        return function()
    except RemoteError as error:
        raise_remote(error, CONTAINER)


class Handlers:
    """Runs in the helper. ``apply`` uses the descriptors of ``inspect``: a second lookup could find another."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._parent = os.getpid()
        self._located: Located | None = None

    def prepare(self) -> None:
        """Name, parent-death signal, no more rights than the phases need, and the process that will be ldconfig."""
        from nvc.linux import process, procfd, rights

        rights.set_name("nvc:[container]")
        # SIGTERM, not SIGKILL: changes are undone first.
        rights.parent_death_signal(self._parent, 15)
        process.limit_life()
        # The caller's umask must not restrict files in the container.
        os.umask(0o022)
        procfd.pin()
        rights.reduce_permitted()
        # Before the imports that it does not need, and would copy.
        from nvc.container.ldcache import program

        program.in_advance()

    def inspect(self, request: InspectRequest, fds: list[int]) -> InspectReply:
        from nvc.container.lookup import inspect

        limit()
        self._located = inspect(request, self._log)
        return self._located.reply()

    def release(self, end: int) -> None:
        """Close everything but ``end``, also what an operation left open; this process keeps only its memory."""
        from nvc.container.ldcache import process
        from nvc.linux.process import close_all_but

        unused = process.take()
        if unused is not None:
            unused.close()
        os.chdir("/")
        close_all_but(end)

    def get_ready(self) -> None:
        """While the caller plans, import what ``apply`` needs whatever the plan is."""
        import nvc.container.apply  # noqa: F401

    def apply(self, request: ApplyRequest, fds: list[int]) -> ApplyReply:
        if self._located is None:
            raise ContainerError("invalid argument: no container was looked up")
        from nvc.container.apply import apply

        if not fds:
            return ApplyReply(apply(self._located, request.driver_root, request.operations, self._log))
        end = channel.of(fds.pop())
        try:
            done = apply(self._located, request.driver_root, request.operations, self._log, lambda: _rest(end))
            return ApplyReply(done)
        finally:
            end.close()


def _rest(end: Channel) -> tuple[Operation, ...]:
    """The rest of a plan, once its caller knows it. Raises MountError where there is none: all is to be undone."""
    stop.pause()
    try:
        received = end.receive()
    finally:
        stop.resume()
    if received is None:
        raise MountError("the plan was given up")
    channel.close_all(received[1])
    return decode(codec.loads(received[0]))


def limit() -> None:
    """Have the container service's budget from now on. Not when the process begins: one that waited has its caller's
    limits only when it has a request. What it has of the process that forked it comes on top.
    """
    from nvc.linux import const, memory, syscalls

    private = budgets.CONTAINER.memory + memory.private_bytes()
    for kind, value in ((const.RLIMIT_DATA, private), (const.RLIMIT_CPU, budgets.CONTAINER.cpu)):
        soft, hard = syscalls.prlimit(kind)
        if soft > value:
            # The hard limit stays: where it was not ours to lower, a caller's could not be taken over.
            syscalls.prlimit(kind, (value, hard))


def _use(phase: str) -> None:
    from nvc.linux.rights import use

    use(phase)


def fork(
    handlers: Handlers,
    log: Log,
    *,
    prepare: Callable[[], None],
    deadline: float,
    service: HelperService = CONTAINER,
    more: Mapping[str, Handler] | None = None,
) -> Client:
    """Fork the service. service: its verbs, where it has others too; more: those. Raises OSError."""
    return start_service(
        service,
        by_phase(service, {"inspect": handlers.inspect, "apply": handlers.apply, **(more or {})}, _use, log),
        prepare=prepare,
        deadline=deadline,
        translate=translate,
        idle=handlers.get_ready,
        on_shutdown=handlers.release,
    )


def start(*, deadline: float, log: Log, wait: bool = True) -> ContainerClient:
    """Fork the service. deadline: seconds for an answer. It inherits the debug log. Raises ContainerError.

    wait: whether to wait for its exit at the end, and not only until it has let go of everything.
    """
    early = in_advance(deadline, log, wait) if in_advance is not None else None
    if early is not None:
        return early
    handlers = Handlers(log)
    try:
        return ContainerClient(fork(handlers, log, prepare=handlers.prepare, deadline=deadline), wait=wait)
    except OSError as error:
        raise ContainerError(f"the container service cannot be started: {reason(error)}") from error
