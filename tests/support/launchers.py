"""The product's commands as a test starts them: installed ones, or small launchers onto this checkout.

NVC_TEST_PREFIX names a prefix that ``make install`` filled; then its commands are tested. Otherwise each launcher is what
tools/install writes, pointed at the checkout and at the directory that holds the third-party modules of this interpreter.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_MODULES = {"nvc-py": "nvc.__main__", "nvidia-container-cli": "nvc.__main__", "nvc-hook": "hook.__main__"}


@dataclass(frozen=True)
class Commands:
    """Where the three commands are."""

    directory: Path

    @property
    def nvc(self) -> str:
        return str(self.directory / "nvc-py")

    @property
    def cli(self) -> str:
        return str(self.directory / "nvidia-container-cli")

    @property
    def hook(self) -> str:
        return str(self.directory / "nvc-hook")


def interpreter() -> str:
    """The interpreter itself, not a virtual environment's link to it: what an installed command starts."""
    return os.path.realpath(sys.executable)


def third_party() -> str:
    """The directory that click and its like are imported from."""
    spec = importlib.util.find_spec("click")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("click is not installed for this interpreter")
    return str(Path(spec.origin).parents[1])


def write(directory: Path) -> Commands:
    """Make the launchers in ``directory``; NVC_TEST_PREFIX wins over them."""
    prefix = os.environ.get("NVC_TEST_PREFIX", "")
    if prefix:
        return Commands(Path(prefix, "bin"))
    directory.mkdir(parents=True, exist_ok=True)
    for name, module in _MODULES.items():
        launcher = directory / name
        launcher.write_text(
            f"#!{interpreter()} -IS\nimport sys\nsys.path[:0] = [{str(CHECKOUT)!r}]\n"
            f"sys.path.append({third_party()!r})\nfrom {module} import run\nsys.exit(run())\n"
        )
        launcher.chmod(0o755)
    return Commands(directory)


def with_options(directory: Path, name: str, target: str, *options: str) -> Path:
    """A command NAME in ``directory`` that starts ``target`` with ``options`` before its own arguments.

    For clients whose argument list is theirs to choose (LXC, engines): the only way to point them at a simulated machine.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    words = " ".join(f"'{word}'" for word in (target, *options))
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)
    return path
