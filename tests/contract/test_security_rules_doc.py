"""docs/reference/security-rules.md: every rule says where it is, in files that exist, and what it stops; what cannot be
closed says why, and what bounds it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES, OPEN = (ROOT / "docs/reference/security-rules.md").read_text().split("\n## What cannot be closed\n")


def rows(text: str) -> list[list[str]]:
    """Those of the one table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


ROWS, OPEN_ROWS = rows(RULES), rows(OPEN)


def test_there_are_rules() -> None:
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_rule_is_where_the_page_says(row: list[str]) -> None:
    rule, where, stops = row
    assert len(rule) > 20 and len(stops) > 10
    files = re.findall(r"`([\w/.]+)`", where)
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_there_is_what_cannot_be_closed() -> None:
    assert len(OPEN_ROWS) > 10


@pytest.mark.parametrize("row", OPEN_ROWS, ids=lambda row: row[0][:40])
def test_what_is_open_says_why_and_what_bounds_it(row: list[str]) -> None:
    what, why, bound = row
    assert min(len(what), len(why), len(bound)) > 10
    assert [name for name in re.findall(r"`([\w/.]+\.py)`", " ".join(row)) if not (ROOT / name).exists()] == []
