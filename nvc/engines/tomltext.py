"""TOML files edited in place by tomlkit, which keeps comments, order and layout.

TOML has many ways to write one table (headers, dotted keys, inline, in several places), and an editor that gets one
of them wrong damages the file of a running engine. So every edit is read again with the standard library's parser and
must give exactly the tables that were meant; if one way of writing does not, the next is tried, and then the file is
left alone. tomlkit is imported here only, when it is needed.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from nvc.engines.changes import Change, Path, Tree, applied, dotted, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAME = "TOML"
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def parse(text: str) -> Tree:
    """The tables of a file. Raises ValueError with the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        found = _AT.search(message)
        if found is None:
            raise ValueError(message) from error
        line = found[1] or str(text.count("\n") + 1)
        column = f", column {found[2]}" if found[2] else ""
        raise ValueError(f"line {line}{column}: {message[: found.start()]}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def apply(text: str, changes: Iterable[Change]) -> str:
    """The text with the changes. Raises ValueError if the file is written in a way that cannot be edited safely."""
    for change in changes:
        text = _one(text, change)
    return text


def _one(text: str, change: Change) -> str:
    tree = parse(text)
    wanted = applied(tree, [change])
    if same(tree, wanted):
        return text
    for way in _ways(text, change):
        try:
            result = way(text, change)
            if same(parse(result), wanted):
                return result
        except Exception:
            continue  # whatever tomlkit stumbles over: the next way is tried
    raise ValueError(f"{dotted(change.path)} cannot be changed without changing the rest of the file")


def _ways(text: str, change: Change) -> list[Callable[[str, Change], str]]:
    if change.unset:
        return [_delete]
    if isinstance(change.value, dict):
        return [_append, _assign]
    if len(change.path) == 1:
        return [_assign, _prepend]
    return [_assign, _append] if _written(text, change.path[:-1]) else [_append, _assign]


def _written(text: str, path: Path) -> bool:
    """Whether the table is written itself, and does not only follow from the tables below it."""
    import tomlkit
    from tomlkit.items import Table

    item: Any = tomlkit.parse(text)
    for key in path:
        if key not in item:
            return False
        item = item[key]
    return not (isinstance(item, Table) and item.is_super_table())


def _assign(text: str, change: Change) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    parent: Any = document
    for key in change.path[:-1]:
        if key not in parent:
            parent[key] = tomlkit.table()
        parent = parent[key]
    parent[change.path[-1]] = change.value
    return tomlkit.dumps(document)


def _append(text: str, change: Change) -> str:
    """As tables of their own at the end, which leaves every line of the file as it is."""
    path, value = change.path, change.value
    block = _tables(path, value) if isinstance(value, dict) else _tables(path[:-1], {path[-1]: value})
    if text and not text.endswith("\n"):
        text += "\n"
    return f"{text}\n{block}" if text else block


def _prepend(text: str, change: Change) -> str:
    return f"{_line(change.path[0], change.value)}{text}"


def _delete(text: str, change: Change) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    parent: Any = document
    for key in change.path[:-1]:
        parent = parent[key]
    del parent[change.path[-1]]
    result = tomlkit.dumps(document)
    ended = text.rstrip("\n")
    if result.rstrip("\n") and ended.endswith(result.rstrip("\n")) is False and result.endswith("\n\n"):
        result = result.rstrip("\n") + "\n"  # the blank line that stood before the table
    return result


def _tables(path: Path, value: dict[str, Any]) -> str:
    """A table and those below it, by headers."""
    own = {key: inner for key, inner in value.items() if not isinstance(inner, dict)}
    below = {key: inner for key, inner in value.items() if isinstance(inner, dict)}
    blocks = []
    if own or not below:
        blocks.append(f"[{'.'.join(_key(part) for part in path)}]\n{''.join(_line(k, v) for k, v in own.items())}")
    blocks += [_tables((*path, key), inner) for key, inner in below.items()]
    return "\n".join(blocks)


def _line(key: str, value: Any) -> str:
    import tomlkit

    return f"{_key(key)} = {tomlkit.item(value).as_string()}\n"


def _key(key: str) -> str:
    import tomlkit

    return tomlkit.key(key).as_string()
