"""The agent may open as many files as there can be: some for each tenant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.lone_agent import agent, configure

pytestmark = pytest.mark.root


def test_its_limit_is_the_hard_one(tmp_path: Path) -> None:
    configure(tmp_path)
    with agent(tmp_path, "prlimit", "--nofile=256:5000"):
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        (pid,) = (line["pid"] for line in lines if line["event"] == "ready")
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        (found,) = (line.split()[3:5] for line in limits if line.startswith("Max open files"))
        assert found == ["5000", "5000"]
