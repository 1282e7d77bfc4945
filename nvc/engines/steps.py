"""One file's part of a plan: adds or removes entries, and decides about the backup. Pure."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from nvc.base.errors import InputError
from nvc.engines import edit, jsontext, tomltext
from nvc.engines.changes import Tree, get, table
from nvc.engines.config import RUNTIME, RUNTIME_NAMES, EngineConfig, FileEdit, Sources

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

    versions: the changes that ``configure`` may have made, one of which may give exactly this file. also: changes to
    settings that are ours in part.
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
            continue  # this file was not made from a backup that cannot be configured


def variants(config: EngineConfig) -> list[EngineConfig]:
    """Every combination of options that an entry may have been made with."""
    return [config.replace(default=default, cdi=cdi) for default, cdi in product((False, True), repeat=2)]


def is_ours(path: object, config: EngineConfig) -> bool:
    """Whether a runtime's program is ours: nvc-runtime of any directory, or with ``config.every`` one of this
    installation, by any of its names."""
    return is_program(path, config.path, (RUNTIME, *RUNTIME_NAMES), config)


def is_program(path: object, own: str, names: Sequence[str], config: EngineConfig) -> bool:
    """own: the program as it is installed. names: those that stand for it in its directory, its own the first."""
    if not isinstance(path, str):
        return False
    if not config.every:
        return path == own or path.rpartition("/")[2] == names[0]
    directory = own.rpartition("/")[0]
    return config.resolve(path) in {config.resolve(one) for one in (own, *(f"{directory}/{name}" for name in names))}


def template(layers: Sequence[Tree], runtimes: Path, default: Path, config: EngineConfig) -> Tree:
    """The settings of the present default runtime (cgroup driver, monitor, path ...), from which ours are made.

    layers: files in the order the engine reads them.
    """
    named: Tree = {}
    for layer in layers:
        for name, settings in table(layer, runtimes).items():
            if isinstance(settings, dict):
                named[name] = {**named.get(name, {}), **settings}
    defaults = [get(layer, default) for layer in layers if isinstance(get(layer, default), str)]
    for name in (*defaults[-1:], "runc", "crun"):
        if name != config.name and "nvidia" not in name and name in named:
            found: Tree = named[name]
            return found
    return {}
