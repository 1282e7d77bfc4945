"""docs/reference/vulnerabilities.md: each known one has a row, and every row tests that exist and name it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/vulnerabilities.md"
#: NVIDIA's security bulletins 5582, 5585, 5599, 5616, 5659 and 5850.
KNOWN = {
    *(f"CVE-2024-013{last}" for last in range(2, 8)),
    "CVE-2025-23266",
    "CVE-2025-23267",
    "CVE-2025-23359",
    "CVE-2026-24260",
}
CVE = re.compile(r"CVE-\d{4}-\d{4,}")


def rows() -> dict[str, list[str]]:
    """CVE -> the cells behind it."""
    lines = [line.strip("|").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| CVE-")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_each_is_in_the_table_once() -> None:
    assert set(rows()) == KNOWN
    assert PAGE.read_text().count("\n| CVE-") == len(KNOWN)


@pytest.mark.parametrize("cve", sorted(KNOWN))
def test_a_row_says_attack_reason_and_tests(cve: str) -> None:
    attack, reason, tests = rows()[cve]
    assert len(attack) > 20
    assert len(reason) > 20
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    assert named
    texts = ""
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        found = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name]
        assert len(found) == 1, f"{path} has no {name}"
        texts += (ast.get_docstring(found[0]) or "") + name
    assert cve in texts, f"none of the tests names {cve}"


def test_no_other_page_names_one_that_is_not_in_the_table() -> None:
    others = {"CVE-2019-5736", "CVE-2019-7303"}
    pages = [path for name in ("docs/user", "docs/internals", "docs/reference") for path in (ROOT / name).rglob("*.md")]
    for path in [*pages, *(ROOT / "nvc").rglob("*.py"), *(ROOT / "hook").rglob("*.py")]:
        assert set(CVE.findall(path.read_text())) <= KNOWN | others, path
