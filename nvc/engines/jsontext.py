"""JSON files edited in place: only the members that change are touched, so layout and order of all others stay.

Pure. The scanner finds where members begin and end; ``json`` decodes what is between.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from nvc.engines.changes import Change, Path, Tree, get, has, same

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "JSON"
#: Indentation for a file without any.
_INDENT = "    "
_SPACE = " \t\r\n"


class _Member(NamedTuple):
    key: str
    start: int
    value: int
    end: int


def parse(text: str) -> Tree:
    """The members of a file. A file of nothing but white space has none.

    Raises ValueError with the line, if it is not JSON, no object, or names a member twice (of which one would be
    lost in the editing, and engines differ in which one they use).
    """
    if not text.strip(_SPACE):
        return {}
    try:
        found = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(found, dict):
        raise ValueError("line 1: it is not a JSON object")
    return found


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it has {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return result


def apply(text: str, changes: Iterable[Change]) -> str:
    """The text with the changes."""
    for change in changes:
        tree = parse(text)
        if change.unset:
            text = _delete(text, change.path) if has(tree, change.path) else text
        elif not has(tree, change.path) or not same(get(tree, change.path), change.value):
            text = _set(text, tree, change.path, change.value)
    return text


def _set(text: str, tree: Tree, path: Path, value: Any) -> str:
    if not text.strip(_SPACE):
        text = "{}\n"
    indent = _indent(text)
    start, depth = _skip(text, 0), 0
    while True:
        members, close = _members(text, start)
        found = next((member for member in members if member.key == path[depth]), None)
        if found is None:
            break
        if depth == len(path) - 1:
            return text[: found.value] + _render(value, indent, depth + 1) + text[found.end :]
        start, depth = found.value, depth + 1
    for key in reversed(path[depth + 1 :]):
        value = {key: value}
    return _insert(text, start, members, close, json.dumps(path[depth], ensure_ascii=False), value, depth + 1)


def _insert(text: str, start: int, members: list[_Member], close: int, key: str, value: Any, depth: int) -> str:
    indent = _indent(text)
    if not members:
        if indent is None:
            return f"{text[: start + 1]}{key}: {_render(value, None, depth)}{text[close:]}"
        inner, outer = indent * depth, indent * (depth - 1)
        return f"{text[: start + 1]}\n{inner}{key}: {_render(value, indent, depth)}\n{outer}{text[close:]}"
    last = members[-1]
    before = text[max(text.rfind(sign, 0, last.start) for sign in "{,") + 1 : last.start]
    if "\n" in before:
        own = before[before.rfind("\n") + 1 :]
        if indent and own != indent * depth:  # a file with mixed indentation
            rendered = _render(value, indent, 0).replace("\n", f"\n{own}")
        else:
            rendered = _render(value, indent or _INDENT, depth)
        return f"{text[: last.end]},\n{own}{key}: {rendered}{text[last.end :]}"
    return f"{text[: last.end]}, {key}: {_render(value, None, depth)}{text[last.end :]}"


def _delete(text: str, path: Path) -> str:
    start = _skip(text, 0)
    for key in path[:-1]:
        start = next(member.value for member in _members(text, start)[0] if member.key == key)
    members, close = _members(text, start)
    index = next(index for index, member in enumerate(members) if member.key == path[-1])
    if index:
        return text[: members[index - 1].end] + text[members[index].end :]
    if len(members) > 1:
        return text[: members[0].start] + text[members[1].start :]
    return text[: start + 1] + text[close:]


def _members(text: str, start: int) -> tuple[list[_Member], int]:
    """The members of the object that begins at ``start``, and where its closing brace is. The text is known to be
    JSON."""
    members = []
    decoder = json.JSONDecoder()
    at = _skip(text, start + 1)
    while text[at] != "}":
        key_start = at
        key, at = decoder.raw_decode(text, at)
        value = _skip(text, _skip(text, at) + 1)  # the colon is one character
        _, end = decoder.raw_decode(text, value)
        members.append(_Member(key, key_start, value, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return members, at


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _indent(text: str) -> str | None:
    """The indentation of one level; None if the file is on one line."""
    start = _skip(text, 0)
    first = _skip(text, start + 1)
    if text[first] == "}":
        return _INDENT
    if "\n" not in text[start:first]:
        return None
    return text[text.rfind("\n", 0, first) + 1 : first] or None


def _render(value: Any, indent: str | None, depth: int) -> str:
    rendered = json.dumps(value, ensure_ascii=False, indent=indent)
    return rendered.replace("\n", "\n" + (indent or "") * depth)
