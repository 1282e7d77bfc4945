"""A process that lets go of connections from callers that are refused before anything of them is read.

What they sent stays in the socket's queue, and descriptors with it. The last close of a descriptor may wait for as long
as its sender likes (SO_LINGER of a TCP socket): the pre-fork server, which has one thread, must not do it.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import sys

from nvc.linux import rights
from nvc.linux.process import close_all_but

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Closer:
    """``close`` as often as needed; the process starts with the first, and ends with this one."""

    def __init__(self, fork: Callable[[Callable[[], int]], int]) -> None:
        """fork: starts a process that does the work and ends with this one; its id. Raises OSError."""
        self._fork = fork
        self._end: socket.socket | None = None
        self._pid = 0

    def close(self, connection: socket.socket) -> None:
        """Let go of it, without waiting; where there is no process left for that, by this one."""
        if not self._send(connection):
            self.stop()  # it waits, and what it has yet to close fills the queue
            self._send(connection)
        connection.close()
        if not self._send():  # the last close is to be the other's
            self.stop()

    def stop(self) -> None:
        """End it: a process that ends waits for no descriptor."""
        if self._end is not None:
            self._end.close()
            self._end = None
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _send(self, connection: socket.socket | None = None) -> bool:
        """A connection; or that the one before is closed here."""
        numbers = array.array("i", [] if connection is None else [connection.fileno()])
        carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if numbers else []
        try:
            if self._end is None:
                self._start()
            assert self._end is not None
            self._end.sendmsg([b"c"], carried, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def _start(self) -> None:
        end, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            try:
                self._pid = self._fork(lambda: _serve(other))
            except OSError:
                end.close()
                raise
        self._end = end


def _serve(end: socket.socket) -> int:
    rights.set_name("nvc:[closer]")
    finders = (finder.fileno() for finder in sys.meta_path if hasattr(finder, "fileno"))
    close_all_but(end.fileno(), *finders)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server's, which may have more to close
    held: list[int] = []
    while True:
        data, descriptors, _, _ = socket.recv_fds(end, 1, 1)
        if not data:
            return 0
        held += descriptors
        while held and not descriptors:
            os.close(held.pop())
