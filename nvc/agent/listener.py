"""The socket that runtimes send listeners to: one message and its descriptors a connection, root only.

Runtimes send and go. So that an agent which is killed does not take a container's listener along, a connection goes to
the keeper as soon as it is accepted, and its message is only looked at (MSG_PEEK): the next agent reads it again. Of a
message that a socket's buffer cannot hold, the beginning has to be taken.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket

from nvc.agent import peer
from nvc.agent.container_state import LIMIT, parse
from nvc.agent.keeper import NEW
from nvc.base.errors import AgentError, NvcError, PrivilegeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nvc.agent.container_state import ContainerProcess
    from nvc.agent.journal import Journal
    from nvc.agent.keeping import Keeping

    Admit = Callable[[ContainerProcess, int, str], Awaitable[None]]

#: Seconds for the whole message; runtimes send it at once.
SECONDS = 5.0
#: Connections at a time; others wait in the socket's queue.
CONNECTIONS = 64
_DESCRIPTORS = 16
#: asm-generic/socket.h: where the next look begins. Seconds between looks at a message that is not whole.
_SO_PEEK_OFF, _LOOK = 42, 0.01
#: Bytes that every buffer holds.
_PEEKED = 32768
#: What /proc says of a seccomp listener's descriptor.
_LINK = "anon_inode:seccomp notify"


class ListenerSocket:
    """Accepts connections for ever; each is read, checked and given to ``admit`` with the listener's descriptor.

    ``admit`` owns the descriptor from then on. What is wrong with a connection is told to the journal and ends it only.
    """

    def __init__(
        self,
        server: socket.socket,
        admit: Admit,
        journal: Journal,
        keeping: Keeping,
        before: Mapping[str, int] | None = None,
        seconds: float = SECONDS,
    ) -> None:
        """before: connections that another agent accepted, by the keeper's names of them; ours now."""
        self._keeping = keeping
        self._before = dict(before or {})
        self._next = 1 + max((int(name.removeprefix(NEW)) for name in self._before), default=0)
        self._server = server
        self._admit = admit
        self._journal = journal
        self._seconds = seconds
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until it is cancelled; then in-flight messages are, too."""
        loop = asyncio.get_running_loop()
        self._server.setblocking(False)
        for name, number in self._before.items():
            await self._room.acquire()
            self._begin(socket.socket(fileno=number), name)
        try:
            while True:
                await self._room.acquire()
                try:
                    connection, _ = await loop.sock_accept(self._server)
                except OSError as error:
                    self._room.release()
                    self._journal.write("warning", message=f"listen: {error}")
                    await asyncio.sleep(0.1)  # out of descriptors, most likely
                    continue
                name = f"{NEW}{self._next}"
                self._next += 1
                try:
                    self._keeping.put(name, connection.fileno())
                except AgentError:
                    pass  # it went away; another one is started at once
                self._begin(connection, name)
        finally:
            for task in self._tasks:
                task.cancel()

    def _begin(self, connection: socket.socket, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._one(connection, name))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()

    async def _one(self, connection: socket.socket, name: str) -> None:
        with connection:
            try:
                found = await self._message(connection)
                if found is not None:
                    await self._admit(*found, name)
            except asyncio.CancelledError:
                raise  # the agent ends: the next one reads it
            except BaseException:
                self._keeping.drop(name)
                raise
            self._keeping.drop(name)

    async def _message(self, connection: socket.socket) -> tuple[ContainerProcess, int] | None:
        try:
            caller = peer.of(connection)
            if caller.uid:
                raise PrivilegeError(f"listen: user {caller.uid} (pid {caller.pid}) is not root")
            async with asyncio.timeout(self._seconds):
                return await _receive(connection)
        except EOFError:
            pass
        except TimeoutError:
            self._journal.write("refused", socket="listen", message=f"no whole message within {self._seconds:g} s")
        except (NvcError, OSError) as error:
            self._journal.write("refused", socket="listen", message=str(error))
        return None


async def _receive(connection: socket.socket) -> tuple[ContainerProcess, int]:
    """The message and the one descriptor that counts. Raises AgentError, OSError, EOFError."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    data = b""
    descriptors: list[int] = []
    peek = socket.MSG_PEEK
    try:
        while True:
            await _readable(loop, connection)
            try:
                more, rights, flags, _ = connection.recvmsg(
                    65536, socket.CMSG_SPACE(4 * _DESCRIPTORS), peek | socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                if peek and len(data) > _PEEKED:
                    peek = socket.MsgFlag(0)
                    data = b""
                    while descriptors:
                        os.close(descriptors.pop())
                else:
                    await asyncio.sleep(_LOOK)  # what was looked at is still there to be read
                continue
            for level, kind, content in rights:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors += array.array("i", content[: len(content) // 4 * 4])
            if flags & socket.MSG_CTRUNC or len(descriptors) > _DESCRIPTORS:
                raise AgentError(f"a runtime's message has more than {_DESCRIPTORS} descriptors")
            data += more
            process = parse(data, len(descriptors)) if data else None
            if process is not None:
                break
            if not more and not data:
                raise EOFError  # a probe: connected, and sent nothing
            if not more:
                raise AgentError(f"a runtime's message ends after {len(data)} bytes and is not JSON")
            if len(data) > LIMIT:
                raise AgentError("a runtime's message is too long")
        listener = descriptors[process.descriptor]
        if os.readlink(f"/proc/self/fd/{listener}") != _LINK:
            raise AgentError("a runtime's message: its descriptor is no seccomp listener")
        descriptors.remove(listener)
        return process, listener
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


async def _readable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()

    def now() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, now)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
