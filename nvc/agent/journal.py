"""What the agent tells: one JSON object a line, on stderr (systemd's journal keeps it) and to whoever asked for events.

{"time": 1766275200.123, "event": "denial", "container": "4f0c", "reason": "over-quota", "number": 43, ...}
"""

from __future__ import annotations

import os
import time

from rpc.codec import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Listener = Callable[[dict[str, object]], None]


class Journal:
    """Lines to a descriptor, and to listeners in this process. descriptor -1: only to those."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._listeners: list[Listener] = []
        #: Lines that could not be written: the disk is full, or nobody reads the pipe.
        self.lost = 0

    def listen(self, listener: Listener) -> None:
        """Call it with every event from now on."""
        self._listeners.append(listener)

    def leave(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def write(self, event: str, **fields: object) -> None:
        """Tell of something; fields are what JSON can carry. Raises nothing: the agent goes on without its log."""
        told = {"time": round(time.time(), 3), "event": event, **fields}
        if self._descriptor >= 0:
            try:
                os.write(self._descriptor, dumps(told) + b"\n")
            except (OSError, ValueError):
                self.lost += 1
        for listener in tuple(self._listeners):
            listener(told)
