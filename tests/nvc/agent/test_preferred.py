"""The agent's threads have their turn before others that wait for a processor; what it starts has not."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from nvc.agent.waiting import NICE, threads
from tests.support.leftovers import until
from tests.support.lone_agent import agent, configure

pytestmark = pytest.mark.root


def _nice(pid: int) -> int:
    """Also of a thread."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_its_loop_is_before_others_and_its_acceptor_is_not(tmp_path: Path) -> None:
    """Hundreds of guards that ended kept the loop from a processor, for 0.2 s."""
    configure(tmp_path)
    with agent(tmp_path):
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        (pid,) = (line["pid"] for line in lines if line["event"] == "ready")
        assert until(lambda: bool(_children(pid)), seconds=30)
        assert _nice(pid) == NICE
        assert [_nice(child) for child in _children(pid)] == [0] * len(_children(pid))


def test_a_thread_that_has_pythons_lock_is_before_others_too() -> None:
    with threads(2, "test") as pool:
        other = pool.submit(threading.get_native_id)
        assert pool.submit(_nice, other.result()).result() == NICE
    assert os.getpriority(os.PRIO_PROCESS, 0) >= 0, "the thread that made them is as before"
