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

#: Of one kind of denial or warning of a container: lines at once, seconds until there may be one more. A container that
#: is always at its quota had four lines a second.
BURST, INTERVAL_S = 20, 60.0
#: Kinds at a time. One more forgets the oldest, with what was not said of it: ``gone`` has the counts of denials.
_KINDS = 8192
#: Bytes that are written without waiting to what is said to take some: PIPE_BUF of linux/limits.h.
_PIECE = 4096


class _Kind:
    """Lines of one kind: how many there may be now, and what was left out since the last one."""

    __slots__ = ("at", "left_out", "pending", "room")

    def __init__(self, now: float) -> None:
        self.room, self.at, self.left_out = float(BURST), now, 0
        self.pending: dict[str, object] = {}

    def has_room(self, now: float) -> bool:
        self.room = min(float(BURST), self.room + (now - self.at) / INTERVAL_S)
        self.at = now
        return self.room >= 1

    def line(self, told: dict[str, object]) -> dict[str, object]:
        """With how many events, each with its repetitions, have no line of their own."""
        self.room -= 1
        found = {**told, "left_out": self.left_out} if self.left_out else told
        self.left_out, self.pending = 0, {}
        return found

    def leave_out(self, told: dict[str, object]) -> None:
        self.left_out += _count(told)
        self.pending = told


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
        self._kinds: dict[tuple[object, ...], _Kind] = {}

    def listen(self, listener: Listener) -> None:
        """Call it with every event from now on."""
        self._listeners.append(listener)

    def leave(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def write(self, event: str, **fields: object) -> None:
        """Write an event; fields are what JSON can carry. Does not wait and raises nothing.

        The agent goes on without its log. Denials, Xids and warnings of one kind are in it BURST times, and then every
        INTERVAL_S; listeners get every event.
        """
        told = {"time": round(time.time(), 3), "event": event, **fields}
        if self._descriptor >= 0:
            kind = self._kind(told)
            if kind is None:
                self._line(told)
            elif kind.has_room(time.monotonic()):
                self._line(kind.line(told))
            else:
                kind.leave_out(told)
        for listener in tuple(self._listeners):
            listener(told)

    def look(self) -> None:
        """What is due every now and then: say what was lost or left out, if nothing else happens. Raises nothing."""
        try:
            self._tell_lost()
        except OSError:
            pass
        now = time.monotonic()
        for kind in self._kinds.values():
            if kind.left_out and kind.has_room(now):
                last = kind.pending
                kind.left_out -= _count(last)
                self._line(kind.line(last))

    def _kind(self, told: dict[str, object]) -> _Kind | None:
        """Of an event that a container or a client can bring about at will; None: of another one."""
        if told["event"] == "denial":
            key = "denial", told.get("tenant"), told.get("reason")
        elif told["event"] == "xid":
            key = "xid", told.get("container"), told.get("xid")
        elif told["event"] == "warning":
            key = "warning", told.get("container"), str(told.get("message"))[:80]
        else:
            return None
        found = self._kinds.get(key)
        if found is None:
            if len(self._kinds) >= _KINDS:
                del self._kinds[next(iter(self._kinds))]
            found = self._kinds[key] = _Kind(time.monotonic())
        return found

    def _line(self, told: dict[str, object]) -> None:
        try:
            self._tell_lost()
            self._put(dumps(told) + b"\n")
        except (OSError, ValueError):
            self.lost += 1

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


def _count(told: dict[str, object]) -> int:
    """How many calls a denial is of."""
    repeated = told.get("repeated", 0)
    return 1 + (repeated if isinstance(repeated, int) else 0)
