"""What processes have used: time of the processor, memory of their own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def computed(processes: Iterable[int]) -> float:
    """Seconds of the processor that all of their threads have had; nothing of those that have ended."""
    total = 0
    for pid in processes:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    return total / 1e9


def memory(pid: int) -> dict[str, int]:
    """Bytes by the names of smaps_rollup; nothing of a process that has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return {}


def private(pid: int) -> int:
    """Bytes that no other process shares."""
    found = memory(pid)
    return found.get("Private_Dirty", 0) + found.get("Private_Clean", 0)
