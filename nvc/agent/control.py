"""The control socket: lines in, lines out (nvc.share.protocol), and which caller may send which verb."""

from __future__ import annotations

import asyncio

from nvc.agent import connections, peer
from nvc.agent.state.records import shortage
from nvc.agent.waiting import readable
from nvc.base.errors import AgentError, NvcError, PrivilegeError, reason
from nvc.share import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from nvc.agent.journal import Journal
    from nvc.agent.peer import Peer

    #: A request (checked) and its caller, to the fields of the reply. Raises NvcError.
    Handler = Callable[[dict[str, Any], Peer], Awaitable[dict[str, Any]]]

#: Connections at a time, of root and of all others each: one more is closed at once.
CONNECTIONS = 256
#: Events that wait for a slow reader; then it gets the number of those that it missed.
_WAITING = 1024
#: Connections at a time, those included that are about to be closed.
_ACCEPTED = 4 * CONNECTIONS


class ControlSocket:
    """Serves until it is cancelled. ``handlers``: verb -> handler; ``events`` is served here."""

    def __init__(
        self,
        server: socket.socket,
        handlers: Mapping[str, Handler],
        journal: Journal,
        group: Callable[[], int],
        seconds: float = protocol.TIMEOUT,
    ) -> None:
        self._server = server
        self._handlers = handlers
        self._journal = journal
        self._group = group
        self._seconds = seconds
        #: Connections of root, and of others.
        self._counts = {True: 0, False: 0}
        self._crowded = False

    async def serve(self) -> None:
        with self._server:
            await connections.Connections(self._server, self._connection, self._no_connection, _ACCEPTED).run()

    def _no_connection(self, error: OSError) -> None:
        message = f"control: no client is served now: {reason(error)}"
        self._journal.write("warning", message=message, hint=shortage(error))

    async def _connection(self, connection: socket.socket) -> None:
        with connection:
            try:
                caller = peer.of(connection)
            except OSError:
                return
            is_root = caller.uid == 0
            self._counts[is_root] += 1
            try:
                if self._has_room(is_root=is_root):
                    await self._requests(connection, caller)
            except (NvcError, OSError, TimeoutError) as error:
                if not isinstance(error, ConnectionError):
                    self._journal.write("warning", message=f"control: {str(error) or 'the client does not read'}")
            finally:
                self._counts[is_root] -= 1

    def _has_room(self, *, is_root: bool) -> bool:
        crowded = self._counts[is_root] > CONNECTIONS
        if crowded and not self._crowded:
            whose = "root" if is_root else "others than root"
            self._journal.write("warning", message=f"control: {CONNECTIONS} connections of {whose}")
        self._crowded = crowded
        return not crowded

    async def _requests(self, connection: socket.socket, caller: Peer) -> None:
        """Until the client goes. Raises AgentError, OSError, TimeoutError."""
        lines = _Lines(connection, self._seconds)
        while (line := await lines.next()) is not None:
            try:
                request = protocol.decode(line)
                verb = protocol.check(request)
                self._may(verb, caller)
                if verb.name == "events":
                    await self._events(connection)
                    return
                reply = await self._answer(verb.name, request, caller)
            except NvcError as error:
                reply = protocol.failure(error)
            await self._send(connection, reply)

    async def _answer(self, verb: str, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        handler = self._handlers.get(verb)
        if handler is None:
            raise AgentError(f"this agent does not serve {verb}")
        try:
            return {"ok": True, **await handler(request, caller)}
        except NvcError:
            raise
        except Exception as error:  # a client's request must not end the agent
            self._journal.write("internal-error", verb=verb, message=f"{type(error).__name__}: {error}")
            raise AgentError(
                f"{verb} failed: {type(error).__name__}: {error}", hint="this is a mistake in nvc-py; its log has more"
            ) from error

    def _may(self, verb: protocol.Verb, caller: Peer) -> None:
        if caller.uid == 0:
            return
        group = self._group()
        if not verb.reads or group < 0 or group not in caller.groups:
            allowed = f"root and members of {protocol.GROUP}" if verb.reads else "root"
            raise PrivilegeError(f"{verb.name} is for {allowed}, not for user {caller.uid}")

    async def _send(self, connection: socket.socket, message: dict[str, Any]) -> None:
        try:
            line = protocol.encode(message)
        except AgentError as error:
            line = protocol.encode(protocol.failure(error))
        await connections.send(connection, line, self._seconds)

    async def _events(self, connection: socket.socket) -> None:
        waiting: asyncio.Queue[dict[str, object]] = asyncio.Queue(_WAITING)
        missed = 0

        def told(event: dict[str, object]) -> None:
            nonlocal missed
            try:
                waiting.put_nowait(event)
            except asyncio.QueueFull:
                missed += 1

        gone = asyncio.ensure_future(readable(connection))
        self._journal.listen(told)
        try:
            await self._send(connection, {"ok": True})
            while True:
                getting = asyncio.ensure_future(waiting.get())
                await asyncio.wait((gone, getting), return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    getting.cancel()
                    return
                if missed:
                    await self._send(connection, {"event": "missed", "count": missed})
                    missed = 0
                await self._send(connection, getting.result())
        finally:
            gone.cancel()
            self._journal.leave(told)


class _Lines:
    """Lines of a client. A line that began must end in time; before one begins there is no limit."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._rest = b""
        self._is_first = True

    async def next(self) -> bytes | None:
        """The next line, None at the end. Raises AgentError."""
        until: float | None = None
        loop = asyncio.get_running_loop()
        if b"\n" in self._rest:
            await asyncio.sleep(0)  # nothing else waits when many lines have come at once
        while b"\n" not in self._rest:
            if len(self._rest) > protocol.LIMIT:
                raise AgentError(f"a line longer than {protocol.LIMIT} bytes")
            if self._rest and until is None:
                until = loop.time() + self._seconds
            try:
                # The first line has come with the connection; between two it is the turn of others.
                more = await connections.receive(self._connection, until, at_once=self._is_first)
                self._is_first = False
            except TimeoutError:
                raise AgentError(f"a line did not end within {self._seconds:g} s") from None
            if not more:
                if self._rest:
                    raise AgentError("a client went away in the middle of a line")
                return None
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return line
