"""containerd: /etc/containerd/config.toml in its three versions, and the files it imports. Pure.

Before 2.1 an imported file replaces a plugin's whole table (containerd#5837, #9982), so a small file of ours beside
the main one would switch off every other CRI setting. Therefore the edit is made where the table is: in the last
imported file that has it, else in the main file. A drop-in (``EngineConfig.drop_in``) gets a copy of the whole table.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import NamedTuple

from nvc.base.errors import InputError
from nvc.engines import edit, steps
from nvc.engines.changes import Change, Path, Tree, applied, get, has, table
from nvc.engines.config import EngineConfig, FileEdit, Plan, Sources

#: File version -> the CRI plugin's table (containerd docs/PLUGINS.md).
PLUGINS: dict[int, Path] = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
}
#: The version that a file begins with: 1.6, 1.7 and 2.x read it.
NEW = 2
RELOAD = "systemctl restart containerd"
#: containerd's built-in runtime. A file that names any runtime replaces the built-in table (seen with 1.6: the
#: CRI plugin then fails to load, "no corresponding runtime configured"), so a file without one gets this with ours.
BUILT_IN = "runc"
_PLAIN = {"runtime_type": "io.containerd.runc.v2"}


class _File(NamedTuple):
    path: str
    tree: Tree
    version: int

    @property
    def plugin(self) -> Path:
        return PLUGINS[self.version]


def version(tree: Tree, path: str, otherwise: int = 1) -> int:
    """The version of a file. Raises InputError for one that containerd does not have."""
    if not tree:
        return NEW if otherwise == 1 else otherwise
    found = tree.get("version", otherwise)
    if isinstance(found, bool) or found not in PLUGINS:
        raise InputError(f"{path} has version {found!r}", hint="containerd knows the versions 1, 2 and 3")
    return int(found)


def changes(tree: Tree, number: int, config: EngineConfig, layers: tuple[Tree, ...] = ()) -> list[Change]:
    """The changes that register our runtime. layers: the trees to search for a template, the file's own last."""
    plugin = PLUGINS[number]
    runtimes = (*plugin, "containerd", "runtimes")
    default = (*plugin, "containerd", "default_runtime_name")
    place = (*runtimes, config.name)
    result = [] if "version" in tree or number == 1 else [Change(("version",), number)]
    programs = {"BinaryName": config.path, **({"Runtime": config.path} if number == 1 else {})}
    if config.cdi:
        result.append(Change((*plugin, "enable_cdi"), True))
    if config.default:
        result.append(Change(default, config.name))
    if has(tree, place):
        if not get(tree, (*place, "runtime_type")):
            result.append(Change((*place, "runtime_type"), "io.containerd.runc.v2"))
        return result + [Change((*place, "options", key), value) for key, value in programs.items()]
    copied = steps.template(layers or (tree,), runtimes, default, config)
    if not table(tree, runtimes) and config.name != BUILT_IN:
        named = [table(layer, (*runtimes, BUILT_IN)) for layer in layers]
        result.append(Change((*runtimes, BUILT_IN), next((one for one in reversed(named) if one), _PLAIN)))
    settings = {**_PLAIN, **copied}
    settings["runtime_type"] = settings["runtime_type"] or _PLAIN["runtime_type"]
    settings["options"] = {**table(copied, ("options",)), **programs}
    result.append(Change(place, settings))
    return result


def configure(text: str, config: EngineConfig, path: str = "config.toml") -> str:
    """The main file's new text."""
    tree = edit.read(steps.TOML, text, path)
    return edit.changed(steps.TOML, text, changes(tree, version(tree, path), config), path)


def plan(config: EngineConfig, sources: Sources) -> Plan:
    """The edits of the files. Raises InputError if one cannot be read."""
    main, imported = _files(config, sources)
    looked = tuple(file.path for file in (main, *imported))
    if config.remove:
        edits, notes = _remove(config, sources, main, imported)
        return Plan(edits, looked, notes, RELOAD)
    if config.drop_in:
        edits, notes = _drop_in(config, sources, main, imported)
        return Plan(edits, (*looked, config.drop_in), notes + _warnings(main), RELOAD)
    target = next((file for file in reversed(imported) if has(file.tree, file.plugin)), main)
    others = (main, *imported, *_effective(config))
    layers = tuple(file.tree for file in others if file is not target and file.plugin == target.plugin)
    wanted = changes(target.tree, target.version, config, (*layers, target.tree))
    edits = tuple(steps.put(sources, steps.TOML, target.path, wanted, ours=_any_ours(target, config)))
    moved = () if target is main else (f"{target.path} is imported and has the CRI settings, so the edit is there",)
    return Plan(edits, (target.path,), moved + _warnings(main), RELOAD)


