"""The host's settings for hook and runtime: nvc-py's config.toml, or the container toolkit's as it is.

Read only for a container that asked for a GPU (``hook.swarm`` knows the one exception).
Keys and defaults: specs of the NVIDIA container toolkit, 1.2 and 2; the table is ``hook.config_keys``.
"""

from __future__ import annotations

from hook import files
from hook.config_keys import KEYS, OTHERS
from hook.swarm import CONFIG_LIMIT, find
from nvc.capabilities import WORDS
from nvc.errors import InputError
from nvc.formats import toml_subset
from nvc.model import CSV_DIRECTORY
from nvc.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

MODES = ("auto", "legacy", "cdi", "jit-cdi", "csv")
_COMPAT_MODES = {"ldconfig": "ldconfig", "mount": "mount", "hook": "disabled", "disabled": "disabled"}


class HookConfig(Record):
    """Settings of this host.

    root: driver root. ldcache: loader cache in it, "" for the usual one. ldconfig: with the "@" that means the
    host's. user: "UID[:GID]" by number or name for the driver service, "" for nobody. debug: log file or "".
    compat_mode: "ldconfig", "mount" or "disabled". supported_capabilities: what containers here may ask for.
    swarm_resources: variables that stand in for NVIDIA_VISIBLE_DEVICES. mode: one of MODES. hook_path: of the hook
    that the runtime adds, "" for its own. runtimes: candidates for the real runtime. runtime_debug: its log or "".
    csv_directory: of Tegra's mount lists, in the driver root. mps_user: whose MPS server containers may use beside
    root's, by number or name, or "". unknown: keys of the file that mean nothing here.
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
    allow_compat: bool = False
    disable_require: bool = False
    ignore_imex: bool = False
    accept_env_unprivileged: bool = True
    accept_mounts: bool = False
    supported_capabilities: tuple[str, ...] = WORDS
    swarm_resources: tuple[str, ...] = ()
    mode: str = "auto"
    skip_mode_detection: bool = False
    hook_path: str = ""
    runtimes: tuple[str, ...] = ("runc", "crun")
    runtime_debug: str = ""
    log_level: str = "info"
    spec_directories: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    default_kind: str = "nvidia.com/gpu"
    annotation_prefixes: tuple[str, ...] = ("cdi.k8s.io/",)
    csv_directory: str = CSV_DIRECTORY
    mps_user: str = ""
    unknown: tuple[str, ...] = ()


def load(path: str, environment: Mapping[str, str]) -> HookConfig:
    """The settings in ``path``; with "" in the file that ``find`` finds, or the defaults.

    Raises InputError for a file that was named and does not exist, cannot be read, or does not make sense.
    """
    name = find(path, environment)
    return decode(files.read(name, CONFIG_LIMIT), name) if name else HookConfig()


def decode(data: bytes, name: str) -> HookConfig:
    """The settings in the text of a configuration file called ``name``. Unknown keys are listed in ``unknown``.

    Raises InputError with the key that is wrong.
    """
    content = _content(data, name)
    values: dict[str, Any] = {}
    for section, key, kind, field in KEYS:
        table = _table(content, section, name)
        if key not in table:
            continue
        label = f"{section}.{key}".lstrip(".")
        value = table[key]
        if not _is(value, kind):
            raise InputError(f"{name}: {label} is not a {'list of strings' if kind == 'list' else kind}")
        if field:
            values[field] = _checked(field, value, f"{name}: {label}")
    config = HookConfig(**values, unknown=tuple(_unknown(content, "")))
    if config.allow_compat and config.compat_mode == "":
        return config.replace(compat_mode="mount")
    return config.replace(compat_mode=config.compat_mode or "disabled")


def _is(value: Any, kind: str) -> bool:
    if kind == "list":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, bool if kind == "boolean" else str)


def _content(data: bytes, name: str) -> dict[str, Any]:
    try:
        text = data.decode("utf-8")
        content = toml_subset.loads(text)
        if content is None:
            import tomllib

            content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not TOML: {error}") from error
    return content


def _unknown(table: dict[str, Any], section: str) -> Iterator[str]:
    """The dotted names of keys that no row has, and of tables that no section begins with."""
    keys = {key for place, key, _, _ in KEYS if place == section}
    for key, value in table.items():
        name = f"{section}.{key}".lstrip(".")
        if isinstance(value, dict) and any(f"{place}.".startswith(f"{name}.") for place, _, _, _ in KEYS):
            yield from _unknown(value, name)
        elif key not in keys and name not in OTHERS:
            yield name


def _checked(field: str, value: Any, label: str) -> Any:
    """One setting, in the form HookConfig keeps it."""
    if "\0" in value if isinstance(value, str) else isinstance(value, list) and any("\0" in item for item in value):
        raise InputError(f"{label} contains a NUL character")
    if field == "supported_capabilities":
        return _supported(value, label)
    if field == "compat_mode":
        # An unknown word must not turn on more than asked for.
        return _COMPAT_MODES.get(value, "")
    if field == "create_imex":
        return not value
    if field == "ldconfig" and not value.startswith("@/"):
        raise InputError(
            f"{label} = {value!r} does not name a program of the host",
            hint="write @ and its absolute path; the container's own is never run (CVE-2024-0136, CVE-2024-0137)",
        )
    if field == "mode" and value not in MODES:
        raise InputError(f"{label}: invalid mode {value!r}", hint=f"one of {', '.join(MODES)}")
    if field == "swarm_resources":
        return tuple(dict.fromkeys(word for word in (raw.strip() for raw in value.split(",")) if word))
    if isinstance(value, list):
        return tuple(value)
    if field == "root":
        value = value or "/"
    if field == "csv_directory":
        value = value or CSV_DIRECTORY
    if field in ("root", "ldcache", "debug", "runtime_debug", "csv_directory") and value and not value.startswith("/"):
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
