"""docs/conformance.md names tests that exist, and every case of the toolkit's docker suite."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/conformance.md").read_text()


def test_every_named_test_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", PAGE)

    assert len(named) > 50
    for file, name in named:
        text = (TESTS / file).read_text()
        assert name == "" or f"\ndef {name}(" in text, f"{file}::{name}"


def test_all_cases_have_a_row() -> None:
    assert re.findall(r"^\| D(\d+) \|", PAGE, re.MULTILINE) == [str(number) for number in range(1, 42)]
