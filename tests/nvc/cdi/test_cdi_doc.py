"""The pages about CDI name every option, mode, strategy and hook, and no option that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from hook.cdi_words import COMMON, HOOKS
from nvc.cdi.gated import CLASSES
from nvc.cdi.generate import MODES, STRATEGIES
from nvc.cli.cdi import generate, list_devices, validate

DOCS = Path(__file__).parents[3] / "docs"
TEXT = "".join((DOCS / page).read_text() for page in ("user/cdi.md", "reference/cdi-hooks.md"))
#: Shown by --help and of no interest to a page about CDI.
UNEXPLAINED = {"--format", "--json", "--spec-dir", "--help"}


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


HOOK_OPTIONS = {f"--{option}" for _, rows in HOOKS.values() for option, _, _ in (*rows, *COMMON)}
COMMAND_OPTIONS = options(generate) | options(list_devices) | options(validate)


@pytest.mark.parametrize(
    "name", [*sorted((COMMAND_OPTIONS - UNEXPLAINED) | HOOK_OPTIONS), *(f"`{hook}`" for hook in HOOKS), *STRATEGIES]
)
def test_named(name: str) -> None:
    assert name in TEXT


def test_modes_are_named() -> None:
    assert all(f"| `{mode}` | `nvidia.com/{device_class}` |" in TEXT for mode, device_class in CLASSES.items())
    assert f"--mode {MODES[-1]}" in TEXT


def test_no_option_is_invented() -> None:
    others = {"--device", "--annotation", "--nvidia-cdi-hook-path"}
    assert set(re.findall(r"--[a-z-]+[a-z]", TEXT)) - others <= COMMAND_OPTIONS | HOOK_OPTIONS
