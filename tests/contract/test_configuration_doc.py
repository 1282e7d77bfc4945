"""docs/reference/configuration-shares.md has every key of our own sections, with its default."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nvc.agent.settings import AgentSettings
from nvc.base.config_file import OURS
from nvc.guard.supervisors import USER_COUNT
from nvc.share.model import GpuShare
from nvc.share.policy import Policy

TEXT = (Path(__file__).parents[2] / "docs/reference/configuration-shares.md").read_text()
DEFAULTS = {"share": Policy(), "agent": AgentSettings()}


def rows(section: str) -> dict[str, str]:
    """Key -> default, of a section's table."""
    part = TEXT.partition(f"\n## [{section}]\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| .+ \|$", part, re.MULTILINE)
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize("section", OURS)
def test_each_key_has_a_row_and_no_other(section: str) -> None:
    assert set(rows(section)) == set(OURS[section])


@pytest.mark.parametrize(("section", "key"), [(section, key) for section, keys in OURS.items() for key in keys])
def test_the_default_is_that_of_the_code(section: str, key: str) -> None:
    field = key.replace("-", "_")
    value = DEFAULTS[section].period_us // 1000 if key == "period" else getattr(DEFAULTS[section], field)
    if value == GpuShare():
        value = ""

    assert json.loads(rows(section)[key]) == value


def test_the_number_of_uids() -> None:
    assert f"{USER_COUNT + 1:,} uids" in TEXT
