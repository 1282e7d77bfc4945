"""TOML files edited in place by tomlkit, which keeps comments, order and layout.

TOML has many ways to write one table (headers, dotted keys, inline, in several places), and an editor that gets one
of them wrong damages the file of a running engine. So every edit is read again with the standard library's parser and
must give exactly the intended tables; if one way of writing does not, the next is tried, and after the last the file
is left unchanged. tomlkit is imported here only, when it is needed.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from nvc.engines.changes import Change, Path, Tree, applied, dotted, fulfilled, has, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NAME = "TOML"
#: What looks like a table's header, and like a line with a key.
_HEADER = re.compile(r"^[ \t]*\[[^=]*\][ \t]*(#.*)?$")
_LINE = re.compile(r"^([ \t]*)[A-Za-z0-9_\"'][^=]*=")
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
            for result in way(text, change):
                if _means(result, wanted, change):
                    return result
        except Exception:
            continue  # tomlkit fails on some valid files: the next way is tried
    raise ValueError(f"{dotted(change.path)} cannot be changed without changing the rest of the file")


def _means(text: str, wanted: Tree, change: Change) -> bool:
    try:
        return fulfilled(parse(text), wanted, [change])
    except ValueError:
        return False


def _ways(text: str, change: Change) -> list[Callable[[str, Change], Iterator[str]]]:
    """Ways of writing a change, the most natural first. Each gives one text or several."""
    if change.unset:
        return [_cut, _cut_line, _delete]
    if isinstance(change.value, dict):
        return [_append, _assign]
    if len(change.path) == 1:
        return [_assign, _prepend]
    return [_assign, _insert, _append] if has(parse(text), change.path) else [_insert, _append, _assign]


def _insert(text: str, change: Change) -> Iterator[str]:
    """As a line after the last one of its table; where that is inside a longer value, as its first line."""
    lines = text.splitlines(keepends=True)
    wanted: object = {}
    for key in reversed(change.path[:-1]):
        wanted = {key: wanted}
    # A line in a multi-line string may look like a header: the check of the result finds that.
    headers = [at for at, line in enumerate(lines) if _HEADER.match(line) and tomllib.loads(line) == wanted]
    for at in headers:
        places = [(at, lines[at][: len(lines[at]) - len(lines[at].lstrip())])]
        for number in range(at + 1, len(lines)):
            if _HEADER.match(lines[number]):
                break
            found = _LINE.match(lines[number])
            if found:
                places.append((number, found[1]))
        for place, indent in (places[-1], (at, places[-1][1])):
            above = "".join(lines[: place + 1])
            end = "" if above.endswith("\n") else "\n"
            yield f"{above}{end}{indent}{line(change.path[-1], change.value)}{''.join(lines[place + 1 :])}"


def _assign(text: str, change: Change) -> Iterator[str]:
    import tomlkit

    document = tomlkit.parse(text)
    parent: Any = document
    for key in change.path[:-1]:
        if key not in parent:
            parent[key] = tomlkit.table()
        parent = parent[key]
    parent[change.path[-1]] = change.value
    yield tomlkit.dumps(document)


def _append(text: str, change: Change) -> Iterator[str]:
    """As tables of their own at the end, which leaves every line of the file as it is."""
    path, value = change.path, change.value
    block = _tables(path, value) if isinstance(value, dict) else _tables(path[:-1], {path[-1]: value})
    if text and not text.endswith("\n"):
        text += "\n"
    yield f"{text}\n{block}" if text else block


def _prepend(text: str, change: Change) -> Iterator[str]:
    yield f"{line(change.path[0], change.value)}{text}"


def _cut(text: str, change: Change) -> Iterator[str]:
    """The headers of a table and of those below it, each with its lines up to the next table's comment."""
    lines = text.splitlines(keepends=True)
    headers = {at: tomllib.loads(line) for at, line in enumerate(lines) if _HEADER.match(line)}
    ours = [at for at, tree in headers.items() if has(tree, change.path)]
    # All of them; or one alone, where another is only a line of a multi-line string.
    for chosen in (ours, *([at] for at in reversed(ours))):
        kept: list[str] = []
        cutting = False
        for at, line in enumerate(lines):
            if at in headers:
                if at in chosen and not cutting:
                    while kept and not kept[-1].strip():
                        kept.pop()  # the blank line before it
                cutting = at in chosen
            elif cutting and line.startswith("#"):
                cutting = False
            if not cutting:
                kept.append(line)
        yield "".join(kept)


def _cut_line(text: str, change: Change) -> Iterator[str]:
    """The one line that sets it."""
    lines = text.splitlines(keepends=True)
    header: Path = ()
    for at, line in enumerate(lines):
        if _HEADER.match(line):
            header = _only_path(tomllib.loads(line))
        elif _LINE.match(line) and change.path[: len(header)] == header:
            try:
                found = has(tomllib.loads(line), change.path[len(header) :])
            except tomllib.TOMLDecodeError:
                continue  # the first line of a longer value
            if found:
                yield "".join(lines[:at] + lines[at + 1 :])


def _only_path(tree: Any) -> Path:
    """The path of the header that was read as ``tree``."""
    path: Path = ()
    while isinstance(tree, dict) and tree:
        key, tree = next(iter(tree.items()))
        path = (*path, key)
    return path


def _delete(text: str, change: Change) -> Iterator[str]:
    import tomlkit

    document = tomlkit.parse(text)
    parent: Any = document
    for key in change.path[:-1]:
        parent = parent[key]
    del parent[change.path[-1]]
    yield tomlkit.dumps(document)


def _tables(path: Path, value: dict[str, Any]) -> str:
    """A table and those below it, by headers."""
    own = {key: inner for key, inner in value.items() if not isinstance(inner, dict)}
    below = {key: inner for key, inner in value.items() if isinstance(inner, dict)}
    blocks = []
    if own or not below:
        blocks.append(f"[{header(path)}]\n{''.join(line(k, v) for k, v in own.items())}")
    blocks += [_tables((*path, key), inner) for key, inner in below.items()]
    return "\n".join(blocks)


def header(path: Path) -> str:
    """The name of a table as its header has it."""
    return ".".join(_key(part) for part in path)


def line(key: str, value: Any) -> str:
    """A key and its value, as a line."""
    import tomlkit

    return f"{_key(key)} = {tomlkit.item(value).as_string()}\n"


def _key(key: str) -> str:
    import tomlkit

    return tomlkit.key(key).as_string()
