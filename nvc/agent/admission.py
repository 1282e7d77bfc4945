"""Listeners of runtimes, on their way to a supervisor.

Runtimes connect to DIRECTORY/listen. An acceptor (native/supervisor/acceptor.c) accepts there, not the agent: it holds
a listener until some agent has decided. The agent starts an acceptor where there is none, and answers its requests on
DIRECTORY/admit.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import time

from nvc.agent import connections, ending, peer
from nvc.agent.container_state import LIMIT, parse
from nvc.agent.state import records
from nvc.agent.waiting import readable
from nvc.base.errors import AgentError, NvcError, PrivilegeError, reason
from nvc.guard.channel import ADMISSION, ADMIT, HEAD, START, Connection, receive
from nvc.guard.programs import MONITOR, SUPERVISOR, find
from nvc.linux import syscalls
from nvc.linux.fd import Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nvc.agent.container_state import ContainerProcess
    from nvc.agent.journal import Journal

    Admit = Callable[[ContainerProcess, int, Connection], Awaitable[int]]

#: Seconds for an acceptor's request; connections at a time, others wait in the socket's queue: many times those of one
#: tenant (Threads.OF_ONE of nvc/agent/waiting.py).
SECONDS, CONNECTIONS = 5.0, 4096
#: Seconds between two acceptors that are started: one that was needs some milliseconds to take its lock.
_RESTART_S = 1.0
#: Seconds for an acceptor to end: it refuses what waits at its socket first.
_STOP_S = 2.0
#: Of what an acceptor writes down: a process, and its cgroup.
_PENDING_LIMIT = 8192
LOCK = "accept.lock"


class Acceptors:
    """The acceptor of a directory: started where there is none. For the agent's one thread."""

    def __init__(self, directory: str, journal: Journal, given: int = -1) -> None:
        """given: the socket that the service manager opened, which stays there when the agent ends; -1: none.

        Raises InitializationError.
        """
        self._directory = directory
        self._journal = journal
        self._path = f"{directory}/listen"
        self._is_own = given < 0
        self._socket = None if given < 0 else socket.socket(fileno=given)
        #: Of one that the agent before made: while there is a copy, what connects when its acceptor was killed waits.
        self._copy: socket.socket | None = None
        self._programs = find(MONITOR), find(SUPERVISOR)
        self._started: list[subprocess.Popen[bytes]] = []
        self._at = 0.0
        #: Since when nothing accepts at a socket that some process has; 0: one does.
        self._unserved = 0.0
        self._has_looked = False
        #: What of the file system has the name of another process's socket, and that socket's inode.
        self._named: tuple[tuple[int, ...], int] = ((), 0)

    def look(self) -> None:
        """Start one if there is none. Raises AgentError."""
        self._started = [one for one in self._started if one.poll() is None]
        self._end_pending()
        if time.monotonic() - self._at < _RESTART_S:
            return
        pid, inode = self._holder()
        listening = self._listening()
        is_served = bool(pid and listening) and inode == listening
        if self._socket is None and self._is_between(pid, listening):
            return
        if is_served and self._socket is None and not _is_socket(self._copy, listening):
            self._keep(_copy_of_socket(pid, listening))
        if is_served and (self._has_looked or self._is_current(pid)):
            self._has_looked = True
            return
        self._has_looked = True
        if self._socket is None and _is_socket(self._copy, listening):  # what waits at it is lost with its last copy
            self._socket, self._copy = self._copy, None
        if is_served and self._socket is None:
            return
        if pid:  # it listens on a socket that no runtime finds, or is of the package's version before this one
            _terminate(pid)
        if self._socket is None or not listening:
            if self._socket is not None:
                self._socket.close()
            self._socket = connections.bind(self._path)
        self._start(self._socket)

    def close(self) -> None:
        """The agent ends. A socket of its own goes, and its acceptor when it has refused what waits there."""
        if self._is_own:
            try:
                os.unlink(self._path)
            except OSError:
                pass
            until = time.monotonic() + _STOP_S
            with contextlib.suppress(AgentError):
                # The next acceptor may be about to take the lock; it ends by itself where its socket has no name.
                while (pid := self._holder()[0]) and time.monotonic() < until:
                    _terminate(pid)
                    time.sleep(0.01)
        if self._socket is not None:
            self._socket.close()
        self._keep(None)
        for one in self._started:
            one.poll()

    def _is_between(self, pid: int, listening: int) -> bool:
        """Whether one acceptor has let go of the lock, and the next one is about to take it: with another socket in
        the place of theirs what waits there would be lost."""
        if pid or not listening or _is_socket(self._copy, listening):
            self._unserved = 0.0
            return False
        self._unserved = self._unserved or time.monotonic()
        return time.monotonic() - self._unserved < _RESTART_S

    def _keep(self, copy: socket.socket | None) -> None:
        if self._copy is not None:
            self._copy.close()
        self._copy = copy

    def _is_current(self, pid: int) -> bool:
        """Whether it runs the program that is installed: a container that comes gets the acceptor's, and its guard."""
        try:
            return os.path.samefile(f"/proc/{pid}/exe", self._programs[0])
        except OSError:
            return True  # it has ended, and the next look starts one

    def _end_pending(self) -> None:
        """End the processes of listeners that acceptors had when they were killed."""
        place = f"{self._directory}/{records.PENDING}"
        try:
            for name in os.listdir(place):
                if name.isdigit() and not _is_acceptor(int(name)):
                    with open(f"{place}/{name}", encoding="utf-8") as file:
                        first, *cgroups = file.read(_PENDING_LIMIT).splitlines() or [""]
                    os.unlink(f"{place}/{name}")
                    words = first.split()
                    ended = [ending.end_cgroup(line) for line in cgroups]
                    if len(words) == 2 and not ending.has_ended(int(words[0])):
                        ended.append(ending.end_process(int(words[0]), int(words[1])))
                    if len(words) == 2 and any(ended):
                        message = "the acceptor that had its listener was killed"
                        self._journal.write("refused", pid=int(words[0]), ended=True, message=message)
        except (OSError, ValueError):
            return  # with the next look

    def _start(self, listening: socket.socket) -> None:
        words = [self._programs[0], str(listening.fileno()), self._directory, self._programs[1]]
        try:
            made = subprocess.Popen(
                words, pass_fds=(listening.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise AgentError(f"{words[0]}: {reason(error)}", hint="install nvc-py again") from None
        self._started.append(made)
        self._at = time.monotonic()
        self._journal.write("acceptor", pid=made.pid)

    def _listening(self) -> int:
        """The inode of the socket at DIRECTORY/listen; 0: there is none. An acceptor may still have the one before."""
        if self._socket is not None and os.path.exists(self._path):
            return os.fstat(self._socket.fileno()).st_ino
        try:
            found = os.stat(self._path)
        except OSError:
            return 0
        name = found.st_dev, found.st_ino, found.st_ctime_ns
        if self._named[0] != name or not self._named[1]:  # the kernel's list has all sockets: several of each tenant
            self._named = name, inode_of(self._path)
        return self._named[1]

    def _holder(self) -> tuple[int, int]:
        """(pid, inode of its socket) of the acceptor that holds the lock; (0, 0): there is none. Raises AgentError."""
        path = f"{self._directory}/{LOCK}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:  # no acceptor could take it, either
            raise AgentError(f"{path}: {reason(error)}", hint=records.advice(error)) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return 0, 0
        except BlockingIOError:
            words = os.pread(descriptor, 64, 0).split()
            return (int(words[0]), int(words[1])) if len(words) == 2 else (0, 0)
        finally:
            os.close(descriptor)


def inode_of(path: str) -> int:
    """The inode of the socket that is bound to ``path``; 0: there is none, or several were, one after the other."""
    if not os.path.exists(path):
        return 0
    found = set()
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split(maxsplit=7)
            # __SO_ACCEPTCON: connections that were accepted have its path, too.
            if len(words) == 8 and words[3] == "00010000" and words[7].rstrip("\n") == path:
                found.add(int(words[6]))
    return found.pop() if len(found) == 1 else 0


def _is_socket(copy: socket.socket | None, inode: int) -> bool:
    return copy is not None and os.fstat(copy.fileno()).st_ino == inode != 0


def _is_acceptor(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read() == b"nvc-monitor\n"
    except OSError:
        return False


def _copy_of_socket(pid: int, inode: int) -> socket.socket | None:
    """The socket of this inode that an acceptor listens on: the first word of its command line; None: it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            number = int(file.read(64).split(b"\0")[1])
        with Fd(os.pidfd_open(pid)) as process, syscalls.pidfd_getfd(process, number) as copy:
            if os.fstat(copy.fileno()).st_ino == inode:
                return socket.socket(fileno=copy.detach())
    except (OSError, ValueError, IndexError):
        pass
    return None


def _terminate(pid: int) -> None:
    """SIGTERM to an acceptor; what the lock's file says may be older than its holder."""
    if _is_acceptor(pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)


class AdmissionSocket:
    """Answers acceptors' requests for ever. What is wrong with one is logged and ends it only."""

    def __init__(self, server: socket.socket, admit: Admit, journal: Journal, seconds: float = SECONDS) -> None:
        """admit: (process, listener, connection) -> START: the connection is the tenant's now; DONE, REFUSED: what the
        acceptor is told. It owns the listener."""
        self._server = server
        self._admit = admit
        self._journal = journal
        self._seconds = seconds

    async def serve(self) -> None:
        """Until it is cancelled; then requests that are not answered are, too: acceptors ask the next agent."""
        accepted = connections.Connections(self._server, self._one, self._no_connection, CONNECTIONS)
        try:
            await accepted.run()
        finally:
            accepted.cancel()

    def _no_connection(self, error: OSError) -> None:
        message = f"admit: no container is admitted now: {reason(error)}"
        self._journal.write("warning", message=message, hint=records.shortage(error))

    async def _one(self, connection: socket.socket) -> None:
        is_taken = False
        try:
            caller = peer.of(connection)
            if caller.uid:
                raise PrivilegeError(f"admit: user {caller.uid} (pid {caller.pid}) is not root")
            process, listener = await _request(connection, self._seconds)
            acceptor = Connection(connection)
            decision = await self._admit(process, listener, acceptor)
            is_taken = decision == START
            if not is_taken:
                with contextlib.suppress(OSError):  # its process has ended, and the acceptor with it
                    acceptor.send(HEAD.pack(decision, 0))
        except TimeoutError:
            self._journal.write("refused", socket="admit", message=f"no whole request within {self._seconds:g} s")
        except (NvcError, OSError) as error:
            self._journal.write("refused", socket="admit", message=str(error))
        finally:
            if not is_taken:
                connection.close()


async def _request(connection: socket.socket, seconds: float) -> tuple[ContainerProcess, int]:
    """What a runtime sent, and the listener, which is the caller's. Raises AgentError, OSError, TimeoutError."""
    try:
        packet, descriptors = receive(connection)
    except BlockingIOError:
        async with asyncio.timeout(seconds):
            await readable(connection)
        packet, descriptors = receive(connection)
    try:
        if len(packet) != ADMISSION.size or len(descriptors) != 2:
            raise AgentError(f"admit: a packet of {len(packet)} bytes and {len(descriptors)} descriptors")
        operation, _, count, _ = ADMISSION.unpack(packet)
        if operation != ADMIT:
            raise AgentError(f"admit: operation {operation} is not known")
        return parse(os.pread(descriptors[0], LIMIT + 1, 0), count), descriptors.pop()
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
