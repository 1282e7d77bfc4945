"""What CRI-O and Podman share: a main TOML file, a directory of drop-ins that are merged key by key, runtimes in one
table, and directories of hooks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nvc.engines import edit, hooksd, steps
from nvc.engines.changes import Change, Path, Tree, get, has, table
from nvc.engines.config import EngineConfig, FileEdit, Plan, Sources

if TYPE_CHECKING:
    from collections.abc import Callable


class Layout(NamedTuple):
    """Where an engine's settings are. below: the distribution's file under the main one. pattern: what the engine
    reads of the drop-in directory. entry: a runtime's settings, from the template and our program. program: the path
    in such settings, None if there is none. beside: the name under which our runtime is registered beside the hook, ""
    for none."""

    runtimes: Path
    default: Path
    hooks: Path
    below: str
    pattern: str
    entry: Callable[[Tree, EngineConfig], object]
    program: Callable[[object], object]
    reload: str
    beside: str = ""


def target(config: EngineConfig) -> str:
    """The file that takes the edits."""
    return config.drop_in or config.main_file


def plan(layout: Layout, config: EngineConfig, sources: Sources) -> Plan:
    """The edits of the files. Raises InputError if one cannot be read."""
    path = target(config)
    tree = edit.read(steps.TOML, sources.read(path), path)
    layers = _layers(layout, config, sources)
    if config.remove:
        edits, notes = _remove(layout, config, sources, tree, layers)
        return Plan(edits, (path, hooksd.path(config)), notes, layout.reload)
    ours = _any_ours(layout, tree, config) or (sources.read(path) or "").startswith(edit.HEADER)
    if sources.read(hooksd.path(config)) is not None:
        ours = ours or config.hooks_dir in _strings(get(tree, layout.hooks))
    if config.hooks:
        wanted = hook_changes(layout, layers, tree, config)
        edits = (
            *hooksd.put(config, sources),
            *steps.put(sources, steps.TOML, path, wanted, ours=ours, header=edit.HEADER),
        )
        directories = [*_effective(layout, layers), hooksd.BUILT_IN, config.hooks_dir]
        notes = hooksd.twice(config, sources, sorted(set(directories)))
        notes += _foreign(layout, tree, config, (layout.beside,) if layout.beside else ())
        return Plan(edits, (hooksd.path(config), path), notes, layout.reload)
    wanted = changes(layout, layers, tree, config)
    edits = tuple(steps.put(sources, steps.TOML, path, wanted, ours=ours, header=edit.HEADER))
    notes = ()
    if sources.read(hooksd.path(config)) is not None:
        notes = (
            f"{hooksd.path(config)} starts our hook for every container already: remove it, or do not add the runtime",
        )
    return Plan(edits, (path,), notes, layout.reload)


def names(layout: Layout, config: EngineConfig, sources: Sources) -> list[str]:
    """The runtimes of ours in the file that takes the edits."""
    tree = edit.read(steps.TOML, sources.read(target(config)), target(config))
    runtimes = table(tree, layout.runtimes)
    return [name for name, entry in runtimes.items() if steps.is_ours(layout.program(entry), config)]


def changes(layout: Layout, layers: list[Tree], tree: Tree, config: EngineConfig) -> list[Change]:
    """The changes that register our runtime. layers: all files but the target, in the order of reading."""
    place = (*layout.runtimes, config.name)
    result = [Change(layout.default, config.name)] if config.default else []
    if has(tree, place):
        entry = layout.entry(table(tree, place), config)
        if isinstance(entry, dict):
            return result + [Change((*place, key), value) for key, value in entry.items()]
        return [*result, Change(place, entry)]
    base = steps.template([*layers, tree], layout.runtimes, layout.default, config)
    return [*result, Change(place, layout.entry(base, config))]


def hook_changes(layout: Layout, layers: list[Tree], tree: Tree, config: EngineConfig) -> list[Change]:
    """What makes the engine read the hooks' directory, and know our runtime where the layout has one beside the hook.

    A list replaces the one before it, so ours repeats it.
    """
    known = _effective(layout, [*layers, tree])
    result = [] if config.hooks_dir in known else [Change(layout.hooks, [*known, config.hooks_dir])]
    place = (*layout.runtimes, layout.beside)
    if layout.beside and not _foreign(layout, tree, config, (layout.beside,)):
        result.append(Change(place, layout.entry({}, config)))
    return result


def _foreign(layout: Layout, tree: Tree, config: EngineConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """A note about each of these runtimes that the file has and that is another program."""
    found = {name: layout.program(get(tree, (*layout.runtimes, name))) for name in names}
    there = [name for name in names if has(tree, (*layout.runtimes, name)) and not steps.is_ours(found[name], config)]
    return tuple(f"the runtime {name} in {target(config)} is {found[name]}, not ours: it stays" for name in there)


def _remove(
    layout: Layout, config: EngineConfig, sources: Sources, tree: Tree, layers: list[Tree]
) -> tuple[tuple[FileEdit, ...], tuple[str, ...]]:
    path = target(config)
    names = tuple(dict.fromkeys(filter(None, (config.name, layout.beside))))
    notes = _foreign(layout, tree, config, names)
    owned: list[Path] = []
    also: list[Change] = []
    found = config
    for name in names:
        place = (*layout.runtimes, name)
        program = layout.program(get(tree, place))
        if has(tree, place) and not steps.is_ours(program, config):
            continue
        owned.append(place)
        # Where the programs go, a default may name a runtime that another file gives another program.
        if get(tree, layout.default) == name and not (config.every and any(has(layer, place) for layer in layers)):
            owned.append(layout.default)
        found = found.replace(path=program) if isinstance(program, str) else found
    default = get(tree, layout.default)
    if isinstance(default, str) and "/" in default and steps.is_ours(default, config):
        owned.append(layout.default)
    hook = tuple(
        hooksd.take(config, sources, [one for layer in (*layers, tree) for one in _strings(get(layer, layout.hooks))])
    )
    read_on = False
    gone = {edit.path for edit in hook}
    emptied = config.hooks_dir in {path.rpartition("/")[0] for path in gone}
    if config.every and edit.HEADER in (sources.read(path) or "") and sources.read(hooksd.path(config)) is None:
        emptied = True  # with another engine's hook: both read the same directory
    if emptied and config.hooks_dir in _strings(get(tree, layout.hooks)):
        if hooksd.others(config, sources, gone):
            read_on = True
            notes += (f"{config.hooks_dir} has other hooks, so the engine goes on reading it",)
        else:
            left = [name for name in _strings(get(tree, layout.hooks)) if name != config.hooks_dir]
            repeated = left == _effective(layout, layers)  # the default
            also.append(Change(layout.hooks) if repeated else Change(layout.hooks, left))
    ways: list[steps.Changes] = [
        lambda before, way=way: changes(layout, layers, before, way)  # type: ignore[misc]
        for way in steps.variants(found)
    ]
    if emptied and not read_on:
        ways.append(lambda before: hook_changes(layout, layers, before, found))
    edits = steps.take(
        sources,
        steps.TOML,
        path,
        owned,
        ways,
        header=edit.HEADER,
        also=also,
        ours_left=lambda left: _any_ours(layout, left, config.replace(every=False)),
    )
    return (*hook, *edits), notes


def _layers(layout: Layout, config: EngineConfig, sources: Sources) -> list[Tree]:
    """Every file but the target, in the order of reading."""
    names = [layout.below, config.main_file]
    if config.drop_in:
        names += sources.listing(f"{config.drop_in.rpartition('/')[0]}/{layout.pattern}")
    trees = [edit.read(steps.TOML, sources.read(name), name) for name in names if name and name != target(config)]
    return [*trees, *([edit.read(steps.TOML, config.effective, "crio status config")] if config.effective else [])]


def _effective(layout: Layout, layers: list[Tree]) -> list[str]:
    """The directories of hooks that the engine reads."""
    known = [hooksd.BUILT_IN]
    for layer in layers:
        found = get(layer, layout.hooks)
        if isinstance(found, list):
            # containers.conf(5): a table {append = true} in a list adds it to the one before.
            appended = any(isinstance(item, dict) and item.get("append") is True for item in found)
            known = [*known, *_strings(found)] if appended else _strings(found)
    return known


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _any_ours(layout: Layout, tree: Tree, config: EngineConfig) -> bool:
    return any(steps.is_ours(layout.program(entry), config) for entry in table(tree, layout.runtimes).values())
