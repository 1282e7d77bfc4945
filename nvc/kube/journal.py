"""The log of the programs of this package: one JSON object a line on stderr, from any thread."""

from __future__ import annotations

import os
import time

from rpc.codec import dumps


def write(event: str, **fields: object) -> None:
    """One line, in one write, so that lines of two threads do not mix."""
    line = dumps({"time": round(time.time(), 3), "event": event, **fields})
    try:
        os.write(2, line + b"\n")
    except OSError:
        pass  # no process reads it: no reason to end
