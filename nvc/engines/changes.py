"""Changes to a tree of tables, independent of how the tables are written. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Path = tuple[str, ...]
Tree = dict[str, Any]


class Change:
    """``path`` gets ``value``; without one, it is removed."""

    def __init__(self, path: Path, *value: Any) -> None:
        self.path = path
        self.unset = not value
        self.value = value[0] if value else None

    def __repr__(self) -> str:
        return f"Change({self.path}{'' if self.unset else f', {self.value!r}'})"


def get(tree: Any, path: Path, otherwise: Any = None) -> Any:
    """The value at ``path``."""
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return otherwise
        tree = tree[key]
    return tree


def has(tree: Any, path: Path) -> bool:
    nothing = object()
    return get(tree, path, nothing) is not nothing


def table(tree: Any, path: Path) -> Tree:
    """The table at ``path``; an empty one if it is missing or no table."""
    found = get(tree, path)
    return found if isinstance(found, dict) else {}


def applied(tree: Tree, changes: Iterable[Change]) -> Tree:
    """A copy of ``tree`` with the changes.

    Raises ValueError, naming the place, where a change goes through something that is not a table.
    """
    for change in changes:
        tree = _applied(tree, change.path, change, ())
    return tree


def _applied(tree: Tree, path: Path, change: Change, above: Path) -> Tree:
    key, rest = path[0], path[1:]
    result = dict(tree)
    if not rest:
        if change.unset:
            result.pop(key, None)
        else:
            result[key] = change.value
        return result
    if key not in tree and change.unset:
        return result
    inner = tree.get(key, {})
    if not isinstance(inner, dict):
        raise ValueError(f"{dotted((*above, key))} is not a table")
    result[key] = _applied(inner, rest, change, (*above, key))
    return result


def towards(now: Tree, then: Tree, path: Path) -> list[Change]:
    """The changes that give ``path`` in ``now`` what it has in ``then``, key by key."""
    if not has(then, path):
        return [Change(path)] if has(now, path) else []
    current, wanted = get(now, path), get(then, path)
    if not isinstance(current, dict) or not isinstance(wanted, dict):
        return [] if same(current, wanted) else [Change(path, wanted)]
    changes = [Change((*path, key)) for key in current if key not in wanted]
    for key in wanted:
        changes += towards(now, then, (*path, key))
    return changes


def emptied(tree: Tree, paths: Iterable[Path], before: Tree) -> list[Change]:
    """What removes the tables above ``paths`` that are empty in ``tree`` and were not there ``before``."""
    changes: list[Change] = []
    for path in paths:
        for length in range(len(path) - 1, 0, -1):
            parent = path[:length]
            left = applied(tree, changes)
            if has(left, parent) and get(left, parent) == {} and not has(before, parent):
                changes.append(Change(parent))
    return changes


def fulfilled(tree: Tree, wanted: Tree, changes: Iterable[Change]) -> bool:
    """Whether ``tree`` is the intended result of the changes. An empty table above a path that was unset may be there
    or not: in TOML it often only follows from the tables below it."""
    paths = [change.path for change in changes if change.unset]
    one, other = (applied(each, emptied(each, paths, {})) for each in (tree, wanted))
    return same(one, other)


def same(one: Any, other: Any) -> bool:
    """Equality in which 1 and true differ and NaN equals itself."""
    return _canonical(one) == _canonical(other)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def dotted(path: Path) -> str:
    """A path as TOML writes it: ``plugins."io.containerd.grpc.v1.cri".enable_cdi``."""
    return ".".join(key if key.replace("-", "").replace("_", "").isalnum() else json.dumps(key) for key in path)
