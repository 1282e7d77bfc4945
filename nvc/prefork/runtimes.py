"""Runtimes of guarded containers: what they start has one seccomp filter more than they had as nvc-runtime.

nvc-runtime closes the 32-bit entry to itself (hook/runtime/entry32.py) when a worker has edited config.json for it, and
becomes the real runtime. A hook of that container inherits the filter. Filters cannot be read, so one more is accepted
of descendants of such a process alone.
"""

from __future__ import annotations

import os

#: Processes between a hook and its runtime, at most: the container's first one.
_BETWEEN = 4
#: At a time; the oldest goes, and its hooks are Python programs.
MAX_RUNTIMES = 1024
#: What nvc-runtime closes with a filter is there on this machine alone.
FILTERS = 1 if os.uname().machine == "x86_64" else 0


class Runtimes:
    """Runtimes that were served an edit of their config.json, by pid and start time."""

    def __init__(self) -> None:
        self._edited: dict[tuple[int, int], None] = {}

    def add(self, pid: int, started: int) -> None:
        """A guarded container's config.json was edited for the process."""
        self._edited[pid, started] = None
        while len(self._edited) > MAX_RUNTIMES:
            del self._edited[next(iter(self._edited))]

    def filters(self, pid: int) -> int:
        """How many filters of nvc-runtime's own ``pid`` has. Raises OSError when it is gone."""
        for _ in range(_BETWEEN):
            pid = parent_and_start(pid)[0]
            if not pid:
                break
            if (pid, parent_and_start(pid)[1]) in self._edited:
                return FILTERS
        return 0


def parent_and_start(pid: int) -> tuple[int, int]:
    """proc(5): fields 4 and 22 of stat. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])
