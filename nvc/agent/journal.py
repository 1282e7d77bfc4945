"""The agent's log: one JSON object a line, on stderr (systemd's journal keeps it) and to clients that asked for events.

{"time": 1766275200.123, "event": "denial", "container": "4f0c", "reason": "over-quota", "number": 43, ...}
"""

from __future__ import annotations

import os
import select
import time

from rpc.codec import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Listener = Callable[[dict[str, object]], None]

#: Bytes that are written without waiting to what is said to take some: PIPE_BUF of linux/limits.h.
_PIECE = 4096


class Journal:
    """Lines to a descriptor, and to listeners in this process. descriptor -1: only to those."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        if descriptor >= 0:
            self._poll.register(descriptor, select.POLLOUT)
        self._listeners: list[Listener] = []
        #: Lines that could not be written: the disk is full, or the pipe is not read. Those of them that were reported.
        self.lost = 0
        self._lost_reported = 0
        self._is_cut = False

    def listen(self, listener: Listener) -> None:
        """Call it with every event from now on."""
        self._listeners.append(listener)

    def leave(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def write(self, event: str, **fields: object) -> None:
        """Write an event; fields are what JSON can carry. Does not wait and raises nothing.

        The agent goes on without its log.
        """
        told = {"time": round(time.time(), 3), "event": event, **fields}
        if self._descriptor >= 0:
            try:
                self._tell_lost()
                self._put(dumps(told) + b"\n")
            except (OSError, ValueError):
                self.lost += 1
        for listener in tuple(self._listeners):
            listener(told)

    def look(self) -> None:
        """What is due every now and then: say what was lost, although nothing else happens. Raises nothing."""
        try:
            self._tell_lost()
        except OSError:
            pass

    def _tell_lost(self) -> None:
        """Say in the log how many of its lines are missing. Raises OSError: there is no room yet."""
        if self.lost > self._lost_reported:
            count = self.lost
            told = {"time": round(time.time(), 3), "event": "lost", "lines": count - self._lost_reported, "all": count}
            self._put(dumps(told) + b"\n")
            self._lost_reported = count

    def _put(self, line: bytes) -> None:
        """Raises OSError, also when the reader is behind: the descriptor is others' too, so it stays one that waits."""
        if self._is_cut:
            line = b"\n" + line
        while line:
            if not self._poll.poll(0):
                raise BlockingIOError
            line = line[os.write(self._descriptor, line[:_PIECE]) :]
            self._is_cut = bool(line)
