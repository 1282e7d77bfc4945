"""docs/reference/budgets.md shows the budgets as they are, and names a test for each cell with an amount."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from nvc.base import budgets
from nvc.base.budgets import BUDGETS, MIB, Budget

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/budgets.md"


def cells(budget: Budget) -> list[str]:
    """The row without its last cell, the tests."""
    return [
        budget.name,
        f"{budget.memory // MIB} MiB" + ("" if budget.is_limit else " (by what is read)"),
        f"{budget.cpu} s" if budget.cpu else "as wall time",
        f"{budget.wall:g} s",
        f"{budget.file // MIB} MiB" if budget.file else "none",
        f"{budget.entries:,}" if budget.entries else "as memory and time allow",
        budget.beyond,
    ]


@pytest.mark.parametrize("budget", BUDGETS, ids=[budget.name.split(",")[0] for budget in BUDGETS])
def test_a_row_is_as_the_code_has_it(budget: Budget) -> None:
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {budget.name} |")]
    *found, tests = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert found == cells(budget)
    named = dict(part.strip().split(" `", 1) for part in tests.split(";"))
    assert {word for words in named for word in words.split(" and ")} == limited(budget)
    assert set(re.findall(r"`(test_\w+)`", tests)) <= known_tests()


def limited(budget: Budget) -> set[str]:
    """The cells that have an amount of their own."""
    amounts = {"processor": budget.cpu, "file": budget.file, "entries": budget.entries}
    return {"memory", "wall", *(name for name, amount in amounts.items() if amount)}


def known_tests() -> set[str]:
    files = [*(ROOT / "tests/nvc").rglob("test_*.py"), *(ROOT / "tests/soak").glob("test_*.py")]
    trees = [ast.parse(path.read_text()) for path in files]
    return {one.name for tree in trees for one in tree.body if isinstance(one, ast.FunctionDef)}


def test_the_amounts_beside_the_table_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    for amount in (
        f"{budgets.START_S:g} s",
        f"{budgets.UNDO_S} s",
        f"{budgets.ENTRIES:,}",
        f"{budgets.NAME_BYTES // MIB} MiB",
        f"{budgets.CONFIG_BYTES // MIB} MiB",
        f"{budgets.STATE_BYTES // MIB} MiB",
    ):
        assert amount in text
