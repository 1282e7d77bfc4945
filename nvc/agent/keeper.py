"""The keeper: a small process that holds what must stay open without an agent. Standard library only; started by path.

A container's listener must stay open while no agent runs: when the last descriptor of it is closed, the kernel answers
every call that waits, and every later one, with ENOSYS. The keeper has a copy of each, and of the agent's sockets. It
also thaws frozen tenants when the agent went away or has not said anything for SILENCE seconds, and lets an agent go
that was killed and is kept in the kernel by a container (``nvc.agent.stalls``).

It speaks packets (SOCK_SEQPACKET) on DIRECTORY/keeper with one agent at a time, root only:

    put NAME (with a descriptor) -> ok      drop NAME -> ok      get -> fd NAME (with a descriptor) ..., end
    put NAME OTHER (with a descriptor) -> ok                     the same, and OTHER is dropped in the same moment
    alive (no answer)                       leave -> ok          the agent ends by its own will, nothing is frozen

A listener that hangs up (its container ended) is forgotten. Without an agent the sockets, and connections that an agent
had accepted (NEW), are kept for HOLD_S seconds only, so that containers then fail with a clear message instead of
waiting; with nothing left to keep, the keeper ends.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SOCKET, LOCK = "keeper", "keeper.lock"
#: Names of what is no container's: the agent's own sockets.
OWN = ("listen", "control")
#: What names of accepted connections begin with. Their other ends hang up at once: runtimes send and go.
NEW = "new-"
SILENCE = 0.5
#: Seconds between two checks whether an agent that sends nothing was killed.
UNDEAD = 1.0
HOLD_S = 30.0
_PACKET = 512
_NOBODY = -1


def is_listener(name: str) -> bool:
    """Whether what has this name is a container's listener."""
    return name not in OWN and not name.startswith(NEW)


