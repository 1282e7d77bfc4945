"""Takes every entry of ours out of an engine's files, whatever its name: what it starts is going to be removed. Pure.

A removal restores what was there before our first edit, and that may be an entry of NVIDIA's toolkit, which has another
name of the same program. So the entries of ours are taken out of what is restored too.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from nvc.engines.config import EngineConfig, FileEdit, Plan, Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: More than an engine's files have entries. A plan that takes nothing out would go on for ever.
_ROUNDS = 64
#: A runtime's name that no file has.
_NOBODY = "\n"


class Pending:
    """Files with edits that are not written yet, as ``config.Sources``. backups: the files before our first edits."""

    def __init__(self, sources: Sources, backups: Callable[[str], str | None]) -> None:
        self._sources = sources
        self._texts: dict[str, str | None] = {}
        self.backup = backups

    def read(self, path: str) -> str | None:
        return self._texts[path] if path in self._texts else self._sources.read(path)

    def put(self, path: str, text: str | None) -> None:
        """From now on this is the file."""
        self._texts[path] = text

    def listing(self, pattern: str) -> Sequence[str]:
        return [path for path in self._sources.listing(pattern) if self.read(path) is not None]


def plan(
    one: Callable[[EngineConfig, Sources], Plan],
    names: Callable[[EngineConfig, Sources], Sequence[str]],
    config: EngineConfig,
    sources: Sources,
) -> Plan:
    """The edits that leave no entry of ours. one: an engine's plan; names: the names of its entries of ours."""
    config = config.replace(remove=True, every=True)

    def before(path: str) -> str | None:
        text = sources.backup(path)
        if text is None:
            return None
        alone = Pending(sources, lambda path: None)
        alone.put(path, text)
        _rounds(one, names, config, alone)
        return alone.read(path)

    pending = Pending(sources, before)
    made, edits, notes = _rounds(one, names, config, pending)
    found = [*names(config, sources)]
    for place in (beside := _beside(config, pending)):
        there = config.replace(drop_in=place)
        found += names(there, pending)
        _, more, said = _rounds(one, names, there, pending)
        # Whatever has the edits, what is said of another program's entry there is said once.
        edits, notes = edits + more, tuple(dict.fromkeys((*notes, *said)))
    # A default may stand in another file than its runtime.
    for place, name in product(beside, found):
        for edit in one(config.replace(drop_in=place, name=name), pending).edits:
            pending.put(edit.path, edit.after)
            edits.append(edit)
    looked = (*made.looked_at, *(place or config.main_file for place in beside))
    return made.replace(edits=tuple(_joined(edits)), notes=notes, looked_at=looked)


def _beside(config: EngineConfig, sources: Pending) -> list[str]:
    """The files that an engine with drop-ins reads beside the one that takes our edits, as values of
    ``EngineConfig.drop_in``: "" for the main file."""
    if not config.drop_in:
        return []
    paths = [path for path in sources.listing(f"{config.drop_in.rpartition('/')[0]}/*") if path != config.drop_in]
    return ["" if path == config.main_file else path for path in dict.fromkeys((*paths, config.main_file))]


def _rounds(
    one: Callable[[EngineConfig, Sources], Plan],
    names: Callable[[EngineConfig, Sources], Sequence[str]],
    config: EngineConfig,
    pending: Pending,
) -> tuple[Plan, list[FileEdit], tuple[str, ...]]:
    """The engine's plan again and again, until no name is left: the last one, every edit, and every note."""
    edits: list[FileEdit] = []
    notes: dict[str, None] = {}
    left = names(config, pending)
    first = made = one(config.replace(name=left[0] if left else _NOBODY), pending)
    for _ in range(_ROUNDS):
        notes |= dict.fromkeys(made.notes)
        for edit in made.edits:
            pending.put(edit.path, edit.after)
            edits.append(edit)
        left = names(config, pending)
        if not left or not (made.edits or made is first):
            break
        made = one(config.replace(name=left[0]), pending)
    return made, edits, tuple(notes)


def _joined(edits: Sequence[FileEdit]) -> list[FileEdit]:
    """One edit a file, from what it is to what the last one makes of it."""
    found: dict[str, FileEdit] = {}
    for edit in edits:
        first = found.get(edit.path)
        if first is not None:
            backup = "drop" if "drop" in (first.backup, edit.backup) else edit.backup
            edit = edit.replace(before=first.before, backup=backup)
        found[edit.path] = edit
    return [edit for edit in found.values() if edit.before != edit.after]