def names(config: EngineConfig, sources: Sources) -> list[str]:
    """The runtimes of ours, in every file."""
    main, imported = _files(config, sources)
    return [name for file in (main, *imported) for name in _ours(file, config)]


def _files(config: EngineConfig, sources: Sources) -> tuple[_File, list[_File]]:
    tree = edit.read(steps.TOML, sources.read(config.main_file), config.main_file)
    known = [file.version for file in _effective(config)] if not tree else []
    main = _File(config.main_file, tree, known[0] if known else version(tree, config.main_file))
    imported = []
    for pattern in _imports(tree):
        for path in sources.listing(_beside(config.main_file, pattern)):
            inner = edit.read(steps.TOML, sources.read(path), path)
            imported.append(_File(path, inner, version(inner, path, main.version)))
    return main, imported


def _effective(config: EngineConfig) -> list[_File]:
    """What containerd prints of its settings, as a file; none where it was not asked."""
    if not config.effective:
        return []
    name = "containerd config dump"
    tree = edit.read(steps.TOML, config.effective, name)
    return [_File(name, tree, version(tree, name))]


def _drop_in(
    config: EngineConfig, sources: Sources, main: _File, imported: list[_File]
) -> tuple[tuple[FileEdit, ...], tuple[str, ...]]:
    path = config.drop_in
    if main.version == 1:
        raise InputError(
            f"{main.path} is of version 1, which cannot have the CRI settings in a file of their own",
            hint="leave --drop-in-config away, or convert the file with: containerd config migrate",
        )
    old = edit.read(steps.TOML, sources.read(path), path)
    others = [file for file in (main, *imported, *_effective(config)) if file.path != path]
    source = next((file for file in reversed(others) if has(file.tree, main.plugin)), main)
    text = sources.read(path)
    edits: list[FileEdit] = []
    if text is not None and not text.startswith(edit.HEADER):
        own = _File(path, old, version(old, path, main.version))
        wanted = changes(old, own.version, config, (source.tree, old))
        edits += steps.put(sources, steps.TOML, path, wanted, ours=_any_ours(own, config))
    else:
        after = edit.changed(steps.TOML, edit.HEADER, _whole(source.tree, old, main, config), path)
        if after != text:
            edits.append(FileEdit(path, text, after, "drop"))
    wanted = _import(main, config)
    edits += steps.put(sources, steps.TOML, main.path, wanted, ours=_pattern(config) in _imports(main.tree))
    copied = has(source.tree, main.plugin)
    note = f"{path} has a copy of the CRI settings of {source.path}, because containerd before 2.1 does not merge them"
    return tuple(edits), ((f"{note}; run this again when you change them there",) if copied else ())


def _whole(source: Tree, old: Tree, main: _File, config: EngineConfig) -> list[Change]:
    """A drop-in's whole content: the present CRI table, our runtimes of other names, and this one."""
    runtimes = (*main.plugin, "containerd", "runtimes")
    tree = applied({"version": main.version}, [Change(main.plugin, table(source, main.plugin))])
    for name, entry in table(old, runtimes).items():
        if name != config.name and steps.is_ours(get(entry, ("options", "BinaryName")), config):
            tree = applied(tree, [Change((*runtimes, name), entry)])
    tree = applied(tree, changes(tree, main.version, config))
    return [Change(("version",), main.version), Change(main.plugin, get(tree, main.plugin))]


def _import(main: _File, config: EngineConfig) -> list[Change]:
    """The changes that make the main file import the drop-in."""
    result = [] if "version" in main.tree else [Change(("version",), main.version)]
    imports = _imports(main.tree)
    if not any(fnmatch(config.drop_in, _beside(main.path, pattern)) for pattern in imports):
        result.append(Change(("imports",), [*imports, _pattern(config)]))
    return result


def _remove(
    config: EngineConfig, sources: Sources, main: _File, imported: list[_File]
) -> tuple[tuple[FileEdit, ...], tuple[str, ...]]:
    edits: list[FileEdit] = []
    notes: list[str] = []
    for file in imported:
        text = sources.read(file.path)
        if text is not None and text.startswith(edit.HEADER) and _ours(file, config) == [config.name]:
            edits.append(FileEdit(file.path, text, None, "drop"))
        else:
            edits += _take(file, config, sources, notes)
    gone = {edit.path for edit in edits if edit.after is None}
    unused = [pattern for pattern in _imports(main.tree) if _only(sources, main, pattern, gone)]
    edits += _take(main, config, sources, notes, unused)
    return tuple(edits), tuple(notes)


