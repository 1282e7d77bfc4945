"""Reads a command line as nvidia-ctk does, which uses Go's urfave/cli (version 3, command_parse.go).

An option has one dash or two, and its value stands after ``=`` or is the next word. It may stand after an argument, and
one of a command above may stand behind a command below. The last value counts; those of a list add up, and commas
separate items. A variable of the environment stands in for an option that is not given.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvc.base.errors import UsageError
from nvc.base.gobool import FALSE, TRUE
from nvc.base.nearest import did_you_mean
from nvc.cli.ctk.tree import BOOL, LIST, Command, Flag, find

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HELP = Flag("help", BOOL, "show this text", aliases=("h",))
_VERSION = Flag("version", BOOL, "print the version", aliases=("v",))


class WrongUsage(UsageError):
    """The command line cannot be read. path: the commands that were understood."""

    def __init__(self, message: str, path: tuple[Command, ...], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


class Values:
    """What was asked: the commands from the root down, the words that are no options, and the options' values."""

    def __init__(self, path: tuple[Command, ...], rest: list[str], given: dict[Flag, list[str]]) -> None:
        self.path = path
        self.rest = rest
        self._given = given

    def is_set(self, name: str) -> bool:
        """Whether the option is given, on the command line or by a variable."""
        return self._flag(name) in self._given

    def text(self, name: str) -> str:
        """The value of an option, "" where it has none."""
        flag = self._flag(name)
        found = self._given.get(flag, [])
        return found[-1] if found else str(flag.default)

    def flag(self, name: str) -> bool:
        """Whether a switch is on."""
        found = self._given.get(self._flag(name), [])
        return bool(found) and found[-1] in TRUE

    def items(self, name: str) -> tuple[str, ...]:
        """The items of a list."""
        flag = self._flag(name)
        found = self._given.get(flag)
        return tuple(flag.default) if found is None else tuple(found)

    def _flag(self, name: str) -> Flag:
        return next(flag for command in reversed(self.path) for flag in command.flags if flag.name == name)


def parse(root: Command, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Values:
    """Read the words after the program's name. ``help`` and ``version`` of the result's path say what else was asked.

    Raises WrongUsage with urfave/cli's words.
    """
    path: tuple[Command, ...] = (root,)
    given: dict[Flag, list[str]] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0).strip()
        if word == "--":
            rest += left
            break
        if not word.startswith("-"):
            below = find(path[-1], word) if not rest else None
            if below is not None:
                path = (*path, below)
            elif not rest and word in ("help", "h") and path[-1].below:
                return Values(_helped(path, left), [], {_HELP: ["true"]})
            elif word:
                rest.append(word)
            continue
        if word == "-" or not (word.startswith("--") or word[1].isalpha()):
            rest += [word, *left]
            break
        _option(word, left, path, given)
    _from_environment(path, given, os.environ if environment is None else environment)
    return Values(path, rest, given)


def wants(values: Values) -> str:
    """ "help", "version" or "": what is asked in place of the command's work."""
    given = values._given
    if _HELP in given:
        return "help"
    return "version" if _VERSION in given else ""


def known(path: tuple[Command, ...]) -> list[Flag]:
    """The options that may stand after these commands; where two have a name, the lower command's counts."""
    own = (_HELP, _VERSION) if len(path) == 1 else (_HELP,)
    return [*own, *(flag for command in reversed(path) for flag in command.flags)]


def _helped(path: tuple[Command, ...], words: list[str]) -> tuple[Command, ...]:
    for word in words:
        below = find(path[-1], word)
        if below is None:
            break
        path = (*path, below)
    return path


def _option(word: str, left: list[str], path: tuple[Command, ...], given: dict[Flag, list[str]]) -> None:
    dashes = 2 if word.startswith("--") else 1
    name, equals, value = word[dashes:].partition("=")
    flags = {each: flag for flag in reversed(known(path)) for each in flag.names}
    if name in flags:
        if flags[name].kind != BOOL and not equals:
            if not left:
                raise WrongUsage(f"flag needs an argument: {word}", path)
            value = left.pop(0)
        _set(flags[name], name, value, path, given)
        return
    # Short options written together: -io FILE.
    letters = [flags.get(letter) for letter in name] if dashes == 1 and path[-1].bundled else [None]
    if not name or not all(letters):
        hint = did_you_mean(name, (flag.name for flag in known(path) if not flag.hidden), shown="--{}")
        raise WrongUsage(f"flag provided but not defined: -{name}", path, hint)
    for place, (letter, flag) in enumerate(zip(name, letters, strict=True)):
        assert flag is not None
        last = place == len(name) - 1
        if flag.kind != BOOL:
            if not last:
                raise WrongUsage(f"flag provided but not defined: -{name}", path)
            if not equals:
                if not left:
                    raise WrongUsage(f"flag needs an argument: -{letter}", path)
                value = left.pop(0)
        _set(flag, letter, value if last else "", path, given)


def _set(flag: Flag, name: str, value: str, path: tuple[Command, ...], given: dict[Flag, list[str]]) -> None:
    if flag.kind == BOOL:
        value = value or "true"
        if value not in TRUE + FALSE:
            raise WrongUsage(f'invalid value "{value}" for flag -{name}: parse error', path)
    values = given.setdefault(flag, [])
    values += [item.strip() for item in value.split(",")] if flag.kind == LIST else [value]


def _from_environment(path: tuple[Command, ...], given: dict[Flag, list[str]], environment: Mapping[str, str]) -> None:
    for flag in known(path):
        name = next((name for name in flag.variables if environment.get(name)), "")
        if not name or flag in given:
            continue
        value = environment[name]
        if flag.kind == BOOL and value not in TRUE + FALSE:
            raise WrongUsage(
                f'could not parse "{value}" as bool value from environment variable "{name}" for flag {flag.name}: '
                f'strconv.ParseBool: parsing "{value}": invalid syntax',
                path,
            )
        given[flag] = [item.strip() for item in value.split(",")] if flag.kind == LIST else [value]
