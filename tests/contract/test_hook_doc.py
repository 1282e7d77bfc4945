"""docs/user/hook.md names every stage, option, kept variable and configuration key of the hook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hook.arguments import OPTIONS, STAGES
from hook.process import _ALLOWED
from nvc.base.config_file import KEYS
from nvc.request.capabilities import WORDS

TEXT = (Path(__file__).parents[2] / "docs/user/hook.md").read_text()
NAMES = [
    *(f"`{stage}`" for stage in STAGES),
    *(f"`--{name} {value}`" if value else f"`--{name}`" for name, value, _ in OPTIONS),
    *(f"`{name}`" for name in _ALLOWED),
    *(f"`{key}`" for _, key, _, _ in KEYS),
    *WORDS,
]


@pytest.mark.parametrize("name", NAMES)
def test_named(name: str) -> None:
    assert name in TEXT


def test_the_example_is_a_hook_entry_with_an_environment() -> None:
    example = json.loads(TEXT.split("```json\n", 1)[1].split("```", 1)[0])

    assert example["hook"]["env"] != []
    assert example["hook"]["args"][1] in example["stages"]
