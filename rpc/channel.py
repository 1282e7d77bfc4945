"""One end of a SOCK_SEQPACKET pair: whole messages with descriptors, or nothing.

``_socket`` is used because ``socket`` costs as much as the rest of the start-up (it builds enums), and because its
``recv_fds`` drops the flags argument in Python 3.11, so descriptors would come without close-on-exec.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import stat
import struct
import time

from rpc.errors import ChannelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Descriptors that one message may carry, as much as any verb needs. The kernel's own limit is 253 (SCM_MAX_FD).
MAX_FDS = 16
#: A packet must fit the socket's send buffer, 208 KiB unless the administrator made it smaller. Longer ones: memfd.
INLINE = 64 << 10
#: Longest message.
LIMIT = 8 << 20

_FDS = struct.Struct("i")
# One more than may come, so that the memfd of a long message does not count.
_ANCILLARY = _socket.CMSG_SPACE((MAX_FDS + 1) * _FDS.size)
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_CUT = _socket.MSG_TRUNC | _socket.MSG_CTRUNC


class DeadlinePassed(ChannelError):
    """The other side did not take or send a packet in time."""


def pair() -> tuple[Channel, Channel]:
    """Two connected ends, both close-on-exec."""
    one, other = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
    return Channel(one), Channel(other)


def of(descriptor: int) -> Channel:
    """The end of another process that came as a descriptor, which it owns from now on. Raises OSError."""
    return Channel(_socket.socket(fileno=descriptor))


class Channel:
    """Owns one socket. Every method raises ChannelError, and OSError for what the kernel reports (EPIPE: peer gone).

    ``deadline`` is a moment of ``time.monotonic``, or None to wait as long as the peer lives.
    """

    __slots__ = ("_socket",)

    def __init__(self, socket: _socket.socket) -> None:
        self._socket = socket

    def fileno(self) -> int:
        """The descriptor, or -1 when closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end. May be called twice."""
        self._socket.close()

    def finish(self) -> None:
        """Shut down sending; the peer reads end of file."""
        self._socket.shutdown(_socket.SHUT_WR)

    def send(self, message: bytes, fds: Sequence[int] = (), deadline: float | None = None) -> None:
        """Send one message with copies of ``fds``; the caller keeps (and closes) its own."""
        if len(fds) > MAX_FDS:
            raise ChannelError(f"{len(fds)} descriptors in one message, more than {MAX_FDS}")
        if len(message) > LIMIT:
            raise ChannelError(f"a message of {len(message)} bytes, more than {LIMIT}")
        if len(message) <= INLINE:
            try:
                self._send_packet(b"J" + message, fds, deadline)
                return
            except OSError as error:
                # A send buffer made smaller than a packet; the memfd fits always.
                if error.errno != errno.EMSGSIZE:
                    raise
        memory = _sealed(message)
        try:
            self._send_packet(b"M%d" % len(message), [memory, *fds], deadline)
        finally:
            os.close(memory)

    def _send_packet(self, packet: bytes, fds: Sequence[int], deadline: float | None) -> None:
        rights = b"".join([_FDS.pack(fd) for fd in fds])
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if fds else []
        flags = _socket.MSG_NOSIGNAL | _socket.MSG_DONTWAIT
        while True:
            try:
                self._socket.sendmsg([packet], ancillary, flags)
                return
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)

    def receive(self, deadline: float | None = None) -> tuple[bytes, list[int]] | None:
        """The next message and its descriptors (close-on-exec, the caller's to close), or None at end of file."""
        self._wait(select.POLLIN, deadline)
        packet, ancillary, flags, _ = self._socket.recvmsg(1 + INLINE, _ANCILLARY, _socket.MSG_CMSG_CLOEXEC)
        fds = _descriptors(ancillary)
        try:
            if flags & _CUT:
                raise ChannelError("a packet that was cut")
            if not packet:
                # This protocol has no empty packet: an empty read is end of file.
                close_all(fds)
                return None
            message = _content(packet, fds)
            if len(fds) > MAX_FDS:
                raise ChannelError(f"more than {MAX_FDS} descriptors")
        except BaseException:
            close_all(fds)
            raise
        return message, fds

    def is_readable(self, deadline: float) -> bool:
        """Whether a message, or end of file, is there by then."""
        try:
            self._wait(select.POLLIN, deadline)
        except DeadlinePassed:
            return False
        return True

    def _wait(self, event: int, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), event)
        if deadline is None:
            poll.poll()
        elif not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise DeadlinePassed("no packet in time")


def close_all(fds: list[int]) -> None:
    """Close the descriptors and empty the list."""
    while fds:
        os.close(fds.pop())


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    return [
        fd
        for level, kind, data in ancillary
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS
        for (fd,) in _FDS.iter_unpack(data[: len(data) - len(data) % _FDS.size])
    ]


def _content(packet: bytes, fds: list[int]) -> bytes:
    """The message of a packet; takes the memfd of a long one out of ``fds``."""
    if packet[:1] == b"J":
        return packet[1:]
    digits = packet[1:]
    if packet[:1] != b"M" or not digits.isdigit() or len(digits) > len(str(LIMIT)) or not fds:
        raise ChannelError(f"not a message: {packet[:16]!r}")
    return _read_sealed(fds, int(digits))


def _sealed(message: bytes) -> int:
    memory = os.memfd_create("rpc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(message)
        while view:
            view = view[os.write(memory, view) :]
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(memory)
        raise
    return memory


def _read_sealed(fds: list[int], length: int) -> bytes:
    """Only a memfd that its sender cannot change any more: what is checked must be what is used."""
    memory = fds.pop(0)
    try:
        try:
            seals = fcntl.fcntl(memory, fcntl.F_GET_SEALS)
        except OSError:
            seals = 0
        found = os.fstat(memory)
        if seals & _SEALS != _SEALS or not stat.S_ISREG(found.st_mode):
            raise ChannelError("a long message that is not a sealed memfd")
        if not found.st_size == length <= LIMIT:
            raise ChannelError(f"a long message of {found.st_size} bytes that says {length}")
        return os.pread(memory, length, 0)
    finally:
        os.close(memory)