def _take(
    file: _File, config: EngineConfig, sources: Sources, notes: list[str], unused: list[str] | None = None
) -> list[FileEdit]:
    """Take our entries out of one file. unused: imports that were only for our drop-in."""
    containerd = (*file.plugin, "containerd")
    place = (*containerd, "runtimes", config.name)
    program = get(file.tree, (*place, "options", "BinaryName"))
    owned: list[Path] = []
    known = sources.backup(file.path) is not None
    if has(file.tree, place) and not steps.is_ours(program, config):
        notes.append(f"the runtime {config.name} in {file.path} is {program}, not ours: it stays")
    else:
        owned.append(place)
        if get(file.tree, (*containerd, "default_runtime_name")) == config.name:
            owned.append((*containerd, "default_runtime_name"))
        if known and has(file.tree, place):
            owned.append((*file.plugin, "enable_cdi"))
        if _built_in_is_ours(file, config):
            owned.append((*containerd, "runtimes", BUILT_IN))
    also: list[Change] = []
    if unused:
        left = [pattern for pattern in _imports(file.tree) if pattern not in unused]
        also.append(Change(("imports",), left) if left else Change(("imports",)))
    if (also or has(file.tree, place)) and not _remains(applied(file.tree, also), owned):
        owned.append(("version",))  # only our entries needed it
    found = config.replace(path=program) if isinstance(program, str) and steps.is_ours(program, config) else config
    number = file.version
    ways: list[steps.Changes] = [
        lambda before, way=way: changes(before, number, way)  # type: ignore[misc]
        for way in steps.variants(found)
    ]
    for pattern in unused or ():
        ways.append(lambda before, pattern=pattern: _import_only(before, file, pattern))  # type: ignore[misc]
    return list(
        steps.take(
            sources,
            steps.TOML,
            file.path,
            owned,
            ways,
            also=also,
            ours_left=lambda left: _any_ours(_File(file.path, left, number), config.replace(every=False)),
        )
    )


def _built_in_is_ours(file: _File, config: EngineConfig) -> bool:
    """Whether only our entry needed that of the built-in runtime: it is as we write it, with no other beside it. The
    same text from another author is containerd's default, and the backup restores it."""
    entries = table(file.tree, (*file.plugin, "containerd", "runtimes"))
    return set(entries) == {config.name, BUILT_IN} and entries[BUILT_IN] == _PLAIN


def _import_only(before: Tree, file: _File, pattern: str) -> list[Change]:
    result = [] if "version" in before else [Change(("version",), file.version)]
    return [*result, Change(("imports",), [*_imports(before), pattern])]


def _remains(tree: Tree, owned: list[Path]) -> bool:
    """Whether a file has more than its version and our entries."""
    left = applied(tree, [Change(path) for path in owned])
    return any(value for key, value in left.items() if key != "version" and not _hollow(value))


def _hollow(value: object) -> bool:
    return isinstance(value, dict) and all(_hollow(inner) for inner in value.values())


def _only(sources: Sources, main: _File, pattern: str, gone: set[str]) -> bool:
    """Whether an import matches only files that are removed."""
    matched = sources.listing(_beside(main.path, pattern))
    return bool(matched) and set(matched) <= gone


def _ours(file: _File, config: EngineConfig) -> list[str]:
    entries = table(file.tree, (*file.plugin, "containerd", "runtimes"))
    return [name for name, entry in entries.items() if steps.is_ours(get(entry, ("options", "BinaryName")), config)]


def _any_ours(file: _File, config: EngineConfig) -> bool:
    return bool(_ours(file, config))


def _imports(tree: Tree) -> list[str]:
    found = tree.get("imports")
    return [pattern for pattern in found if isinstance(pattern, str)] if isinstance(found, list) else []


def _beside(config: str, pattern: str) -> str:
    return pattern if pattern.startswith("/") else f"{config.rpartition('/')[0]}/{pattern}"


def _pattern(config: EngineConfig) -> str:
    return f"{config.drop_in.rpartition('/')[0]}/*.toml"


def _warnings(main: _File) -> tuple[str, ...]:
    disabled = main.tree.get("disabled_plugins")
    names = [name for name in disabled if name in ("cri", PLUGINS[2][1])] if isinstance(disabled, list) else []
    if not names:
        return ()
    return (f"{main.path} has {names[0]} in disabled_plugins: without the CRI plugin no runtime here has any effect",)
