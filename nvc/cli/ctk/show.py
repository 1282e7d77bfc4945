"""What nvidia-ctk prints beside its results: help, in the order of urfave/cli, and lines on standard error as logrus
writes them when that is no terminal, because scripts search those."""

from __future__ import annotations

import json
import textwrap
import time
from typing import TYPE_CHECKING

from nvc.cli.ctk.parse import known
from nvc.cli.ctk.tree import BOOL, LIST, Command, Flag
from nvc.cli.text import emit

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTH = 100


class Log:
    """Lines on standard error. quiet: errors only. debug: everything."""

    def __init__(self, *, debug: bool = False, quiet: bool = False) -> None:
        self._debug = debug and not quiet
        self._quiet = quiet

    def debug(self, text: str) -> None:
        if self._debug:
            self._write("debug", text)

    def info(self, text: str) -> None:
        if not self._quiet:
            self._write("info", text)

    def warn(self, text: str) -> None:
        if not self._quiet:
            self._write("warning", text)

    def error(self, text: str) -> None:
        self._write("error", text)

    @staticmethod
    def _write(level: str, text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        emit(2, f'time="{stamp}" level={level} msg={json.dumps(text, ensure_ascii=False)}\n')


def help_text(path: tuple[Command, ...]) -> str:
    """What --help shows for the last of these commands."""
    command = path[-1]
    names = " ".join(one.name for one in path)
    parts = [f"NAME:\n   {names} - {command.help}\n", f"USAGE:\n   {names} {_usage(command)}\n"]
    if command.below:
        rows = [(", ".join((one.name, *one.aliases)), one.help) for one in command.below]
        parts.append("COMMANDS:\n" + _table([*rows, ("help, h", "Show this text for a command")]))
    own = [flag for flag in known(path) if not flag.hidden and (flag in command.flags or flag.names[-1] in "hv")]
    parts.append("OPTIONS:\n" + _table([_row(flag) for flag in own]))
    above = [flag for one in path[:-1] for flag in one.flags if not flag.hidden]
    if above:
        parts.append("GLOBAL OPTIONS:\n" + _table([_row(flag) for flag in above]))
    return "\n".join(parts)


def rows(command: Command, path: tuple[Command, ...] = ()) -> Iterator[tuple[tuple[Command, ...], tuple[Flag, ...]]]:
    """Every command below, itself first: (the commands down to it, its own options)."""
    here = (*path, command)
    yield here, command.flags
    for below in command.below:
        yield from rows(below, here)


def written(flag: Flag) -> str:
    """An option as help shows it: ``--in-place, -i`` or ``--set VALUE``."""
    value = {BOOL: "", LIST: " VALUE[,VALUE...]"}.get(flag.kind, " VALUE")
    return ", ".join(f"{'-' if len(name) == 1 else '--'}{name}" for name in flag.names) + value


def described(flag: Flag) -> str:
    """What an option does, its default, and the variables that stand in for it."""
    default = ", ".join(flag.default) if isinstance(flag.default, tuple) else flag.default
    notes = [f"default: {default}"] if default else []
    notes += [f"${name}" for name in flag.variables]
    return f"{flag.help} ({'; '.join(notes)})" if notes else flag.help


def _usage(command: Command) -> str:
    return "[OPTION...] [COMMAND [OPTION...]]" if command.below else "[OPTION...]"


def _row(flag: Flag) -> tuple[str, str]:
    return written(flag), described(flag)


def _table(rows: list[tuple[str, str]]) -> str:
    lines = []
    for term, text in rows:
        wrapped = textwrap.wrap(text, _WIDTH - 8)
        lines.append(f"   {term}")
        lines += [f"       {line}" for line in wrapped]
    return "\n".join(lines) + "\n"
