"""What is said on the sockets of monitors and acceptors (native/supervisor/channel.h), and a connection with one."""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: channel.h: enum channel_operation, and its structs.
(REPLY, START, OPEN, LISTEN, ATTACH, REMOVE, DONE, ADMIT, PUBLISH, REFUSED, JOIN, LEAVE, PROBE, PIDS) = range(14)
PATH, CHANNELS, DESCRIPTORS = 256, 1024, 16
HEAD = struct.Struct("=Ii")
START_PACKET = struct.Struct(f"=IiIiIIQ{PATH}s{PATH}s")
LISTEN_PACKET = struct.Struct("=IiiI")
CONTAINER_PACKET = struct.Struct("=IiiIQ")
ADMISSION = struct.Struct("=IiII")
STATE_PACKET = struct.Struct("=IiIIii")
ATTACH_PACKET = struct.Struct("=IiIIQQ")
CHANNEL = struct.Struct("=IIII")
#: include/linux/err.h: MAX_ERRNO.
_ERRNO_MOST = 4095
#: Seconds for a monitor's answer: most take less than 5 ms; the start of one, longer.
SECONDS = 6.0
#: Seconds for a monitor to make its socket.
_BEGINS_S = 0.5


class Connection:
    """A connection with a monitor. Raises OSError: EPIPE when the monitor is gone, ETIMEDOUT."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(SECONDS)
        #: Requests without an answer: a monitor that was late answers those that timed out first.
        self._unanswered = 0
        #: Of two threads' requests the answers would be counted as late ones: the second would have none.
        self._asking = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def ask(self, packet: bytes, descriptors: Sequence[int] = ()) -> tuple[int, bytes, list[int]]:
        """(result, the reply, descriptors that came with it, the caller's)."""
        with self._asking:
            self.send(packet, descriptors)
            return self.answer()

    def answer(self) -> tuple[int, bytes, list[int]]:
        """Of what was sent last, as ``ask`` returns it."""
        while True:
            try:
                data, found = receive(self._socket)
            except TimeoutError:
                raise OSError(errno.ETIMEDOUT, "the monitor does not answer") from None
            if len(data) < HEAD.size:
                raise OSError(errno.EPIPE, "the monitor is gone")
            self._unanswered -= 1
            if not self._unanswered:
                break
            for one in found:
                os.close(one)
        result = HEAD.unpack_from(data)[1]
        # What a supervisor says may be anything.
        return (result if -_ERRNO_MOST <= result <= 0 else -errno.EPROTO), data, found

    def command(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Ask for what is answered by a result alone. Raises OSError."""
        result, _, found = self.ask(packet, descriptors)
        for one in found:
            os.close(one)
        if result < 0:
            raise OSError(-result, f"supervisor: {os.strerror(-result)}")

    def counters(self) -> int:
        """The tenant's counters, published now: a descriptor, the caller's. Raises OSError."""
        _, _, found = self.ask(HEAD.pack(OPEN, 0))
        for one in found[1:]:
            os.close(one)
        if found:
            return found[0]
        raise OSError(errno.EPROTO, "its monitor speaks another protocol")

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._socket, [packet], list(descriptors))
        self._unanswered += 1


def receive(connected: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and its descriptors, which are the caller's. Raises OSError."""
    data, rights, _, _ = connected.recvmsg(4096, socket.CMSG_SPACE(4 * DESCRIPTORS), socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, content in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) // 4 * 4])
    return data, list(found)


def connect_soon(path: str) -> socket.socket:
    """As ``connect``; a monitor that was started just now makes its socket in some milliseconds. Raises OSError."""
    until = time.monotonic() + _BEGINS_S
    while True:
        try:
            return connect(path)
        except FileNotFoundError:
            if time.monotonic() > until or not os.path.exists(os.path.dirname(path)):
                raise
        time.sleep(0.01)


def connect(path: str) -> socket.socket:
    """Connected with the monitor's socket at ``path``, however long that is. Raises OSError."""
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        made.settimeout(SECONDS)
        made.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    except BaseException:
        made.close()
        raise
    finally:
        os.close(directory)
    return made
