"""Monitors of an agent's directory, and its acceptor, which outlives the agent where a unit has its socket."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from nvc.agent.admission import LOCK
from tests.support import leftovers
from tests.support.opened import names


def acceptor(directory: str | Path) -> tuple[int, int]:
    """(pid, inode of its socket) of the one that holds the lock; (0, 0): there is none."""
    try:
        pid, inode = map(int, Path(directory, LOCK).read_text().split())
        is_there = Path(f"/proc/{pid}/comm").read_text() == "nvc-monitor\n" and f"{directory}/{LOCK}" in names(pid)
    except (OSError, ValueError):
        return 0, 0
    return (pid, inode) if is_there else (0, 0)


def end_acceptor(directory: str | Path) -> None:
    """End it as an agent does. Raises AssertionError."""

    def has_ended() -> bool:
        pid, _ = acceptor(directory)
        if pid:
            os.kill(pid, signal.SIGTERM)
        return not pid

    assert leftovers.until(has_ended, seconds=20)


def processes(program: str, directory: str) -> list[int]:
    """Pids of a program's processes that serve this directory; without those that wait: a successor, watchdogs."""
    waiting = "nvc-successor", "nvc-watchdog"
    return [pid for pid, words in _commands(directory) if words[0] == program and words[1] not in waiting]


def successors(directory: str) -> list[int]:
    """Pids of those that wait until the directory's acceptor lets go of its lock."""
    return [pid for pid, words in _commands(directory) if words[1] == "nvc-successor"]


def watchdogs(directory: str) -> list[int]:
    """Of acceptors, which start another one in the place of one that was killed, and of tenants."""
    return [pid for pid, words in _commands(directory) if words[1] == "nvc-watchdog"]


def _commands(directory: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """Pid, program and name of processes that have the directory as an argument."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            comm = Path(f"/proc/{name}/comm").read_text().rstrip("\n")
        except OSError:
            continue
        if directory.encode() in words:
            yield int(name), (os.path.basename(words[0]).decode(), comm)
