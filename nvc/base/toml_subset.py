"""The part of TOML that configuration files of the container toolkit are written in, read without ``tomllib``.

``tomllib`` costs as much as starting the interpreter twice, for a file that is tables, ``key = true``, ``key = "text"``
and ``key = ["a", "b"]``, a line each. Whatever else a file holds makes ``loads`` answer None, and the caller asks
``tomllib``; tests hold that both read the same.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def loads(text: str) -> dict[str, Any] | None:
    """The tables of ``text``, or None when it is not wholly in the subset (it may still be TOML, or not)."""
    root: dict[str, Any] = {}
    table = root
    opened: set[tuple[str, ...]] = set()
    if not text.isascii() or "\r" in text:
        return None
    for raw in text.split("\n"):
        line = raw.strip(" \t")
        if not line:
            continue
        if line[0] == "#":
            if not line.replace("\t", " ").isprintable():
                return None
        elif line[0] == "[":
            names = _header(line)
            found = None if names is None or names in opened else _enter(root, names)
            if names is None or found is None:
                return None
            opened.add(names)
            table = found
        else:
            name, equals, rest = line.partition("=")
            name = name.rstrip(" \t")
            value = _value(rest.strip(" \t"))
            if not equals or not _is_bare(name) or name in table or value is None:
                return None
            table[name] = value
    return root


def _is_bare(name: str) -> bool:
    return bool(name) and _BARE.issuperset(name)


def _header(line: str) -> tuple[str, ...] | None:
    name, bracket, rest = line[1:].partition("]")
    names = tuple(part.strip(" \t") for part in name.split("."))
    return names if bracket and not rest and all(map(_is_bare, names)) else None


def _enter(root: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    table = root
    for name in names:
        below = table.setdefault(name, {})
        if not isinstance(below, dict):
            return None
        table = below
    return table


def _value(text: str) -> bool | str | list[str] | None:
    """A boolean, a plain string or a list of plain strings; None for anything else."""
    if text in ("true", "false"):
        return text == "true"
    if len(text) >= 2 and text[0] == "[" and text[-1] == "]":
        inner = text[1:-1].strip(" \t")
        items = [_string(part.strip(" \t")) for part in inner.split(",")] if inner else []
        found = [item for item in items if item is not None]
        return found if len(found) == len(items) else None
    return _string(text)


def _string(text: str) -> str | None:
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return None
    inner = text[1:-1]
    return None if '"' in inner or "\\" in inner or not inner.isprintable() else inner
