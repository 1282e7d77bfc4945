"""What is said of hostile programs is the same everywhere, until the issue about them is resolved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ISSUE = "Enforcement of shares against hostile programs"
#: Where a reader learns what a guard is.
PAGES = ("README.md", "SECURITY.md", "docs/internals/guard.md")


def text(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize("page", PAGES)
def test_the_page_says_what_the_guard_does_not_hold(page: str) -> None:
    assert ISSUE in text(page)
    assert re.search(r"race(s)? (its|the) calls", text(page))
    assert re.search(r"reuse(s)? handles", text(page))


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_no_page_promises_more(page: str) -> None:
    assert not re.search(r"also against hostile|for others there is the guard|have the guard, or give", text(page))


def test_the_claim_has_a_row_for_each_that_holds_a_share() -> None:
    lines = [line.split("|") for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")]

    assert [cells[1].split(" (")[0].strip() for cells in lines[1:]] == [
        "no share",
        "the preloaded library",
        "the guard",
        "a MIG device, or a whole GPU",
    ]
    assert "Isolation between containers on" not in text("SECURITY.md")
