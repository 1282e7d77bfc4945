"""Every mistake of a configuration file, as its readers would say each of them (hook, runtime, shares, agent)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nvc.agent import settings
from nvc.agent.metrics import server
from nvc.base import config_file
from nvc.base.errors import InputError
from nvc.request import hook_config
from nvc.share import policy

if TYPE_CHECKING:
    from collections.abc import Iterator


def mistakes(data: bytes, name: str, *, all_of_them: bool = True) -> list[InputError]:
    """Those in the text of the file called ``name``, by line. Of what is no TOML the first one alone is known.

    all_of_them: those too that keep no program from its work: the agent's metrics.
    """
    try:
        content, found = config_file.examined(data, name)
    except InputError as error:
        return [error]
    lines = config_file.lines_of(data.decode("utf-8"))
    # Each key by itself; then those that are right together, for what two of them contradict.
    alone = [(table, key, _only(path, table[key])) for path, table, key in _leaves(content, ())]
    for table, key, one in alone:
        try:
            _decode(one, name)
            if all_of_them:
                _address(one, name)
        except InputError as error:
            found.append(_placed(error, name, lines))
            del table[key]
    try:
        _decode(content, name)
    except InputError as error:
        found.append(_placed(error, name, lines))
    return sorted(found, key=lambda error: _line(error, name))


def _leaves(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any], str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), table, key


def _only(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The tables of a file that has this key alone."""
    for key in reversed(path):
        value = {key: value}
    found: dict[str, Any] = value
    return found


def _decode(content: dict[str, Any], name: str) -> None:
    hook_config.of_tables(content, (), name)
    policy.decode(content.get(policy.SECTION, {}), name)
    settings.decode(content.get(settings.SECTION, {}), name)


def _address(content: dict[str, Any], name: str) -> None:
    """Raises InputError for an [agent] metrics that is no address: the agent runs without, and its log says so."""
    address = content.get(settings.SECTION, {}).get("metrics", "")
    try:
        if address:
            server.parse(address)
    except InputError as error:
        message = error.message.replace("[agent] metrics", "agent.metrics")
        raise InputError(f"{name}: {message}", hint=error.hint) from None


def _placed(error: InputError, name: str, lines: dict[str, int]) -> InputError:
    """With the line of the key that the message names."""
    found = re.match(rf"{re.escape(name)}: ([\w.-]+)", error.message)
    line = lines.get(found[1].rstrip("."), 0) if found else 0
    return InputError(f"{name}:{line}: {error.message[len(name) + 2 :]}", hint=error.hint) if line else error


def _line(error: InputError, name: str) -> int:
    found = re.match(rf"{re.escape(name)}:(\d+): ", error.message)
    return int(found[1]) if found else 0
