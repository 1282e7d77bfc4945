"""Listening sockets of the agent's: a task for each connection, and few turns of the loop.

No asyncio.Server: its transports and streams take a container's three connections a quarter of what it costs the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from nvc.agent.state import records
from nvc.agent.waiting import readable
from nvc.base.errors import AgentError, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

#: Connections that are accepted in one turn; seconds until it is tried again where there can be none.
_AT_ONCE, _AGAIN_S = 64, 0.1
_BACKLOG = 1024


def bind(path: str, kind: int = socket.SOCK_STREAM, *, instead: bool = False) -> socket.socket:
    """A listening socket at ``path`` for root alone, in the place of what is there. Raises AgentError.

    instead: the name is never missing meanwhile; the socket itself then knows another one.
    """
    made = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    name = f"{path}.new" if instead else path
    old = os.umask(0o177)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        made.bind(name)
        made.listen(_BACKLOG)
        if instead:
            os.rename(name, path)
    except OSError as error:
        made.close()
        raise AgentError(f"{path}: {reason(error)}", hint=records.advice(error)) from None
    finally:
        os.umask(old)
    return made


class Connections:
    """serve: what is done with a connection, which it closes. problem: hears why none can be accepted now."""

    def __init__(
        self,
        server: socket.socket,
        serve: Callable[[socket.socket], Coroutine[None, None, None]],
        problem: Callable[[OSError], None],
        most: int,
    ) -> None:
        """most: at a time; others wait in the socket's queue."""
        self._server, self._serve, self._problem, self._most = server, serve, problem, most
        self._is_accepting = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Accept until it is cancelled; what is served goes on."""
        self._server.setblocking(False)
        self._begin()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._most = 0
            self._stop()

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _begin(self) -> None:
        if not self._is_accepting and len(self._tasks) < self._most:
            self._is_accepting = True
            asyncio.get_running_loop().add_reader(self._server, self._accept)

    def _stop(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            asyncio.get_running_loop().remove_reader(self._server)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_AT_ONCE):
            if len(self._tasks) >= self._most:
                self._stop()
                return
            try:
                connection, _ = self._server.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors, most likely
                self._stop()
                loop.call_later(_AGAIN_S, self._begin)
                self._problem(error)
                return
            connection.setblocking(False)
            task = loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin()


async def receive(connection: socket.socket, until: float | None = None, *, at_once: bool = False) -> bytes:
    """What has come, b"" at the end. until: by the loop's clock. at_once: look before others have their turn.

    Raises TimeoutError, OSError.
    """
    while True:
        if at_once:
            try:
                return connection.recv(65536)
            except BlockingIOError:
                pass
        async with asyncio.timeout_at(until):
            await readable(connection)
        at_once = True


async def send(connection: socket.socket, data: bytes, seconds: float) -> None:
    """All of it. Raises TimeoutError, OSError."""
    try:
        sent = connection.send(data)
    except BlockingIOError:
        sent = 0
    if sent < len(data):
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_sendall(connection, data[sent:])
