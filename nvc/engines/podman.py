"""Podman: containers.conf, containers.conf.d and hooks.d (containers.conf(5), oci-hooks(5)). Pure."""

from __future__ import annotations

from nvc.engines import edit, layered, steps
from nvc.engines.changes import Tree
from nvc.engines.config import RUNTIME, EngineConfig, Plan, Sources

LAYOUT = layered.Layout(
    runtimes=("engine", "runtimes"),
    default=("engine", "runtime"),
    hooks=("engine", "hooks_dir"),
    below="/usr/share/containers/containers.conf",
    pattern="*.conf",
    entry=lambda template, config: [config.path],
    # A list of places to look for the program: the first that exists is used.
    program=lambda entry: entry[0] if isinstance(entry, list) and entry else None,
    reload="",
    beside=RUNTIME,
)


def configure(text: str, config: EngineConfig, path: str = "containers.conf", layers: tuple[Tree, ...] = ()) -> str:
    """The new text of the file that takes the edits."""
    tree = edit.read(steps.TOML, text, path)
    make = layered.hook_changes if config.hooks else layered.changes
    return edit.changed(steps.TOML, text, make(LAYOUT, list(layers), tree, config), path)


def names(config: EngineConfig, sources: Sources) -> list[str]:
    """The runtimes of ours."""
    return layered.names(LAYOUT, config, sources)


def plan(config: EngineConfig, sources: Sources) -> Plan:
    """The edits of the files. Raises InputError if one cannot be read."""
    made = layered.plan(LAYOUT, config, sources)
    notes = list(made.notes)
    if config.hooks and config.default and not config.remove:
        notes.append("the hook is called for every container: there is no default runtime to set")
    if config.cdi:
        notes.append("Podman supports CDI without configuration: --cdi changes nothing")
    return made.replace(notes=tuple(notes))
