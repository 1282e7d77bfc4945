"""The agent's table of descriptors is made large before there are threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.lone_agent import agent, configure

pytestmark = pytest.mark.root


def test_it_has_thousands_of_places_from_the_beginning(tmp_path: Path) -> None:
    configure(tmp_path)
    with agent(tmp_path):
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        (pid,) = (line["pid"] for line in lines if line["event"] == "ready")
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        (most,) = (
            line.split()[4]
            for line in Path(f"/proc/{pid}/limits").read_text().splitlines()
            if line.startswith("Max open files")
        )
        assert int(fields["FDSize"]) >= min(int(most), 8192)
        assert not [link for link in Path(f"/proc/{pid}/fd").iterdir() if int(link.name) > 1000], "and nothing is there"
