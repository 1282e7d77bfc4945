"""Which program a hook entry starts: by the names of its path and of what that links to, also through env(1)."""

from __future__ import annotations

import os

from hook.process import DEFAULT_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENV = "env"
#: As many links as the kernel follows.
_LINKS = 40


def words(entry: object) -> tuple[dict[str, Any], list[str]]:
    """The entry and its words, its name first; none of what a runtime would refuse."""
    found = entry.get("args") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(found, list):
        return {}, []
    good = all(isinstance(word, str) and "\0" not in word for word in found)
    return (entry, found) if good else ({}, [])


def environment(entry: dict[str, Any]) -> dict[str, str]:
    """The variables that the entry's program is started with."""
    found = entry.get("env")
    pairs = (word.partition("=") for word in found if isinstance(word, str)) if isinstance(found, list) else ()
    variables = {name: value for name, _, value in pairs}
    if is_env(entry):
        pairs = (word.partition("=") for word in words(entry)[1][1:] if not word.startswith(("-", "/")))
        variables.update((name, value) for name, equals, value in pairs if equals)
    return variables


def is_env(entry: dict[str, Any]) -> bool:
    """Whether it starts another program with other variables."""
    return os.path.basename(str(entry.get("path"))) == _ENV


def names(entry: object) -> set[str]:
    """The names of the program that is started; none where the entry has no path."""
    path = entry.get("path") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(path, str):
        return set()
    found = chain(path)
    if is_env(entry):
        rest = (word for word in words(entry)[1][1:] if "=" not in word and not word.startswith("-"))
        found |= chain(next(rest, ""), environment(entry))
    return found


def chain(path: str, variables: dict[str, str] | None = None) -> set[str]:
    """Its name, and the names of what it links to. variables: of a caller that looks for it in PATH."""
    found = {os.path.basename(path)}
    if path and "/" not in path and variables is not None:
        places = (variables.get("PATH", "").partition("\0")[0] or DEFAULT_PATH).split(":")
        path = next((f"{place}/{path}" for place in places if os.access(f"{place}/{path}", os.X_OK)), path)
    for _ in range(_LINKS):
        try:
            text = os.readlink(path)
        except (OSError, ValueError):
            break
        path = os.path.join(os.path.dirname(path), text)
        found.add(os.path.basename(path))
    return found
