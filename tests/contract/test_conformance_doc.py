"""docs/reference/conformance.md names tests that exist, and every case of the toolkit's docker suite."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/reference/conformance.md").read_text()


def test_every_named_test_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", PAGE)

    assert len(named) > 50
    for file, name in named:
        text = (TESTS / file).read_text()
        assert name == "" or f"\ndef {name}(" in text, f"{file}::{name}"


def test_all_cases_have_a_row() -> None:
    assert re.findall(r"^\| D(\d+) \|", PAGE, re.MULTILINE) == [str(number) for number in range(1, 42)]


def _share_rows() -> list[list[str]]:
    lines = PAGE.partition("## Shares: the 30 case groups")[2].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| \d+ \|", line)]


def test_all_groups_of_the_shares_have_a_row() -> None:
    assert [row[0] for row in _share_rows()] == [str(number) for number in range(1, 31)]


def test_a_group_says_how_far_it_is_covered_and_by_what() -> None:
    for number, _, tests, state in _share_rows():
        word = state.partition(":")[0]
        assert word in ("CI", "CI and GPU", "GPU", "partly", "no"), number
        assert (word == "no") == (".py" not in tests), number
        assert word in ("CI", "CI and GPU", "GPU") or ":" in state, f"{number}: what is missing, and why?"
        assert ("GPU" in word) <= ("`gpu/" in tests), number
        assert word == "no" or word == "GPU" or re.search(r"`(native|system|nvc)/", tests), number


def test_every_native_program_that_is_named_exists() -> None:
    programs = {path.stem for path in (TESTS.parent / "native/test").glob("test_*.c")}
    named = set(re.findall(r"\btest_(?:rm|shim|manager)_\w+(?=[,)])", PAGE))
    assert named
    assert named <= programs
