"""Docker: /etc/docker/daemon.json (dockerd(8), "Daemon configuration file"). Pure."""

from __future__ import annotations

from nvc.engines import edit, steps
from nvc.engines.changes import Change, Path, Tree, get, has, table
from nvc.engines.config import EngineConfig, Plan, Sources

DEFAULT = ("default-runtime",)
CDI = ("features", "cdi")


def changes(tree: Tree, config: EngineConfig) -> list[Change]:
    """The changes that register our runtime."""
    place = ("runtimes", config.name)
    result = [Change((*place, "path"), config.path)]
    # dockerd refuses an entry that has both a path and a containerd shim.
    result += [Change((*place, key)) for key in ("runtimeType", "options") if has(tree, (*place, key))]
    if config.default:
        result.append(Change(DEFAULT, config.name))
    if config.cdi:
        result.append(Change(CDI, True))
    return result


def configure(text: str, config: EngineConfig, path: str = "daemon.json") -> str:
    """The file's new text."""
    return edit.changed(steps.JSON, text, changes(edit.read(steps.JSON, text, path), config), path)


def plan(config: EngineConfig, sources: Sources) -> Plan:
    """The edits of the file. Raises InputError if it cannot be read."""
    path = config.main_file
    tree = edit.read(steps.JSON, sources.read(path), path)
    if not config.remove:
        edits = tuple(steps.put(sources, steps.JSON, path, changes(tree, config), ours=_any_ours(tree, config)))
        # Runtimes are read again on reload; the CDI registry is made when the daemon starts (moby daemon/config).
        restart = config.cdi and get(tree, CDI) is not True
        return Plan(edits, (path,), reload=f"systemctl {'restart' if restart else 'reload'} docker")
    owned, notes = _owned(tree, config, sources.backup(path) is not None)
    edits = tuple(
        steps.take(
            sources,
            steps.JSON,
            path,
            owned,
            [lambda before, way=way: changes(before, way) for way in steps.variants(_as_found(tree, config))],  # type: ignore[misc]
            ours_left=lambda left: _any_ours(left, config.replace(every=False)),
        )
    )
    return Plan(edits, (path,), notes, "systemctl restart docker")


def names(config: EngineConfig, sources: Sources) -> list[str]:
    """The runtimes of ours."""
    runtimes = table(edit.read(steps.JSON, sources.read(config.main_file), config.main_file), ("runtimes",))
    return [name for name, entry in runtimes.items() if steps.is_ours(get(entry, ("path",)), config)]


def _as_found(tree: Tree, config: EngineConfig) -> EngineConfig:
    found = get(tree, ("runtimes", config.name, "path"))
    return config.replace(path=found) if isinstance(found, str) and steps.is_ours(found, config) else config


def _owned(tree: Tree, config: EngineConfig, known: bool) -> tuple[list[Path], tuple[str, ...]]:
    """The paths of our entries. known: there is a backup, which shows whether CDI was on before."""
    place = ("runtimes", config.name)
    if has(tree, place) and not steps.is_ours(get(tree, (*place, "path")), config):
        return [], (f"the runtime {config.name} there is {get(tree, (*place, 'path'))}, not ours: it stays",)
    owned: list[Path] = [place]
    if get(tree, DEFAULT) == config.name:
        owned.append(DEFAULT)
    if not has(tree, place):
        return owned, ()
    owned.append(CDI)
    # Without a backup the file is ours from the beginning, whatever its owner has added.
    return owned, () if known or not get(tree, CDI) else (
        "features.cdi is taken out too: switch it on again if you need it",
    )


def _any_ours(tree: Tree, config: EngineConfig) -> bool:
    return any(steps.is_ours(get(entry, ("path",)), config) for entry in table(tree, ("runtimes",)).values())
