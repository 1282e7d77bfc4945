"""One file's part of a plan: putting entries in, or taking them out, with the right backup. Pure."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from nvc.engines import edit, jsontext, tomltext
from nvc.engines.changes import Tree, get, table
from nvc.engines.wish import RUNTIME, FileEdit, Sources, Wish
from nvc.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nvc.engines.changes import Change, Path
    from nvc.engines.edit import Form

    Changes = Callable[[Tree], Sequence[Change]]

JSON: Form = jsontext
TOML: Form = tomltext


def put(
    sources: Sources, form: Form, path: str, changes: Sequence[Change], *, ours: bool, header: str = ""
) -> Iterator[FileEdit]:
    """The edit that makes the changes, or none if they are made. ours: the file has an entry of ours already, so that
    its backup is the one to keep. header: what a new file begins with."""
    before = sources.read(path)
    after = edit.changed(form, header if before is None else before, changes, path)
    if changes and after != before:
        backup = "drop" if before is None else "keep" if ours else "make"
        yield FileEdit(path, before, after, backup)


def take(
    sources: Sources,
    form: Form,
    path: str,
    owned: Sequence[Path],
    versions: Iterable[Changes],
    *,
    header: str = "",
    also: Sequence[Change] = (),
    ours_left: Callable[[Tree], bool] = lambda tree: False,
) -> Iterator[FileEdit]:
    """The edit that takes ``owned`` out, or none if there is nothing to take.

    versions: what configuring may have changed, of which one may have made exactly this file. also: changes to what
    is ours in part.
    ours_left: whether the result still has an entry of ours (another runtime's name), whose backup must stay.
    """
    text = sources.read(path)
    if text is None:
        return
    before = sources.backup(path)
    made = _made(form, header if before is None else before, versions, path)
    after = edit.restored(form, text, before, owned, made, path, also)
    if after != text:
        left = after is not None and ours_left(edit.read(form, after, path))
        yield FileEdit(path, text, after, "keep" if left else "drop")


def _made(form: Form, before: str, versions: Iterable[Changes], path: str) -> Iterator[str]:
    for changes in versions:
        try:
            yield edit.changed(form, before, changes(edit.read(form, before, path)), path)
        except InputError:
            continue  # a backup that cannot be configured is not what this file was made from


def variants(wish: Wish) -> list[Wish]:
    """Every way in which an entry may have been asked for."""
    return [wish.replace(default=default, cdi=cdi) for default, cdi in product((False, True), repeat=2)]


def is_ours(path: object, wish: Wish) -> bool:
    """Whether a runtime's program is ours."""
    return isinstance(path, str) and (path == wish.path or path.rpartition("/")[2] == RUNTIME)


def template(layers: Sequence[Tree], runtimes: Path, default: Path, wish: Wish) -> Tree:
    """The settings of the runtime that containers have used so far (which may name a cgroup driver, a monitor, a
    path): ours starts from them. layers: files in the order the engine reads them."""
    named: Tree = {}
    for layer in layers:
        for name, settings in table(layer, runtimes).items():
            if isinstance(settings, dict):
                named[name] = {**named.get(name, {}), **settings}
    defaults = [get(layer, default) for layer in layers if isinstance(get(layer, default), str)]
    for name in (*defaults[-1:], "runc", "crun"):
        if name != wish.name and "nvidia" not in name and name in named:
            found: Tree = named[name]
            return found
    return {}
