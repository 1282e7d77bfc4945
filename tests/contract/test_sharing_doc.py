"""docs/user/sharing.md names every word and key there is, docs/reference/share-variables.md every variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvc.share import abi, dialects, policy, spec
from nvc.share.spec import parse

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "user/sharing.md").read_text()
MEANINGS = (DOCS / "reference/share-variables.md").read_text()
SINGLE = sorted(
    name for name in {*dialects.VARIABLES, *dialects.IGNORED} - {dialects.OWN} if not re.search(r"_\d+$", name)
)


@pytest.mark.parametrize("name", SINGLE)
def test_a_variable_has_a_row(name: str) -> None:
    assert len(re.findall(rf"^\| [^|]*`{name}`[^|]* \| .+ \|$", MEANINGS, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    "name",
    [
        *spec._SETTINGS,
        *policy._RULES,
        "clamp",
        "allow-off",
        "variables",
        "guard",
        "allow-guard-off",
        "unknown-driver",
        "admission",
    ],
)
def test_it_is_named(name: str) -> None:
    assert re.search(rf"[`\n ]{re.escape(name)}\b", TEXT)


@pytest.mark.parametrize("page", ["README.md", "docs/user/sharing.md"])
def test_the_known_drivers_are_named(page: str) -> None:
    first = "\n".join((Path(__file__).parents[2] / page).read_text().split("\n")[:40])
    assert f"{abi.FIRST} to {abi.BEYOND - 1}" in first


@pytest.mark.parametrize("share", re.findall(r"(?:NVC_SHARE|nvc\.share|--share)=([^\s\"`()]+)", TEXT))
def test_its_examples_are_shares(share: str) -> None:
    assert parse(share)


def test_its_policy_is_a_policy() -> None:
    from nvc.share import policyfile

    block = re.search(r"(    \[share\]\n(?:    .*\n)+)", TEXT)
    assert block is not None
    found = policyfile.parse(re.sub("^    ", "", block.group(1), flags=re.MULTILINE).encode(), "docs")
    assert found.maximum.weight == 100
    assert found.variables
