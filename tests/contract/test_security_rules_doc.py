"""docs/reference/security-rules.md: every rule says where it is, in files that exist, and what it stops."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs/reference/security-rules.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| rule |")
]


def test_there_are_rules() -> None:
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_rule_is_where_the_page_says(row: list[str]) -> None:
    rule, where, stops = row
    assert len(rule) > 20 and len(stops) > 10
    files = re.findall(r"`([\w/.]+)`", where)
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
