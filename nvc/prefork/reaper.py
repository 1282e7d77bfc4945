"""Exit statuses of this process's children, also of one that has ended under a tracer, which keeps its status."""

from __future__ import annotations

import os
import signal

from nvc.prefork.caller import has_ended


class Reaper:
    """``status`` for each process, or ``kill``; ``collect`` now and then."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def status(self, pid: int, pidfd: int) -> int | None:
        """As wait(2) gives it, once; None while it runs. SIGKILL's for one of which a tracer has it."""
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if not has_ended(pidfd):
            return None
        self._held.append(pid)
        return signal.SIGKILL

    def kill(self, pid: int) -> None:
        """End it, and do not wait for that."""
        os.kill(pid, signal.SIGKILL)
        self._held.append(pid)

    def collect(self) -> None:
        """Take the status of those that were not waited for."""
        if self._held:
            self._held = [pid for pid in self._held if not os.waitpid(pid, os.WNOHANG)[0]]
