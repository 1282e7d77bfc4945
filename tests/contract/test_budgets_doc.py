"""docs/user/security.md shows the budgets as they are, and names tests that exist for each process."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from nvc.base import budgets
from nvc.base.budgets import BUDGETS, MIB, Budget

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/user/security.md"


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


def section() -> str:
    return PAGE.read_text().partition("## Budgets\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("budget", BUDGETS, ids=[budget.name.split(",")[0] for budget in BUDGETS])
def test_a_row_is_as_the_code_has_it(budget: Budget) -> None:
    (row,) = [line for line in section().splitlines() if line.startswith(f"| {budget.name} |")]
    *found, tests = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert found == cells(budget)
    named = re.findall(r"`(test_\w+)`", tests)
    tree = ast.parse((ROOT / "tests/nvc/test_budgets.py").read_text())
    names = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
    assert named
    assert set(named) <= names


def test_the_amounts_beside_the_table_are_those_of_the_code() -> None:
    text = section()
    for amount in (
        f"{budgets.START_S:g} s",
        f"{budgets.UNDO_S} s",
        f"{budgets.ENTRIES:,}",
        f"{budgets.NAME_BYTES // MIB} MiB",
        f"{budgets.CONFIG_BYTES // MIB} MiB",
        f"{budgets.STATE_BYTES // MIB} MiB",
    ):
        assert amount in text
