"""The commands in README.md, as a reader copies them."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
#: Lines that are run elsewhere, as they stand: by the run of this test, and by tests/packaging/test_install.py.
ELSEWHERE = ("apt-get update && apt-get install make", "make demo", "make test", "make install PREFIX=/usr/local")


def blocks() -> list[list[str]]:
    """The lines of each code block, without comments."""
    found = re.findall(r"^```\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    return [[line.partition(" #")[0].strip() for line in block.splitlines()] for block in found]


def commands() -> list[str]:
    """Every command of every block, in the order of the page."""
    return [line for block in blocks() for line in block]
