"""CRI-O: /etc/crio/crio.conf and crio.conf.d (crio.conf(5)). Pure.

CRI-O reads every file in crio.conf.d, whatever its name (pkg/config: UpdateFromPath): no backup may lie there.
"""

from __future__ import annotations

from nvc.engines import edit, layered, steps
from nvc.engines.changes import Tree, get
from nvc.engines.config import EngineConfig, Plan, Sources


def _entry(template: Tree, config: EngineConfig) -> Tree:
    return {**template, "runtime_path": config.path, "runtime_type": "oci"}


LAYOUT = layered.Layout(
    runtimes=("crio", "runtime", "runtimes"),
    default=("crio", "runtime", "default_runtime"),
    hooks=("crio", "runtime", "hooks_dir"),
    below="",
    pattern="*",
    entry=_entry,
    program=lambda entry: get(entry, ("runtime_path",)),
    reload="systemctl restart crio",
)


def configure(text: str, config: EngineConfig, path: str = "crio.conf", layers: tuple[Tree, ...] = ()) -> str:
    """The new text of the file that takes the edits."""
    wanted = layered.changes(LAYOUT, list(layers), edit.read(steps.TOML, text, path), config)
    return edit.changed(steps.TOML, text, wanted, path)


def names(config: EngineConfig, sources: Sources) -> list[str]:
    """The runtimes of ours."""
    return layered.names(LAYOUT, config, sources)


def plan(config: EngineConfig, sources: Sources) -> Plan:
    """The edits of the files. Raises InputError if one cannot be read."""
    made = layered.plan(LAYOUT, config, sources)
    if not config.cdi:
        return made
    return made.replace(notes=(*made.notes, "CRI-O supports CDI without configuration: --cdi changes nothing"))
