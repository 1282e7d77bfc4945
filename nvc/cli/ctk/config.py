"""``nvidia-ctk config``: the toolkit's config.toml, printed and changed.

The keys are those of ``nvc.base.config_file``. The file is written with its keys in order, and with defaults that an
administrator may want to change as comments, as the toolkit writes it (its api/config/v1/toml.go).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nvc.base import config_file
from nvc.base.errors import InputError, UsageError
from nvc.base.gobool import FALSE, TRUE
from nvc.base.nearest import did_you_mean
from nvc.cli.ctk.tree import CSV_DIRECTORY, HOOK_PROGRAM, SPEC_DIRECTORIES
from nvc.cli.text import emit
from nvc.engines import changes, tomltext
from nvc.engines.changes import Change
from nvc.engines.config import FileEdit
from nvc.engines.files import Files, write
from nvc.request.capabilities import WORDS

if TYPE_CHECKING:
    from nvc.cli.ctk.parse import Values
    from nvc.cli.ctk.show import Log

_CLI, _RUNTIME, _HOOK = config_file.CLI, config_file.RUNTIME, config_file.HOOK
#: Keys that the toolkit's file does not have: (section, key) of ``config_file.KEYS``.
_NOT_THEIRS = (("mps", "user"), (f"{_RUNTIME}.modes.cdi", "container-kinds"))
#: What a file that does not exist would say.
_DEFAULTS: dict[str, Any] = {
    "disable-require": False,
    "supported-driver-capabilities": ",".join(sorted(WORDS)),
    f"{_CLI}.environment": [],
    f"{_CLI}.ldconfig": "@/sbin/ldconfig",
    f"{_CLI}.load-kmods": True,
    f"{_RUNTIME}.log-level": "info",
    f"{_RUNTIME}.mode": "auto",
    f"{_RUNTIME}.runtimes": ["runc", "crun"],
    f"{_RUNTIME}.modes.cdi.annotation-prefixes": ["cdi.k8s.io/"],
    f"{_RUNTIME}.modes.cdi.default-kind": "nvidia.com/gpu",
    f"{_RUNTIME}.modes.cdi.spec-dirs": list(SPEC_DIRECTORIES),
    f"{_RUNTIME}.modes.csv.mount-spec-path": CSV_DIRECTORY,
    f"{_RUNTIME}.modes.legacy.cuda-compat-mode": "ldconfig",
    f"{_HOOK}.path": HOOK_PROGRAM,
    f"{_HOOK}.skip-mode-detection": False,
    "nvidia-ctk.path": "nvidia-ctk",
}
#: Written as comments where the file does not set them.
_SAMPLES: dict[str, Any] = {
    "accept-nvidia-visible-devices-as-volume-mounts": False,
    "accept-nvidia-visible-devices-envvar-when-unprivileged": True,
    "swarm-resource": "DOCKER_RESOURCE_GPU",
    f"{_CLI}.debug": "/var/log/nvidia-container-toolkit.log",
    f"{_CLI}.ldcache": "/etc/ld.so.cache",
    f"{_CLI}.no-cgroups": False,
    f"{_CLI}.path": "/usr/bin/nvidia-container-cli",
    f"{_CLI}.root": "/run/nvidia/driver",
    f"{_CLI}.user": "root:video",
    f"{_RUNTIME}.debug": "/var/log/nvidia-container-runtime.log",
}
_KINDS = {
    ".".join(filter(None, (section, key))): kind
    for section, key, kind, _ in config_file.KEYS
    if (section, key) not in _NOT_THEIRS
}
#: Keys that --set KEY=nil takes out of the file.
_OPTIONAL = "features."


def config(values: Values, log: Log) -> int:
    """Print the configuration, or write it."""
    separator = values.text("set-list-separator")
    if not separator:
        raise UsageError("set-list-separator must be set")
    name = values.text("config-file") or location()
    before = _text(name)
    tree = _tree(before, name)
    for word in values.items("set"):
        try:
            tree = changes.applied(tree, [_change(word, separator)])
        except ValueError as error:
            raise InputError(f"invalid --set option {word}: {name}: {error}") from error
    content = render(tree)
    output = name if values.flag("in-place") else values.text("output")
    if output == name:
        _deliver(output, content, before, log)
    else:
        _write(output, content, log)
    return 0


def default(values: Values, log: Log) -> int:
    """Print the configuration of a machine without a file."""
    _write(values.text("output"), render(_tree(None, "")), log)
    return 0


def location() -> str:
    """The file that NVIDIA's programs read, whether it exists or not."""
    base = os.environ.get("XDG_CONFIG_HOME") or "/etc"
    return os.environ.get("NVIDIA_CTK_CONFIG_FILE_PATH") or os.path.join(base, _RUNTIME, "config.toml")


