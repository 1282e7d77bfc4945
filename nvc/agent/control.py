"""The control socket: lines in, lines out (nvc.guard.protocol), and which caller may send which verb."""

from __future__ import annotations

import asyncio
import socket
import sys

from nvc.agent import peer
from nvc.base.errors import AgentError, NvcError, PrivilegeError
from nvc.guard import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from nvc.agent.journal import Journal
    from nvc.agent.peer import Peer

    #: A request (checked) and its caller, to the fields of the reply. Raises NvcError.
    Handler = Callable[[dict[str, Any], Peer], Awaitable[dict[str, Any]]]

#: Connections at a time, of root and of all others each: one more is closed at once.
CONNECTIONS = 256
#: Events that wait for a slow reader; then it is told how many it missed.
_WAITING = 1024
#: The name in the file system belongs to the maker of the socket. From Python 3.13 on asyncio removes it otherwise.
_STAYS: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


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
        self._server.setblocking(False)
        server = await asyncio.start_unix_server(self._connection, sock=self._server, limit=protocol.LIMIT, **_STAYS)
        try:
            # Not serve_forever(): from Python 3.12 on its end waits until every client has gone.
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            caller = peer.of(writer.get_extra_info("socket"))
        except OSError:
            writer.close()
            return
        is_root = caller.uid == 0
        self._counts[is_root] += 1
        try:
            if self._has_room(is_root=is_root):
                await self._requests(reader, writer, caller)
            writer.close()
            async with asyncio.timeout(self._seconds):
                await writer.wait_closed()
        except (NvcError, OSError, TimeoutError) as error:
            writer.transport.abort()  # what it did not read would keep the connection open
            if not isinstance(error, ConnectionError):
                self._journal.write("warning", message=f"control: {str(error) or 'the client does not read'}")
        finally:
            self._counts[is_root] -= 1
            writer.close()

    def _has_room(self, *, is_root: bool) -> bool:
        crowded = self._counts[is_root] > CONNECTIONS
        if crowded and not self._crowded:
            whose = "root" if is_root else "others than root"
            self._journal.write("warning", message=f"control: {CONNECTIONS} connections of {whose}")
        self._crowded = crowded
        return not crowded

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Peer) -> None:
        """Until the client goes. Raises AgentError, OSError, TimeoutError."""
        lines = _Lines(reader, self._seconds)
        while (line := await lines.next()) is not None:
            try:
                request = protocol.decode(line)
                verb = protocol.check(request)
                self._may(verb, caller)
                if verb.name == "events":
                    await self._events(reader, writer)
                    return
                reply = await self._answer(verb.name, request, caller)
            except NvcError as error:
                reply = protocol.failure(error)
            await self._send(writer, reply)
            await asyncio.sleep(0)  # nothing above waits when many lines have come at once

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

    async def _send(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        try:
            line = protocol.encode(message)
        except AgentError as error:
            line = protocol.encode(protocol.failure(error))
        writer.write(line)
        async with asyncio.timeout(self._seconds):
            await writer.drain()

    async def _events(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[dict[str, object]] = asyncio.Queue(_WAITING)
        missed = 0

        def told(event: dict[str, object]) -> None:
            nonlocal missed
            try:
                waiting.put_nowait(event)
            except asyncio.QueueFull:
                missed += 1

        gone = asyncio.ensure_future(reader.read(1))
        self._journal.listen(told)
        try:
            await self._send(writer, {"ok": True})
            while True:
                getting = asyncio.ensure_future(waiting.get())
                await asyncio.wait((gone, getting), return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    getting.cancel()
                    return
                if missed:
                    await self._send(writer, {"event": "missed", "count": missed})
                    missed = 0
                await self._send(writer, getting.result())
        finally:
            gone.cancel()
            self._journal.leave(told)


class _Lines:
    """Lines of a client. A line that began must end in time; before one begins there is no limit."""

    def __init__(self, reader: asyncio.StreamReader, seconds: float) -> None:
        self._reader = reader
        self._seconds = seconds
        self._rest = b""

    async def next(self) -> bytes | None:
        """The next line, None at the end. Raises AgentError."""
        until: float | None = None
        loop = asyncio.get_running_loop()
        while b"\n" not in self._rest:
            if len(self._rest) > protocol.LIMIT:
                raise AgentError(f"a line longer than {protocol.LIMIT} bytes")
            if self._rest and until is None:
                until = loop.time() + self._seconds
            try:
                async with asyncio.timeout_at(until):
                    more = await self._reader.read(65536)
            except TimeoutError:
                raise AgentError(f"a line did not end within {self._seconds:g} s") from None
            if not more:
                if self._rest:
                    raise AgentError("a client went away in the middle of a line")
                return None
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return line