class Keeper:
    """All of it: what is kept by name, the socket, the agent that is connected."""

    def __init__(self, directory: str, server: socket.socket) -> None:
        self.directory = directory
        self.server = server
        self.agent: socket.socket | None = None
        self.kept: dict[str, int] = {}
        self.names: dict[int, str] = {}
        #: Its pid, and when it is looked whether it was killed.
        self.pid, self.due = 0, 0.0
        self.heard = time.monotonic()
        self.thawed = True  # nothing to thaw before an agent came
        self.children: set[int] = set()
        self.poll = select.epoll()
        self.poll.register(server, select.EPOLLIN)

    def run(self) -> None:
        """Until there is nothing to keep and no agent."""
        while self.agent is not None or self.kept or time.monotonic() - self.heard < HOLD_S / 10:
            for descriptor, events in self.poll.poll(SILENCE / 4):
                if descriptor == self.server.fileno():
                    self.accept()
                elif self.agent is not None and descriptor == self.agent.fileno():
                    self.serve()
                elif descriptor in self.names and events & (select.EPOLLHUP | select.EPOLLERR):
                    self.drop(self.names[descriptor])
            self.look()

    def look(self) -> None:
        """What is due because of the time."""
        silent = time.monotonic() - self.heard
        if not self.thawed and silent > SILENCE:
            self.thaw()
        if self.agent is not None and silent > SILENCE and time.monotonic() > self.due:
            self.due = time.monotonic() + UNDEAD
            if is_dead(self.pid):
                self.child(self.release)
        if self.agent is None and silent > HOLD_S:
            for name in [name for name in self.kept if not is_listener(name)]:
                self.drop(name)
        for child in tuple(self.children):
            if os.waitpid(child, os.WNOHANG)[0] == child:
                self.children.discard(child)

    def accept(self) -> None:
        connection, _ = self.server.accept()
        pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.geteuid():
            connection.close()
            return
        self.pid = pid
        self.lost()  # the newest counts; the agent's lock lets only one run
        connection.setblocking(True)
        connection.settimeout(1)
        self.agent = connection
        self.heard = time.monotonic()
        self.poll.register(connection, select.EPOLLIN)

    def lost(self) -> None:
        """The agent is gone."""
        if self.agent is not None:
            self.poll.unregister(self.agent)
            self.agent.close()
            self.agent = None
            if not self.thawed:
                self.thaw()

    def serve(self) -> None:
        """One packet."""
        assert self.agent is not None
        descriptors: list[int] = []
        try:
            packet, rights, _, _ = self.agent.recvmsg(_PACKET, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
            for level, kind, data in rights:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors += array.array("i", data[: len(data) // 4 * 4])
            if not packet:
                self.lost()
                return
            self.heard = time.monotonic()
            if packet == b"alive":
                self.thawed = False
            elif packet == b"get":
                for name, descriptor in self.kept.items():
                    socket.send_fds(self.agent, [b"fd " + name.encode()], [descriptor])
                self.agent.send(b"end")
            else:
                self.agent.send(self.change(packet.decode(errors="replace"), descriptors))
        except OSError:
            self.lost()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def change(self, packet: str, descriptors: list[int]) -> bytes:
        word, _, name = packet.partition(" ")
        if word == "put" and name and len(descriptors) == 1:
            name, _, other = name.partition(" ")
            self.drop(name)
            self.drop(other)
            descriptor = descriptors.pop()
            self.kept[name] = descriptor
            self.names[descriptor] = name
            if is_listener(name):
                self.poll.register(descriptor, 0)  # hanging up is always told
        elif word == "drop":
            self.drop(name)
        elif word == "leave":
            self.thawed = True
            for own in OWN:
                self.drop(own)
        else:
            return b"error " + packet[:100].encode()
        return b"ok"

    def drop(self, name: str) -> None:
        descriptor = self.kept.pop(name, _NOBODY)
        if descriptor != _NOBODY:
            del self.names[descriptor]
            if is_listener(name):
                self.poll.unregister(descriptor)
            os.close(descriptor)

    def thaw(self) -> None:
        """In a child, and so is ``release``: the modules that reach the driver would stay in our memory."""
        self.thawed = True
        self.child(self.thaw_now)

    def child(self, work: Callable[[], object]) -> None:
        """Call it in a process of its own."""
        child = os.fork()
        if child:
            self.children.add(child)
            return
        code = 1
        try:
            sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
            work()
            code = 0
        finally:
            os._exit(code)

    def thaw_now(self) -> None:
        from nvc.agent.thaw import thaw

        thaw(self.directory, alone=self.agent is None)

    def release(self) -> None:
        from nvc.agent.stalls import release_undead

        release_undead(self.pid, self.directory)


def is_dead(pid: int) -> bool:
    """Whether a process has ended, though some thread of it may be there still."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError:
        return True


def main(directory: str) -> int:
    """Become the keeper of a directory, unless there is one; 0 in both cases. What went wrong is said on stdout."""
    try:
        server = claim(directory)
    except OSError as error:
        print(f"{error.filename or directory}: {(error.strerror or str(error)).lower()}")
        return 1
    # In the background: the parent waits for this process, and has no other child.
    if server is None or os.fork():
        return 0
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, sys.stdout.fileno())  # the parent reads it to its end
    os.close(null)
    os.setsid()
    os.chdir("/")
    for name in ("SIGINT", "SIGHUP", "SIGPIPE"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("nvc-keeper")
    keeper = Keeper(directory, server)
    keeper.run()
    # Under the lock: no other keeper has put its own there.
    os.unlink(f"{directory}/{SOCKET}")
    return 0


def claim(directory: str) -> socket.socket | None:
    """The keeper's socket, with its lock held until this process ends; None: there is a keeper. Raises OSError."""
    lock = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    path = f"{directory}/{SOCKET}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    os.umask(0o077)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        server.bind(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    server.listen(4)
    return server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
