"""An OCI hook's file for hooks.d, which Podman and CRI-O read (oci-hooks(5), schema 1.0.0). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.errors import InputError
from nvc.engines import edit, steps
from nvc.engines.changes import Change, Tree, get
from nvc.engines.config import HOOK, HOOK_NAMES, EngineConfig, FileEdit, Sources

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

FILE = "nvc.json"
#: The directory that both engines read by default (containers/common pkg/config: DefaultHooksDirs).
BUILT_IN = "/usr/share/containers/oci/hooks.d"
#: The file of the toolkit's hook, which would add GPUs to the same containers a second time.
TOOLKIT_FILE = "oci-nvidia-hook.json"
#: Without ``env`` runc starts a createContainer hook with the container's environment, LD_PRELOAD included
#: (CVE-2025-23266); so it is always there, and never empty.
ENVIRONMENT = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
#: Seconds. An engine without a limit waits forever.
TIMEOUT = 60


def path(config: EngineConfig) -> str:
    return f"{config.hooks_dir}/{FILE}"


def changes(tree: Tree, config: EngineConfig) -> list[Change]:
    """The changes that make the file start our hook. Existing settings stay where they are safe."""
    name = config.hook.rpartition("/")[2]
    wanted: list[tuple[tuple[str, ...], object]] = [
        (("version",), "1.0.0"),
        (("hook", "path"), config.hook),
        (("hook", "args"), [name, config.stage]),
        (("hook", "env"), ENVIRONMENT),
        (("hook", "timeout"), TIMEOUT),
        (("when", "always"), True),
        (("stages",), [config.stage]),
    ]
    kept = {("hook", "env"), ("hook", "args"), ("hook", "timeout"), ("stages",)}
    result = [Change(place, value) for place, value in wanted if place not in kept or not get(tree, place)]
    return [change for change in result if change.path != ("when", "always") or not get(tree, ("when",))]


def put(config: EngineConfig, sources: Sources) -> Iterator[FileEdit]:
    """Write the hook's file. Raises InputError if the file is another program's."""
    tree = _read(config, sources)
    if tree and not _ours(tree, config):
        raise InputError(
            f"{path(config)} starts {get(tree, ('hook', 'path'))}, which is not ours",
            hint="move the file away, or choose another directory with --hooks-dir",
        )
    yield from steps.put(sources, steps.JSON, path(config), changes(tree, config), ours=bool(tree))


def take(config: EngineConfig, sources: Sources, directories: Sequence[str]) -> Iterator[FileEdit]:
    """Remove the hook's file, if it is ours; with ``config.every`` each file that starts our hook.

    directories: what the engine's settings name beside the built-in one.
    """
    files = [path(config)]
    if config.every:
        places = dict.fromkeys((config.hooks_dir, BUILT_IN, *directories))
        others = (sources.listing(f"{directory}/*.json") for directory in places)
        files = list(dict.fromkeys([*files, *(name for names in others for name in names)]))
    for name in files:
        text = sources.read(name)
        if text is not None and _ours(_tree(text, name, config), config):
            yield FileEdit(name, text, None, "drop")


def twice(config: EngineConfig, sources: Sources, directories: list[str]) -> tuple[str, ...]:
    """A note about each file that starts the toolkit's hook as well."""
    found = [name for name in (f"{directory}/{TOOLKIT_FILE}" for directory in directories) if sources.listing(name)]
    return tuple(f"{name} starts another NVIDIA hook for the same containers: remove it" for name in found)


def others(config: EngineConfig, sources: Sources, gone: Collection[str]) -> bool:
    """Whether the directory has hooks beside those that go."""
    return any(name not in gone for name in sources.listing(f"{config.hooks_dir}/*.json"))


def _tree(text: str, name: str, config: EngineConfig) -> Tree:
    """The content of a hook's file; {} for a broken one that is not ours, which the engine cannot read either."""
    try:
        return edit.read(steps.JSON, text, name)
    except InputError:
        if name == path(config):
            raise
        return {}


def _read(config: EngineConfig, sources: Sources) -> Tree:
    return edit.read(steps.JSON, sources.read(path(config)), path(config))


def _ours(tree: Tree, config: EngineConfig) -> bool:
    return steps.is_program(get(tree, ("hook", "path")), config.hook, (HOOK, *HOOK_NAMES), config)
