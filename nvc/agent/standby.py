"""The agent's side of the pre-fork server: its socket, its start, and another one in its place when it is too old.

The socket is the agent's and stays while servers change, so that no client finds it closed between two of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import nvc
from nvc.agent import connections
from nvc.base.errors import AgentError, reason
from nvc.driver.places import CACHE
from nvc.share.protocol import DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Coroutine
    from typing import Any

#: Where clients ask; compiled into native/client (client.h).
RUN = f"{DIRECTORY}/run"
#: The program, beside the launchers that clients become. Without it (a wheel) there are no clients either.
PROGRAM = "nvc-warm"
#: Seconds until a new pre-fork server serves, and between two that fail.
_START_TIMEOUT_S = 15.0
_RESPAWN_DELAY_S = 1.0
#: nvc.prefork.caller says the same; its imports are many.
_UNATTAINABLE = b"unattainable\n"
#: Once: each such start takes longer by that of an interpreter, and nothing else shows it.
_BEYOND = (
    "the pre-fork server may not take over limits, OOM score or niceness of a process that starts a container: its "
    "hooks are Python programs (hint: they are above the agent's, which lacks CAP_SYS_RESOURCE or CAP_SYS_NICE)"
)
#: Seconds that what runs for containers gets at the end of the agent.
LAST_WORK = 30.0


class Standby:
    """``start``, then ``renew`` at will, then ``stop``. report: gets a line when something is not as it should be.

    inventory: the machine's file (``nvc.driver.places.cache_path``).
    """

    def __init__(
        self,
        path: str = RUN,
        report: Callable[[str], None] = lambda line: None,
        library: str = "",
        inventory: str = CACHE,
    ) -> None:
        self._inventory = inventory
        self._path = path
        self._report = report
        self._library = library or str(Path(nvc.__file__).resolve().parents[1])
        self._listener: socket.socket | None = None
        self._current: Process | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def pid(self) -> int:
        """Of the process that serves now; 0 while there is none."""
        return self._current.pid if self._current is not None and self._current.returncode is None else 0

    async def start(self) -> None:
        """Listen and serve, if this installation has clients. Raises AgentError when that cannot be."""
        if not os.path.exists(f"{self._library}/bin/{PROGRAM}"):
            return
        try:
            await self.renew()
        except AgentError:
            self._withdraw()
            raise

    async def renew(self) -> None:
        """Start another, of what is on the disk now; once it serves, the one before finishes its work and goes.

        Raises AgentError when it does not start; the one before stays.
        """
        if self._listener is None:
            self._listener = listen(self._path)
        new = await self._spawn(self._listener)
        before, self._current = self._current, new
        if before is not None and before.returncode is None:
            before.send_signal(signal.SIGTERM)
        self._keep(self._watch(new))

    def reload(self) -> None:
        """Renew in the background, if it serves; what goes wrong is reported."""
        if self._listener is not None:
            self._keep(self._renew_quietly())

    async def _renew_quietly(self) -> None:
        try:
            await self.renew()
        except AgentError as error:
            self._report(str(error))

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Take no more, and wait until what has begun has ended. A second time is nothing."""
        self._stopping = True
        self._withdraw()
        current = self._current
        if current is not None and current.returncode is None:
            current.send_signal(signal.SIGTERM)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=LAST_WORK)
            for task in late:
                task.cancel()

    def _withdraw(self) -> None:
        """No socket: clients help themselves at once."""
        if self._listener is not None:
            try:
                os.unlink(self._path)
            except OSError:
                pass  # a directory that was cleaned
            self._listener.close()
            self._listener = None

    async def _spawn(self, listener: socket.socket) -> Process:
        try:
            process = await asyncio.create_subprocess_exec(
                *command(listener.fileno(), self._library, self._inventory),
                pass_fds=(listener.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                env={"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")},
            )
        except OSError as error:  # in the middle of an upgrade, say
            raise AgentError(f"the pre-fork server does not start: {reason(error)}") from error
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):  # wait_for of Python 3.11 can lose a cancellation
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if line != b"ready\n":
            if process.returncode is None:
                process.kill()
            status = await process.wait()
            raise AgentError(f"the pre-fork server does not start (status {status})", hint="its words are in the log")
        return process

    async def _watch(self, process: Process) -> None:
        """Another one when it stops serving by itself: it is of an older version than the disk, or it died."""
        assert process.stdout is not None
        why = "it died"
        while line := await process.stdout.readline():
            if line != _UNATTAINABLE:
                why = "its files were replaced"
                break
            self._report(_BEYOND)
        while process is self._current and not self._stopping:
            self._report(f"the pre-fork server no longer serves ({why}); starting another")
            try:
                await self.renew()
            except AgentError as error:
                self._report(str(error))
                self._withdraw()
                await asyncio.sleep(_RESPAWN_DELAY_S)
        await process.wait()


def listen(path: str) -> socket.socket:
    """A socket as the server wants it (nvc.agent.connections.bind). Raises AgentError."""
    return connections.bind(path, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK, instead=True)


def command(listener: int, library: str, inventory: str = CACHE) -> list[str]:
    """What is executed for a pre-fork server with that socket; the caller hands the descriptor down."""
    return [f"{library}/bin/{PROGRAM}", str(listener), library, str(os.getpid()), inventory]
