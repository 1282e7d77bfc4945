"""Adds our entries to a file's text, and removes them again. Pure.

Removal restores what was there before, for example the default runtime that we replaced. That is in the backup, made
before the first edit: every path that is ours gets its value from there, all other paths stay as they are now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nvc.base.errors import InputError
from nvc.engines.changes import Change, Path, Tree, applied, emptied, fulfilled, has, towards

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: First line of a file that is ours from the beginning.
HEADER = "# Written by `nvc-py runtime configure`, which takes it away with --remove.\n"


class Form(Protocol):
    """A file format: the modules ``jsontext`` and ``tomltext``."""

    NAME: str

    def parse(self, text: str) -> Tree: ...

    def apply(self, text: str, changes: Iterable[Change]) -> str: ...


def read(form: Form, text: str | None, path: str) -> Tree:
    """The content of a file. Raises InputError with the line and what to do."""
    try:
        return form.parse(_plain(text or "")[0])
    except ValueError as error:
        raise InputError(
            f"{path} is not valid {form.NAME}: {error}",
            hint="the file was not changed; correct it (the engine cannot read it either) and run this again",
        ) from error


def changed(form: Form, text: str, changes: Sequence[Change], path: str) -> str:
    """The text with the changes; line ends and byte order mark as they were.

    Raises InputError if the file is not valid, has something else where a table should be, or cannot be edited
    without damage.
    """
    tree = read(form, text, path)
    plain, mark, ends = _plain(text)
    try:
        wanted = applied(tree, changes)
        result = form.apply(plain, changes)
    except ValueError as error:
        raise InputError(
            f"cannot edit {path}: {error}", hint="the file was not changed; add the entry by hand"
        ) from error
    if not fulfilled(form.parse(result), wanted, changes):
        raise InputError(
            f"cannot edit {path} without changing the rest of it",
            hint="the file was not changed; add the entry by hand",
        )
    return mark + result.replace("\n", ends)


def restored(
    form: Form,
    text: str,
    before: str | None,
    owned: Sequence[Path],
    versions: Iterable[str],
    path: str,
    also: Sequence[Change] = (),
) -> str | None:
    """The text without our entries; None if nothing is left of a file that did not exist before.

    before: the text of the backup, None if there was no file. owned: the paths of our entries.
    versions: the results of configuring ``before``. If the text is one of them, it has no other changes, and the result
    is ``before`` byte by byte. also: changes to settings that are ours in part.
    """
    if any(version == text for version in versions):
        return before
    tree, old = read(form, text, path), _old(form, before)
    owned = [place for place in owned if has(tree, place)]  # a file without our entries keeps its empty tables
    changes = [change for place in owned for change in towards(tree, old, place)]
    changes += also
    changes += emptied(applied(tree, changes), [*owned, *(change.path for change in also)], old)
    if not changes:
        return text
    result = changed(form, text, changes, path)
    if before is None and not form.parse(_plain(result)[0]) and result.strip() in ("", "{}", HEADER.strip()):
        return None
    return result


def _old(form: Form, before: str | None) -> Tree:
    """The content of the backup; {} if it cannot be read."""
    try:
        return form.parse(_plain(before or "")[0])
    except ValueError:
        return {}


def _plain(text: str) -> tuple[str, str, str]:
    """The text with plain line ends and without byte order mark; the mark; the line end."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix("\ufeff")
    # A file of mixed line ends keeps them: TOML and JSON take both.
    windows = "\r\n" in text and text.count("\r\n") == text.count("\n")
    return (text.replace("\r\n", "\n"), mark, "\r\n") if windows else (text, mark, "\n")
