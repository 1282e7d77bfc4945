"""docs/reference/nvidia-options.md lists every option that NVIDIA's programs have here, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from hook import arguments, cdi_words
from nvc.cli import options
from nvc.cli.ctk.show import rows
from nvc.cli.ctk.tree import ROOT

PAGE = (Path(__file__).parents[2] / "docs/reference/nvidia-options.md").read_text()


def _rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def _options(cell: str) -> set[str]:
    return set(re.findall(r"`--?([a-z][a-z0-9.-]*|[A-Z?])`", cell))


def test_nvidia_ctk() -> None:
    listed = [
        (row[0], frozenset(_options(row[1])), frozenset(re.findall(r"`([A-Z_]+)`", row[2])))
        for row in _rows("nvidia-ctk")
    ]
    known = [
        (" ".join(command.name for command in path[1:]) or "(all)", frozenset(flag.names), frozenset(flag.variables))
        for path, flags in rows(ROOT)
        for flag in flags
    ]

    assert listed == known


def test_nvidia_cdi_hook() -> None:
    listed = {row[0]: _options(row[1]) for row in _rows("nvidia-cdi-hook") if row[0] != "(all)"}
    theirs = {
        name: {option for option, _, _ in values} - {"sim", "config", cdi_words.STATE}
        for name, (_, values) in cdi_words.HOOKS.items()
        if name != "share"
    }

    assert listed == theirs


def test_the_hook() -> None:
    listed = set().union(*(_options(row[0]) for row in _rows("nvidia-container-runtime-hook")))
    own = {"sim", "share-fixed", "timeout", "help"}

    assert listed == {name for name, _, _ in arguments.OPTIONS} - own


def test_nvidia_container_cli() -> None:
    listed = [(row[0], frozenset(_options(row[1]))) for row in _rows("nvidia-container-cli")]
    known = [
        (command or "(all)", frozenset(filter(None, (option.long, option.short))))
        for command in ("", *options.COMMANDS)
        for option in options.rows(command)
        if not option.extra and (not command or option not in options.COMMON)
    ]

    assert listed == known


def test_every_row_says_what_ours_does() -> None:
    for heading in ("nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime-hook", "nvidia-container-cli"):
        for row in _rows(heading):
            assert row[-1], row
