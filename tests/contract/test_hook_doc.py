"""docs/user/hook.md names stages, options and kept variables of the hook, docs/reference/configuration.md every key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hook.arguments import OPTIONS, STAGES
from hook.config import MODES, HookConfig
from hook.process import _ALLOWED
from nvc.base.config_file import KEYS
from nvc.request.capabilities import WORDS

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "user/hook.md").read_text()
SETTINGS = (DOCS / "reference/configuration.md").read_text()
NAMES = [
    *(f"`{stage}`" for stage in STAGES),
    *(f"`--{name} {value}`" if value else f"`--{name}`" for name, value, _ in OPTIONS),
    *(f"`{name}`" for name in _ALLOWED),
    *WORDS,
]


@pytest.mark.parametrize("name", NAMES)
def test_named(name: str) -> None:
    assert name in TEXT


def test_the_example_is_a_hook_entry_with_an_environment() -> None:
    example = json.loads(TEXT.split("```json\n", 1)[1].split("```", 1)[0])

    assert example["hook"]["env"] != []
    assert example["hook"]["args"][1] in example["stages"]


def test_every_key_has_a_row_below_its_section_and_no_other_has() -> None:
    found = []
    for part in SETTINGS.split("\n## "):
        section = part.partition("\n")[0] if not part.startswith("#") else ""
        for cell in re.findall(r"^\| (`[^|]*) \|", part, re.MULTILINE):
            found += [(section, key) for key in re.findall(r"`([^`]+)`", cell)]

    assert sorted(found) == sorted((section, key) for section, key, _, _ in KEYS)


def test_defaults_are_the_code_s() -> None:
    defaults = HookConfig()

    for key, value in (
        ("runtimes", defaults.runtimes),
        ("spec-dirs", defaults.spec_directories),
        ("annotation-prefixes", defaults.annotation_prefixes),
    ):
        assert f"| `{key}` | `{json.dumps(value)}` |" in SETTINGS
    assert f"| `default-kind` | `{defaults.default_kind}` |" in SETTINGS
    assert f"| `log-level` | `{defaults.log_level}` |" in SETTINGS
    assert defaults.mode in MODES and f"| `mode` | `{defaults.mode}` |" in SETTINGS
    assert f"| `ldconfig` | {defaults.ldconfig} |" in SETTINGS


@pytest.mark.parametrize(("field", "key"), [(row[3], row[1]) for row in KEYS if row[2] == "boolean" and row[3]])
def test_the_default_of_a_switch(field: str, key: str) -> None:
    value = getattr(HookConfig(), field) ^ key.startswith(("disable-imex", "no-additional"))
    line = next(line for line in SETTINGS.splitlines() if line.startswith("| `") and f"`{key}`" in line.split("|")[1])

    assert line.split("|")[2].strip() == str(value).lower()
