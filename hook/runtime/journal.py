"""What the runtime tells: to its own log (config.toml) everything, to the caller's (--log) warnings and errors.

Engines read the file of --log for the reason of a failure and show its last line; the formats are those of runc
(logrus): ``time="..." level=error msg="..."`` or a JSON object a line.
"""

from __future__ import annotations

import os
import time

from nvc.base.logfile import open_append
from rpc.codec import dumps

LEVELS = ("trace", "debug", "info", "warning", "error", "fatal", "panic")
_SHORT = {"warn": "warning"}


class Journal:
    """Up to two files, opened when there is something to write: most runs have nothing to say."""

    def __init__(self) -> None:
        self._files: list[tuple[str, bool, int]] = []

    def add(self, path: str, *, as_json: bool, level: str) -> None:
        """Write records of ``level`` and above to ``path``; "" and /dev/null are not written to."""
        if path and path != "/dev/null":
            name = _SHORT.get(level, level)
            self._files.append((path, as_json, LEVELS.index(name) if name in LEVELS else LEVELS.index("info")))

    def debug(self, text: str) -> None:
        self._write("debug", text)

    def info(self, text: str) -> None:
        self._write("info", text)

    def warn(self, text: str) -> None:
        self._write("warning", text)

    def error(self, text: str) -> None:
        self._write("error", text)

    def _write(self, level: str, text: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for path, as_json, least in self._files:
            if LEVELS.index(level) < least:
                continue
            if as_json:
                data = dumps({"level": level, "msg": text, "time": now})
            else:
                data = b'time="%s" level=%s msg=%s' % (now.encode(), level.encode(), dumps(text))
            _append(path, data + b"\n")


def _append(path: str, data: bytes) -> None:
    """A log that cannot be written stops no container."""
    try:
        descriptor = open_append(path, make=True)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        pass
