"""The debug log (``--debug``, NVC_DEBUG_FILE), in the reference's format (libnvidia-container.md 1.4).

    I1120 23:57:01.123456 1234 file.py:12] message

Level, UTC time with microseconds, thread id, the place in the code. Records are appended with one write each, so
helper processes, which inherit the descriptor, share the file without a lock. The log can neither fail nor delay the
work: a file that cannot be opened is a warning, a record that cannot be written is dropped, and the first of these is
a warning too, of one process alone.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_native_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_SIGIO = 29
_BANNER = "\n-- WARNING, the following logs are for debugging purposes only --\n\n"


class Log:
    """An open debug log, or none. The descriptor closes with ``close`` or with the process."""

    __slots__ = ("_descriptor", "_is_incomplete", "_program")

    def __init__(self, descriptor: int = -1, program: str = "nvc-py") -> None:
        self._descriptor = descriptor
        self._program = program
        self._is_incomplete = False

    @staticmethod
    def none() -> Log:
        """A log that drops every record."""
        return Log()

    @property
    def enabled(self) -> bool:
        """Whether records are written, to skip expensive texts."""
        return self._descriptor >= 0

    def fileno(self) -> int:
        """The descriptor, -1 if there is none."""
        return self._descriptor

    def info(self, text: str) -> None:
        if self._descriptor >= 0:
            self._write("I", text, sys._getframe(1))

    def warn(self, text: str) -> None:
        if self._descriptor >= 0:
            self._write("W", text, sys._getframe(1))

    def error(self, text: str) -> None:
        if self._descriptor >= 0:
            self._write("E", text, sys._getframe(1))

    def take(self, descriptor: int) -> None:
        """Write to ``descriptor`` from now on, which is the log's to close."""
        self.close()
        self._descriptor = descriptor

    def close(self) -> None:
        """Close it; later records are dropped. May be repeated."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, level: str, text: str, caller: FrameType) -> None:
        now = time.time_ns() // 1000
        stamp = time.strftime("%m%d %H:%M:%S", time.gmtime(now // 1_000_000))
        place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
        head = f"{level}{stamp}.{now % 1_000_000:06d} {get_native_id()} {place}] "
        # The head on every line, so that no message can forge a record.
        data = "".join(f"{head}{line}\n" for line in text.splitlines() or [""])
        self.append(data.encode("utf-8", "backslashreplace"))

    def append(self, data: bytes) -> None:
        """Write bytes that are no record; as with those, what does not fit is dropped."""
        try:
            if os.write(self._descriptor, data) < len(data):
                self._dropped("no space left on device")
        except OSError as error:
            # Full disk, closed pipe, a reader that does not read: the log must not stop the work.
            self._dropped(os.strerror(error.errno or 0).lower())

    def _dropped(self, why: str) -> None:
        """Say it, unless it was said: here, or by a process that shares the open file, which F_SETSIG then marks."""
        if self._is_incomplete:
            return
        self._is_incomplete = True
        import fcntl

        try:
            if fcntl.fcntl(self._descriptor, fcntl.F_GETSIG):
                return
            fcntl.fcntl(self._descriptor, fcntl.F_SETSIG, _SIGIO)  # without O_ASYNC nothing is sent
            path = f" {os.readlink(f'/proc/self/fd/{self._descriptor}')}"
        except OSError:
            path = ""
        _warn(f"{self._program}: warning: cannot write the debug log{path}: {why}; records are lost\n")


def debug_file() -> str:
    """NVC_DEBUG_FILE, or "" where the environment is not to be trusted (as secure_getenv decides)."""
    if os.geteuid() != os.getuid() or os.getegid() != os.getgid():
        return ""
    return os.environ.get("NVC_DEBUG_FILE", "")


def open_log(path: str, program: str = "nvc-py") -> Log:
    """Open ``path`` for appending; "" gives a log that drops every record. program: the name before a warning.

    Never raises: if the file cannot be opened, or another user has put it there (``nvc.base.logfile``), one line on
    stderr says so.
    """
    if not path:
        return Log()
    from nvc.base.logfile import open_append  # most commands have no log

    try:
        log = Log(open_append(path), program)
    except (OSError, ValueError) as error:
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
        _warn(f"{program}: warning: cannot open the debug log {path}: {why}; continuing without\n")
        return Log()
    log.append(_BANNER.encode())
    return log


def _warn(line: str) -> None:
    try:
        os.write(2, line.encode("utf-8", "backslashreplace"))
    except OSError:
        pass
