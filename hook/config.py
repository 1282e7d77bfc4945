"""The host's settings for the hook: config.toml of the NVIDIA container toolkit, as far as the hook uses it.

Read only for a container that asked for a GPU, because ``tomllib`` costs more than everything before it.
Keys and defaults: specs of the NVIDIA container toolkit, 1.2 and 2.
"""

from __future__ import annotations

import os

from hook import files
from nvc.capabilities import WORDS
from nvc.errors import InputError
from nvc.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FILE = "nvidia-container-runtime/config.toml"
CONFIG_LIMIT = 1 << 20
_COMPAT_MODES = {"ldconfig": "ldconfig", "mount": "mount", "hook": "disabled", "disabled": "disabled"}


class HookConfig(Record):
    """Settings of this host.

    root: driver root. ldcache: loader cache in it, "" for the usual one. ldconfig: with the "@" that means the
    host's. user: "UID[:GID]" by number or name for the driver service, "" for nobody. debug: log file or "".
    compat_mode: "ldconfig", "mount" or "disabled". supported_capabilities: what containers here may ask for.
    """

    root: str = "/"
    ldcache: str = ""
    ldconfig: str = "@/sbin/ldconfig"
    user: str = ""
    debug: str = ""
    load_kmods: bool = True
    no_cgroups: bool = False
    no_pivot: bool = False
    create_imex: bool = True
    compat_mode: str = "ldconfig"
    disable_require: bool = False
    ignore_imex: bool = False
    accept_env_unprivileged: bool = True
    supported_capabilities: tuple[str, ...] = WORDS


# section, key, type, field of HookConfig; a section is the dotted name of a table, "" for the top.
_KEYS: tuple[tuple[str, str, type, str], ...] = (
    ("", "disable-require", bool, "disable_require"),
    ("", "accept-nvidia-visible-devices-envvar-when-unprivileged", bool, "accept_env_unprivileged"),
    ("", "supported-driver-capabilities", str, "supported_capabilities"),
    ("nvidia-container-cli", "root", str, "root"),
    ("nvidia-container-cli", "ldcache", str, "ldcache"),
    ("nvidia-container-cli", "ldconfig", str, "ldconfig"),
    ("nvidia-container-cli", "user", str, "user"),
    ("nvidia-container-cli", "debug", str, "debug"),
    ("nvidia-container-cli", "load-kmods", bool, "load_kmods"),
    ("nvidia-container-cli", "no-cgroups", bool, "no_cgroups"),
    ("nvidia-container-cli", "no-pivot", bool, "no_pivot"),
    ("nvidia-container-runtime.modes.legacy", "cuda-compat-mode", str, "compat_mode"),
    ("features", "disable-imex-channel-creation", bool, "create_imex"),
    ("features", "ignore-imex-channel-requests", bool, "ignore_imex"),
)


def load(path: str, environment: Mapping[str, str]) -> HookConfig:
    """The settings in ``path``; with "" in the file the hook's environment names, or the usual one, or the defaults.

    Raises InputError for a file that was named and does not exist, cannot be read, or does not make sense.
    """
    name = path or environment.get("NVIDIA_CTK_CONFIG_FILE_PATH", "")
    if not name:
        directory = environment.get("XDG_CONFIG_HOME", "")
        name = f"{directory if directory.startswith('/') else '/etc'}/{FILE}"
        if not os.path.lexists(name):
            return HookConfig()
    return decode(files.read(name, CONFIG_LIMIT), name)


def decode(data: bytes, name: str) -> HookConfig:
    """The settings in the text of a configuration file called ``name``. Unknown keys are left to other programs.

    Raises InputError with the key that is wrong.
    """
    import tomllib

    try:
        content = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not TOML: {error}") from error
    values: dict[str, Any] = {}
    for section, key, kind, field in _KEYS:
        table = _table(content, section, name)
        if key in table:
            label = f"{section}.{key}".lstrip(".")
            if not isinstance(table[key], kind):
                raise InputError(f"{name}: {label} is not a {'boolean' if kind is bool else 'string'}")
            values[field] = _checked(field, table[key], f"{name}: {label}")
    return HookConfig(**values)


def _checked(field: str, value: Any, label: str) -> Any:
    """One setting, in the form HookConfig keeps it."""
    if isinstance(value, str) and "\0" in value:
        raise InputError(f"{label} contains a NUL character")
    if field == "supported_capabilities":
        return _supported(value, label)
    if field == "compat_mode":
        # An unknown word must not turn on more than asked for.
        return _COMPAT_MODES.get(value, "disabled")
    if field == "create_imex":
        return not value
    if field == "ldconfig" and not value.startswith("@/"):
        raise InputError(
            f"{label} = {value!r} does not name a program of the host",
            hint="write @ and its absolute path; the container's own is never run (CVE-2024-0136, CVE-2024-0137)",
        )
    if field == "root":
        value = value or "/"
    if field in ("root", "ldcache", "debug") and value and not value.startswith("/"):
        raise InputError(f"{label} = {value!r} is not an absolute path")
    return value


def _supported(value: str, label: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word for word in (raw.strip() for raw in value.split(",")) if word))
    if words == ("all",):
        return WORDS
    unknown = [word for word in words if word not in WORDS]
    if unknown:
        raise InputError(f"{label}: unknown capability {unknown[0]!r}", hint=f"known: {', '.join(WORDS)}")
    return words


def _table(content: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    table: Any = content
    for part in filter(None, section.split(".")):
        table = table.get(part, {})
        if not isinstance(table, dict):
            raise InputError(f"{name}: {part} is not a table")
    return dict(table)
