"""Every command of nvc-py, walked through click's tree."""

from __future__ import annotations

from collections.abc import Iterator

import click

from nvc.cli import groups, options


def every() -> list[str]:
    """Paths of all commands, groups too: "info", "share", "share set"."""
    return [*options.COMMANDS, *(path for name in options.GROUPS for path, _ in below(name, groups.load(name)))]


def clicks() -> dict[str, click.Command]:
    """Path -> command, of those that are click's."""
    return {path: found for name in options.GROUPS for path, found in below(name, groups.load(name))}


def leaves() -> list[str]:
    """Paths of those that do something."""
    return [path for path in every() if not isinstance(clicks().get(path), click.Group)]


def below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from below(f"{path} {name}", child)


def json_options(command: click.Command) -> list[click.Parameter]:
    return [param for param in command.params if "--json" in param.opts and not getattr(param, "hidden", False)]
