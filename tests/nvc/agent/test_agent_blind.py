"""What an agent says that cannot watch for an execve."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.lone_agent import agent, configure

pytestmark = pytest.mark.root

#: Starts what follows where the kernel has no perf events.
WITHOUT = """\
import errno, os, sys
import pyseccomp
absent = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
absent.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "perf_event_open")
absent.load()
os.execv(sys.argv[1], sys.argv[1:])
"""


def said(place: Path) -> tuple[bool, list[str]]:
    """Whether it watches, and the problems that it told when it had begun."""
    lines = [json.loads(line) for line in (place / "log").read_text().splitlines()]
    (ready,) = (line for line in lines if line["event"] == "ready")
    return ready["sees_exec"], [
        line["what"] for line in lines if line["event"] == "problem" and "execve" in line["what"]
    ]


def test_one_that_watches_says_nothing(tmp_path: Path) -> None:
    configure(tmp_path)
    with agent(tmp_path):
        pass
    sees, problems = said(tmp_path)
    if not sees:
        pytest.skip("this kernel, or who runs this, has no perf events")
    assert problems == []


def test_one_that_cannot_says_what_does_not_hold(tmp_path: Path) -> None:
    pytest.importorskip("pyseccomp")
    configure(tmp_path)
    with agent(tmp_path, sys.executable, "-c", WITHOUT):
        pass
    sees, problems = said(tmp_path)
    assert not sees
    (problem,) = problems
    assert "managed memory" in problem
