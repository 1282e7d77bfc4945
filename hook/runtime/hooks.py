"""The hook in a container's config.json: adding ours, taking away those that would do the same a second time."""

from __future__ import annotations

import os

from hook.process import DEFAULT_PATH
from hook.runtime import programs, spec
from hook.swarm import DEVICES, MODE, own
from nvc.base.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Programs that give a container its GPUs when they are started by a hook entry.
NAMES = ("nvc-hook", "nvidia-container-runtime-hook", "nvidia-container-toolkit")
#: Where they may be.
STAGES = ("prestart", "createRuntime", "createContainer")
_PASSED = ("NVIDIA_CTK_CONFIG_FILE_PATH", "XDG_CONFIG_HOME")


def locate(configured: str, own: str, path: str) -> str:
    """The hook to add: ``configured`` when it is an absolute path, else nvc-hook beside our ``own`` program or in PATH.

    A bare name in config.toml is not looked up: in the toolkit's file it means the toolkit's hook. Raises InputError.
    """
    return configured if configured.startswith("/") else beside("nvc-hook", own, path)


def beside(name: str, own: str, path: str) -> str:
    """A program of ours: beside our ``own``, or in PATH. Raises InputError."""
    for directory in (os.path.dirname(own), *path.split(":"), *DEFAULT_PATH.split(":")):
        place = f"{directory}/{name}"
        if directory.startswith("/") and os.access(place, os.X_OK):
            return place
    also = "; or name it in config.toml" if name == "nvc-hook" else ""
    raise InputError(f"{name} is not installed", hint=f"it belongs beside nvc-runtime{also}")


def add(
    config: dict[str, Any],
    hook: str,
    environment: Mapping[str, str],
    directory: str,
    *,
    devices: tuple[str, ...] | None = None,
) -> bool:
    """Add ``hook`` to the prestart hooks; False when one that does the same is there.

    devices: what it gives in place of what the container asks for. Raises InputError.
    """
    present = spec.entries(spec.section(config, "hooks", directory), "prestart", directory)
    if any(_is_ours(entry) for entry in present):
        return False
    kept = [
        f"{name}={value}"
        for name, value in environment.items()
        if name in _PASSED or (name.startswith("NVC_") and name not in (MODE, DEVICES))
    ]
    if devices is not None:
        kept.append(f"{DEVICES}={','.join(devices) or 'none'}")
    # Never without env: a runtime may start an entry that has none with the container's (CVE-2025-23266).
    entry = {
        "path": hook,
        "args": [os.path.basename(hook), "prestart"],
        "env": [f"PATH={environment.get('PATH') or DEFAULT_PATH}", f"{MODE}=legacy", *kept],
    }
    present.append(entry)
    return True


def present(config: dict[str, Any], directory: str, stages: tuple[str, ...] = STAGES) -> bool:
    """Whether a hook gives GPUs. Raises InputError."""
    return bool(_ours(config, directory, stages))


def variable(config: dict[str, Any], name: str, directory: str) -> str:
    """A variable of the first hook that gives GPUs, "" when it has none. Raises InputError."""
    return next((_environment(entry).get(name, "") for entry in _ours(config, directory)), "")


def rules(config: dict[str, Any], directory: str) -> str:
    """The file with the node's rules that the first hook that gives GPUs reads, "" for the usual one.

    Raises InputError.
    """
    for entry in _ours(config, directory):
        return next(iter(_values(entry, "config")), "") or own("", _environment(entry))
    return ""


def options(config: dict[str, Any], name: str, directory: str) -> list[str]:
    """The values of an option of every hook that gives GPUs. Raises InputError."""
    return [value for entry in _ours(config, directory) for value in _values(entry, name)]


def _values(entry: dict[str, Any], name: str) -> list[str]:
    words, found = programs.words(entry)[1], []
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if word.startswith("-") and option.lstrip("-") == name:
            found.append(value if equals else "".join(words[at + 1 : at + 2]))
    return found


def _environment(entry: dict[str, Any]) -> dict[str, str]:
    """The variables that the hook believes: none at createContainer (``hook.process.sanitise``)."""
    return {} if "createContainer" in programs.words(entry)[1] else programs.environment(entry)


def _ours(config: dict[str, Any], directory: str, stages: tuple[str, ...] = STAGES) -> list[dict[str, Any]]:
    hooks = config.get("hooks") and spec.section(config, "hooks", directory)
    lists = (spec.entries(hooks, stage, directory) for stage in stages if hooks and hooks.get(stage))
    return [entry for entries in lists for entry in entries if _is_ours(entry)]


def remove(config: dict[str, Any], directory: str) -> bool:
    """Take away every prestart hook that gives GPUs. True when there was one. Raises InputError."""
    if not config.get("hooks"):
        return False
    hooks = spec.section(config, "hooks", directory)
    present = spec.entries(hooks, "prestart", directory)
    left = [entry for entry in present if not _is_ours(entry)]
    hooks["prestart"] = left
    return len(left) != len(present)


def _is_ours(entry: object) -> bool:
    return not programs.names(entry).isdisjoint(NAMES)
