"""The node's prober (native/supervisor/prober.c): one process that asks the driver what every process holds.

It outlives the agent that starts it. A lock says that there is one; a socket takes an agent's connection; it is started
with the first tenant, and ended when there was none for a while: its client keeps the GPUs awake.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import time

from nvc.base.errors import reason
from nvc.guard import usage
from nvc.guard.channel import HEAD, PIDS, PROBE, REMOVE
from nvc.share.limits import uuid_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SOCKET, LOCK = "prober", "prober.lock"
NAME = "nvc-prober"
#: channel.h: struct channel_probe, struct channel_pids.
PROBE_PACKET, PIDS_MOST = struct.Struct("=IiII512s"), 4096
PIDS_PACKET = struct.Struct(f"=IiII{PIDS_MOST}i")
#: Seconds without a tenant until it is ended; between two starts, and where the driver has no GPU.
IDLE_S, _RESTART_S, _NO_DRIVER_S = 10.0, 1.0, 30.0
#: It writes four times a second, unless the driver keeps it waiting; so long, and it is ended for another one.
STALE_NS = 10_000_000_000
#: Seconds from the end of its connection to its own.
_EXIT_S = 0.1
#: prober.c: NO_DRIVER.
_NO_DRIVER = 3


class Prober:
    """The prober of a directory. For one thread; nothing here waits for it or for the driver."""

    def __init__(
        self, program: str, page: int, user: int, devices: str, directory: str, files: Callable[[int], list[int]]
    ) -> None:
        """page: the usage page, the caller's. user: uid and gid that no account has. devices: of the driver's nodes.

        directory: the agent's; "": it ends with this object. files: a tenant's number -> descriptors of its counters
        and of what tells of them, the callee's; raises OSError where there is no such tenant.
        """
        self._program, self._page, self._user, self._devices = program, page, user, devices
        self._directory, self._files = directory, files
        self._tenants: dict[int, tuple[str, ...]] = {}
        self._waiting: set[int] = set()
        self._pids: tuple[int, ...] = ()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = self._since = 0.0
        self._needed_at = -IDLE_S
        self._has_looked = False

    def tenant(self, number: int, uuids: Sequence[str]) -> None:
        """A tenant came; uuids: of its GPUs. Sent at once, so that its supervisor need not ask the driver itself."""
        self._tenants[number] = tuple(uuids)
        self._waiting.add(number)
        with contextlib.suppress(OSError):  # the next look says what is wrong
            self._tell()

    def need(self) -> None:
        """A tenant is about to come."""
        self._needed_at = time.monotonic()

    def gone(self, number: int) -> None:
        self._tenants.pop(number, None)
        self._waiting.add(number)

    def name(self, pids: Iterable[int]) -> None:
        """Ask about these processes too until the next call. A change is asked about soon."""
        found = tuple(sorted(pids))[:PIDS_MOST]
        if found or self._pids:
            self._pids = found
            self._send_pids()

    def look(self) -> str:
        """Some times a second: start one where there is none, tell it of tenants. A problem, or "". Raises nothing."""
        now = time.monotonic()
        if self._tenants:
            self._needed_at = now
        try:
            problem = self._look_at(now) or self._end_another(now)
            if self._connection is None and now - self._needed_at < IDLE_S and now >= self._start_at:
                self._start(now)
            elif self._connection is not None and now - self._needed_at > IDLE_S:
                self._end()
            self._tell()
        except OSError as error:
            return f"{NAME}: {reason(error)}"
        return problem

    def close(self) -> None:
        """Let go of it. With a directory and tenants it goes on."""
        if self._directory and self._tenants:
            self._drop()
        else:
            self._end()

    def _look_at(self, now: float) -> str:
        """Whether it lives and writes. Raises OSError."""
        if self._connection is None:
            return ""
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        if poll.poll(0):
            code = self._code()
            self._drop()
            self._start_at = now + (_NO_DRIVER_S if code == _NO_DRIVER else _RESTART_S)
            if code == _NO_DRIVER:
                return f"{NAME}: the driver has no GPU at {self._devices}; supervisors ask about usage by themselves"
            how = "" if code is None else f" (signal {-code})" if code < 0 else f" (status {code})"
            return f"{NAME} ended{how}; another one is started"
        if self._process is None and usage.is_foreign(self._page):
            self._end()
            self._start_at = now + _RESTART_S
            return f"{NAME} is of another version; another one is started"
        written = max(usage.written_ns(self._page), int(self._since * 1e9))
        if time.monotonic_ns() - written > STALE_NS:
            self._kill()
            return f"{NAME} did not write for {STALE_NS // 10**9} s; another one is started"
        return ""

    def _end_another(self, now: float) -> str:
        """At the first look: the prober of another version of the package, which an agent before this one started."""
        if self._has_looked or not self._directory:
            return ""
        self._has_looked = True
        with contextlib.suppress(OSError):
            if not os.path.samefile(f"/proc/{usage.prober_pid(self._page)}/exe", self._program):
                self._start_at = now + _EXIT_S
                if self._kill():
                    return f"{NAME} is of another version than the agent; another one is started"
        return ""

    def _code(self) -> int | None:
        """How it ended, some milliseconds after its connection; None: another agent started it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_EXIT_S) if self._process is not None else None
        return None

    def _start(self, now: float) -> None:
        """Connect with the one that there is, or with a new one. Raises OSError."""
        self._start_at, self._since = now + _RESTART_S, now
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        own.setblocking(False)
        try:
            with other:
                if self._directory:
                    self._connect(other)
                else:
                    self._spawn([other.fileno(), self._page])
        except BaseException:
            own.close()
            raise
        self._connection = own
        self._waiting = set(self._tenants)
        self._send_pids()

    def _connect(self, connection: socket.socket) -> None:
        """Give it to the prober of the directory, which is started where there is none. Raises OSError."""
        path = f"{self._directory}/{SOCKET}"
        lock = self._lock()
        if lock >= 0:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as served:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                    old = os.umask(0o177)
                    try:
                        served.bind(path)
                    finally:
                        os.umask(old)
                    self._spawn([served.fileno(), self._page, lock])
            finally:
                os.close(lock)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(path)
            socket.send_fds(sender, [HEAD.pack(PROBE, 0)], [connection.fileno()])

    def _lock(self) -> int:
        """The lock, which a new prober holds from then on; -1: another one holds it. Raises OSError."""
        path = f"{self._directory}/{LOCK}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno == errno.EWOULDBLOCK:
                return -1
            raise
        return lock

    def _spawn(self, passed: list[int]) -> None:
        """passed: the socket, the page, and what it holds besides. Raises OSError."""
        self._process = subprocess.Popen(
            [self._program, *map(str, passed[:2]), self._devices, str(self._user), self._directory],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _tell(self) -> None:
        """Of tenants that came and went; what it cannot take now waits. Raises OSError."""
        for number in sorted(self._waiting):
            if self._connection is None:
                return
            uuids = self._tenants.get(number)
            packed = b"".join(map(uuid_bytes, uuids or ()))
            data = PROBE_PACKET.pack(PROBE, 0, number, len(packed) // 16, packed)
            try:
                descriptors = self._files(number) if uuids is not None else []
                socket.send_fds(self._connection, [data], descriptors)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EPIPE, errno.ECONNRESET):
                    raise
            self._waiting.discard(number)

    def _send_pids(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):  # those of the next call
                padded = (*self._pids, *(0 for _ in range(PIDS_MOST - len(self._pids))))
                self._connection.send(PIDS_PACKET.pack(PIDS, 0, len(self._pids), 0, *padded))

    def _kill(self) -> bool:
        """One that hangs; in a call of the driver it ends when that does, and holds the lock until then."""
        is_killed = False
        pid = self._process.pid if self._process is not None else usage.prober_pid(self._page)
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                with open(f"/proc/{pid}/comm", "rb") as file:
                    if file.read() == f"{NAME}\n".encode():
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                        is_killed = True
            finally:
                os.close(pidfd)
        self._drop()
        return is_killed

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        if self._process is not None and self._process.poll() is not None:
            self._process = None

    def _end(self) -> None:
        if self._connection is None:
            return
        with contextlib.suppress(OSError):
            self._connection.send(HEAD.pack(REMOVE, 0))
        process = self._process
        self._drop()
        if process is not None and not self._directory:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        self._process = None
