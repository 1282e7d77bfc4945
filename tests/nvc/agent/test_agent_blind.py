"""What an agent says that cannot watch for an execve."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
import sys
from pathlib import Path

import pytest

from tests.support.lone_agent import agent, configure

pytestmark = pytest.mark.root

#: asm/unistd_64.h, asm-generic/unistd.h: perf_event_open. linux/perf_event.h: PERF_ATTR_SIZE_VER7.
NUMBERS, ATTRIBUTES = {"x86_64": 298, "aarch64": 241}, 128
#: Starts what follows where the kernel has no perf events.
WITHOUT = Path(__file__).parent / "programs/without_perf_events.py"


def said(place: Path) -> tuple[bool, list[str]]:
    """Whether it watches, and the problems that it told when it had begun."""
    lines = [json.loads(line) for line in (place / "log").read_text().splitlines()]
    (ready,) = (line for line in lines if line["event"] == "ready")
    return ready["sees_exec"], [
        line["message"] for line in lines if line["event"] == "warning" and "execve" in line["message"]
    ]


def can_watch() -> bool:
    """Whether this kernel lets this process count (perf_event_open, the event that counts nothing) on itself."""
    wish = ctypes.create_string_buffer(struct.pack("=IIQ", 1, ATTRIBUTES, 9), ATTRIBUTES)  # SOFTWARE, its size, DUMMY
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(NUMBERS[platform.machine()], wish, 0, -1, -1, 0)
    if found >= 0:
        os.close(found)
    return bool(found >= 0)


def test_it_says_whether_it_watches(tmp_path: Path) -> None:
    configure(tmp_path)
    with agent(tmp_path):
        pass
    sees, problems = said(tmp_path)
    assert sees == can_watch()
    assert len(problems) == (0 if sees else 1)


def test_one_that_cannot_says_what_does_not_hold(tmp_path: Path) -> None:
    pytest.importorskip("pyseccomp")
    configure(tmp_path)
    with agent(tmp_path, sys.executable, str(WITHOUT)):
        pass
    sees, problems = said(tmp_path)
    assert not sees
    (problem,) = problems
    assert "managed memory" in problem
