"""Kills this pytest process when a test outlives its limit by far.

pytest-timeout interrupts a test with a signal, which does nothing to a system call that only a fatal one ends: a
wait for a file system that does not answer (FUSE, NFS) is one. The watchdog is a process of its own, not a child of
ours (tests wait for any child) and not a thread (tests fork). It ends when we do.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

#: Seconds that pytest-timeout has to end a test by itself, beyond the test's limit.
GRACE = 60.0

_PROGRAM = Path(__file__).parent / "programs/watch.py"


class Watchdog:
    """Watches over the calling process until it ends or ``close``. Raises OSError, CalledProcessError."""

    def __init__(self) -> None:
        reading, self._pipe = os.pipe()
        words = [sys.executable, "-I", "-S", str(_PROGRAM), str(reading), str(os.getpid())]
        try:
            # The shell ends at once: what it leaves in the background is no child of this process.
            command = ["/bin/sh", "-c", '"$@" & exit', "sh", *words]
            subprocess.run(
                command, pass_fds=[reading], start_new_session=True, stdout=subprocess.DEVNULL, check=True, timeout=20
            )
        finally:
            os.close(reading)

    def begin(self, what: str, seconds: float) -> None:
        """Kill this process unless ``end`` or another ``begin`` is called in so many seconds."""
        self._tell(f"{seconds} {what[:200]}")

    def end(self) -> None:
        self._tell("0 ")

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was ended: tests go on without
            os.write(self._pipe, line.encode("ascii", "replace") + b"\n")

    def close(self) -> None:
        os.close(self._pipe)
