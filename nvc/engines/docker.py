"""Docker: /etc/docker/daemon.json (dockerd(8), "Daemon configuration file"). Pure."""

from __future__ import annotations

from nvc.engines import edit, steps
from nvc.engines.changes import Change, Path, Tree, get, has, table
from nvc.engines.wish import Plan, Sources, Wish

DEFAULT = ("default-runtime",)
CDI = ("features", "cdi")


def changes(tree: Tree, wish: Wish) -> list[Change]:
    """What makes dockerd know our runtime."""
    place = ("runtimes", wish.name)
    result = [Change((*place, "path"), wish.path)]
    # dockerd refuses an entry that has both a path and a containerd shim.
    result += [Change((*place, key)) for key in ("runtimeType", "options") if has(tree, (*place, key))]
    if wish.default:
        result.append(Change(DEFAULT, wish.name))
    if wish.cdi:
        result.append(Change(CDI, True))
    return result


def configure(text: str, wish: Wish, path: str = "daemon.json") -> str:
    """The file's new text."""
    return edit.changed(steps.JSON, text, changes(edit.read(steps.JSON, text, path), wish), path)


def plan(wish: Wish, sources: Sources) -> Plan:
    """What has to be done to the file. Raises InputError if it cannot be read."""
    path = wish.config
    tree = edit.read(steps.JSON, sources.read(path), path)
    if not wish.remove:
        edits = tuple(steps.put(sources, steps.JSON, path, changes(tree, wish), ours=_any_ours(tree, wish)))
        # Runtimes are read again on reload; the CDI registry is made when the daemon starts (moby daemon/config).
        restart = wish.cdi and get(tree, CDI) is not True
        return Plan(edits, (path,), reload=f"systemctl {'restart' if restart else 'reload'} docker")
    owned, notes = _owned(tree, wish, sources.backup(path) is not None)
    edits = tuple(
        steps.take(
            sources,
            steps.JSON,
            path,
            owned,
            [lambda before, way=way: changes(before, way) for way in steps.variants(_as_found(tree, wish))],  # type: ignore[misc]
            ours_left=lambda left: _any_ours(left, wish),
        )
    )
    return Plan(edits, (path,), notes, "systemctl restart docker")


def _as_found(tree: Tree, wish: Wish) -> Wish:
    found = get(tree, ("runtimes", wish.name, "path"))
    return wish.replace(path=found) if isinstance(found, str) else wish


def _owned(tree: Tree, wish: Wish, known: bool) -> tuple[list[Path], tuple[str, ...]]:
    """The places that are ours. known: there is a backup, which tells who switched CDI on."""
    place = ("runtimes", wish.name)
    if has(tree, place) and not steps.is_ours(get(tree, (*place, "path")), wish):
        return [], (f"the runtime {wish.name} there is {get(tree, (*place, 'path'))}, not ours: it stays",)
    owned: list[Path] = [place]
    if get(tree, DEFAULT) == wish.name:
        owned.append(DEFAULT)
    if known and has(tree, place):
        owned.append(CDI)
    return owned, ()


def _any_ours(tree: Tree, wish: Wish) -> bool:
    return any(steps.is_ours(get(entry, ("path",)), wish) for entry in table(tree, ("runtimes",)).values())
