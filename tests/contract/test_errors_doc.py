"""docs/reference/errors.md and the code say the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hook.__main__ import serve
from nvc.base import errors
from nvc.cli.main import main

DOCUMENT = Path(__file__).parents[2] / "docs/reference/errors.md"


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    section = DOCUMENT.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def classes(base: type[errors.NvcError] = errors.NvcError) -> Iterator[type[errors.NvcError]]:
    yield base
    for cls in base.__subclasses__():
        if cls.__module__ == errors.__name__:
            yield from classes(cls)


def test_every_error_is_documented_with_its_stage() -> None:
    documented = {row[1].strip("`"): row[0].strip("`") for row in rows("Stages")}

    assert documented == {cls.__name__: cls.stage or "(none)" for cls in classes()}


def test_every_stage_says_what_failed_and_where_to_look() -> None:
    assert [row for row in rows("Stages") if len(row) != 4 or not all(row)] == []


def codes(program: str) -> set[int]:
    return {int(row[1]) for row in rows("Exit codes") if f"`{program}`" in row[0]}


def test_every_errors_exit_code_is_documented() -> None:
    for program in ("nvc-py", "nvc-hook"):
        assert {cls.exit_code for cls in classes()} <= codes(program)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [(["--help"], 0), (["poststop"], 0), (["prestart"], 1), (["bogus"], 2), (["--bogus"], 2)],
)
def test_exit_codes_of_the_hook(argv: list[str], expected: int, capfd: pytest.CaptureFixture[str]) -> None:
    stdin = os.open("/dev/null", os.O_RDONLY)
    try:
        assert serve(argv, "nvc-hook", "", stdin=stdin) == expected
    finally:
        os.close(stdin)
    assert expected in codes("nvc-hook")


@pytest.mark.parametrize(("argv", "expected"), [(["--version"], 0), (["bogus"], 1), (["configure"], 1)])
def test_exit_codes_of_the_command(argv: list[str], expected: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(argv, "nvc-py") == expected
    assert expected in codes("nvc-py")
