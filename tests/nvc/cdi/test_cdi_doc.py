"""The pages about CDI name every option, mode, strategy and hook, and no option that there is not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from hook.cdi_words import COMMON, HOOKS
from nvc.cdi.gated import CLASSES
from nvc.cdi.generate import MODES, STRATEGIES
from nvc.cli.cdi import generate
from nvc.cli.cdi_files import list_devices, validate
from nvc.cli.main import main
from tests.nvc.cdi.conftest import Machine

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


@pytest.mark.root
def test_the_commands_of_the_page(
    machine: Callable[[str], Machine], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With one directory in place of the two that engines read."""
    blocks = re.findall(r"<!-- run by [^\n]*\n```sh\n(.*?)```", (DOCS / "user/cdi.md").read_text(), re.DOTALL)
    place = tmp_path / "cdi"
    place.mkdir()
    told = []
    for line in "".join(blocks).splitlines():
        words = shlex.split(line.replace("/var/run/cdi", str(place)))
        assert words[:2] == ["nvc-py", "cdi"], line
        if words[2] == "list":
            words.append(f"--spec-dir={place}")
        elif words[2] == "validate":
            words.append(str(place / "nvidia.yaml"))
        assert main([f"--sim={machine('h100x8').host.root}", *words[1:]], "nvc-py") == 0, line
        told.append(capfd.readouterr().out)

    assert "nvidia.com/gpu=0" in told[1]
    assert [name for name in ("nvidia.yaml", "quarter.yaml") if "nvc-cdi-hook" in (place / name).read_text()] == [
        "nvidia.yaml",
        "quarter.yaml",
    ]
    assert "--share=mem=25%" in (place / "quarter.yaml").read_text()
