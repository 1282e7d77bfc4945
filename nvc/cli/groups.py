"""Commands that are click groups of their own (``sim``): imported when called, so that nothing else pays for click."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from nvc.cli.options import GROUPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.cli.settings import Settings


def load(command: str) -> click.Command:
    """The click command of this name."""
    module, attribute = GROUPS[command]
    found: click.Command = getattr(importlib.import_module(module), attribute)
    return found


def run(command: str, arguments: Sequence[str], program: str, general: Settings | None = None) -> int:
    """Run it; the exit code. Wrong arguments are 1, as everywhere; NvcError passes through.

    general: the global options, which commands find in click's context.
    """
    name = f"{program} {command}"
    try:
        result = load(command).main(list(arguments), prog_name=name, standalone_mode=False, obj=general)
    except click.Abort:
        return 1
    except click.ClickException as error:
        error.show()
        return 1
    # A number is what the command returned, or the code of click's Exit, which this mode returns too.
    return result if isinstance(result, int) else 0