def driver_root(name: str) -> str:
    """The driver root in a configuration file, "" where it says none."""
    return str(changes.get(_tree(_text(name or location()), name), (_CLI, "root"), ""))


def render(tree: dict[str, Any]) -> str:
    """The text of a file with these settings."""
    return _table(tree, ()).lstrip("\n")


def _text(name: str) -> str | None:
    try:
        return config_file.read(name).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 (byte {error.start})") from error


def _tree(text: str | None, name: str) -> dict[str, Any]:
    if text is None:
        found: dict[str, Any] = {}
        return changes.applied(found, [Change(tuple(key.split(".")), value) for key, value in _DEFAULTS.items()])
    try:
        return tomltext.parse(text)
    except ValueError as error:
        raise InputError(f"unable to create config: {name}: {error}") from error


def _change(word: str, separator: str) -> Change:
    """What one ``--set`` asks for. Raises InputError with the toolkit's words."""
    key, equals, text = word.partition("=")
    kind = _KINDS.get(key)
    if kind is None:
        last = next((part for part in key.split(".") if not _is_part(key, part)), key)
        hint = did_you_mean(key, _KINDS)
        raise UsageError(f'invalid --set option {word}: invalid config option: undefined field: "{last}"', hint=hint)
    path = tuple(key.split("."))
    if not equals:
        if kind != "boolean":
            raise UsageError(f"invalid --set option {word}: invalid format: expected key=value; got {word}")
        return Change(path, True)
    if key.startswith(_OPTIONAL) and text == "nil":
        return Change(path)
    if kind == "boolean":
        if text not in TRUE + FALSE:
            raise UsageError(f'invalid --set option {word}: invalid format: parsing "{text}": invalid syntax')
        return Change(path, text in TRUE)
    if kind == "list":
        found = next((mark for mark in (separator, ",") if mark in text), None)
        return Change(path, text.split(found) if found else [text])
    return Change(path, text)


def _is_part(key: str, part: str) -> bool:
    """Whether ``part`` of a dotted key leads to something."""
    above = key.split(".")[: key.split(".").index(part) + 1]
    return any(known.split(".")[: len(above)] == above for known in _KINDS)


def _table(tree: dict[str, Any], path: tuple[str, ...]) -> str:
    """A table with its settings and comments in order, and those below it."""
    prefix = "".join(f"{part}." for part in path)
    lines = {key: tomltext.line(key, value) for key, value in tree.items() if not isinstance(value, dict)}
    for dotted, value in _SAMPLES.items():
        section, _, key = dotted.rpartition(".")
        if section == ".".join(path) and key not in lines:
            lines[key] = f"#{tomltext.line(key, value)}"
    below = {key: value for key, value in tree.items() if isinstance(value, dict)}
    if not path:
        below |= {section: below.get(section, {}) for section in (_CLI, _RUNTIME)}
    head = f"\n[{tomltext.header(path)}]\n" if prefix else ""
    own = head + "".join(lines[key] for key in sorted(lines))
    return own + "".join(_table(below[key], (*path, key)) for key in sorted(below))


def _write(output: str, content: str, log: Log) -> None:
    _deliver(output, content, Files().read(output) if output else None, log)


def _deliver(output: str, content: str, before: str | None, log: Log) -> None:
    if not output:
        emit(1, content)
        return
    if os.path.lexists(config_file.CONFIG) and os.path.realpath(output) == os.path.realpath(location()):
        log.warn(f"{config_file.CONFIG} exists and counts before {output}")
    if content != before:
        write(FileEdit(output, before, content), Files())
