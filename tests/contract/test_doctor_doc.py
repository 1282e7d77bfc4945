"""The doctor's pages and its table say the same, and every known complaint has an answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nvc.doctor import report, table
from nvc.doctor.finding import LEVELS, ok

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reference/doctor-checks.md").read_text()
USER = (ROOT / "docs/user/doctor.md").read_text()
COMPLAINTS = [f"C{number}" for number in range(1, 29)]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    section = re.split(r"\n#+ ", TEXT.split(f" {heading}\n", 1)[1])[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("area", table.AREAS)
def test_the_checks_of_an_area(area: str) -> None:
    wanted = [
        [f"`{check.name}`", check.sees, check.why, ", ".join(check.covers)]
        for check in table.CHECKS
        if check.area == area
    ]

    assert wanted != []
    assert wanted == rows(f"{area}: {table.AREAS[area]}")


def test_the_table_itself() -> None:
    assert len({check.name for check in table.CHECKS}) == len(table.CHECKS)
    areas = [check.area for check in table.CHECKS]
    assert sorted(areas, key=list(table.AREAS).index) == areas
    assert set(areas) == set(table.AREAS)
    assert all(check.sees and check.why for check in table.CHECKS)
    assert {complaint for check in table.CHECKS for complaint in check.covers} <= set(COMPLAINTS)


def test_every_complaint_is_found_prevented_or_not_applicable() -> None:
    documented = rows("Known complaints")

    assert [row[0] for row in documented] == COMPLAINTS
    for number, words, found_by, prevented in documented:
        assert names(found_by) == [check.name for check in table.CHECKS if number in check.covers]
        assert words
        assert found_by or prevented


def test_what_prevents_a_complaint_is_there() -> None:
    cited = [path for row in rows("Known complaints") for path in names(row[3]) if "/" in path]

    assert cited != []
    assert [path for path in cited if not (ROOT / path).exists()] == []


def test_levels_and_exit_codes() -> None:
    head = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in USER.splitlines()
        if re.match(r"\| `\w+` \|", line)
    ]
    levels = {names(row[0])[0]: int(row[2]) for row in head if len(row) == 3 and names(row[0])[0] in LEVELS}

    assert levels == report.EXIT_CODES


def test_the_keys_of_the_json() -> None:
    data = json.loads(report.as_json([ok("fine")], simulated=""))

    assert [names(row[0])[0] for row in rows("JSON")] == list(data)
    assert names(next(row for row in rows("JSON") if "findings" in row[0])[1]) == list(data["findings"][0])
