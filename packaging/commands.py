"""The commands that are installed: read from tools/install, where they are listed."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def commands() -> list[tuple[str, str]]:
    """(name, module) of each; the first with a module is its own name, the others stand in for NVIDIA's programs."""
    text = (CHECKOUT / "tools/install").read_text(encoding="utf-8")
    found = re.search(r"^commands='\n(.*?)^'$", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError("tools/install: there is no list of commands")
    return [(name, module) for name, module in (line.split() for line in found[1].splitlines())]


def own_names() -> dict[str, str]:
    """Every name of a command -> the name of its own."""
    first: dict[str, str] = {}
    return {name: first.setdefault(module, name) for name, module in commands()}
