"""The commands in README.md, as a reader copies them."""

from __future__ import annotations

from pathlib import Path

from tools.docs import markdown

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks() -> list[list[str]]:
    """The lines of each block of commands, without comments."""
    found = [text for mark, text, _ in markdown.fences(README.read_text()) if mark in ("", "sh")]
    return [[line.partition(" #")[0].strip() for line in text.splitlines()] for text in found]


def block(beginning: str) -> list[str]:
    """The block whose first line begins so."""
    (found,) = [lines for lines in blocks() if lines[0].startswith(beginning)]
    return found


def shown() -> str:
    """What README says that its quick starts print."""
    (found,) = [text for mark, text, _ in markdown.fences(README.read_text()) if mark == "text"]
    return found
