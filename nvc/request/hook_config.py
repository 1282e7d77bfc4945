"""What the container toolkit's settings mean for hook and runtime (nvidia-container-toolkit.md 1.2 and 2). Pure.

The keys are in ``nvc.base.config_file``; ``hook.config`` finds the file.
"""

from __future__ import annotations

from nvc.base.config_file import KEYS, has_nul, is_kind, tables
from nvc.base.errors import InputError
from nvc.base.record import Record
from nvc.request.capabilities import WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MODES = ("auto", "legacy", "cdi", "jit-cdi", "csv")
_COMPAT_MODES = {"ldconfig": "ldconfig", "mount": "mount", "hook": "disabled", "disabled": "disabled"}


class HookConfig(Record):
    """Settings of this host.

    root: driver root. ldcache: loader cache in it, "" for the usual one. ldconfig: with the "@" that means the
    host's. user: "UID[:GID]" by number or name for the driver service, "" for the default. debug: log file or "".
    compat_mode: "ldconfig", "mount" or "disabled". supported_capabilities: what containers here may ask for.
    swarm_resources: variables that stand in for NVIDIA_VISIBLE_DEVICES. mode: one of MODES. hook_path: of the hook
    that the runtime adds, "" for its own. runtimes: candidates for the real runtime. runtime_debug: its log or "".
    container_kinds: kinds of CDI devices besides NVIDIA's that a container may ask for itself.
    csv_directory: of Tegra's mount lists, in the driver root, "" for the usual one. mps_user: whose MPS server
    containers may use beside root's, by number or name, or "". additional_gids: a container's user joins the groups of
    its device nodes. unknown: keys of the file that mean nothing here.
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
    additional_gids: bool = True
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
    container_kinds: tuple[str, ...] = ()
    csv_directory: str = ""
    mps_user: str = ""
    unknown: tuple[str, ...] = ()

    def ids(self) -> tuple[int | None, int | None]:
        """uid and gid of ``user``; None without one. Raises InputError."""
        from nvc.request.userspec import parse_user

        return parse_user(self.user) if self.user else (None, None)

    def mps_uid(self) -> int:
        """Of ``mps_user``; 0, which is root's server, without one. Raises InputError."""
        from nvc.request.userspec import user_id

        return user_id(self.mps_user, "mps.user") if self.mps_user else 0


def decode(data: bytes, name: str, *, lenient: bool | None = None) -> HookConfig:
    """The settings in the text of a configuration file called ``name``. lenient: as for
    ``nvc.base.config_file.tables``.

    Raises InputError with the key that is wrong.
    """
    return of_tables(*tables(data, name, lenient=lenient), name)


def of_tables(content: dict[str, Any], unknown: tuple[str, ...], name: str) -> HookConfig:
    """As ``decode``, of what ``nvc.base.config_file.tables`` returned for the file ``name``."""
    values = {}
    for dotted, field, _, value in _values(content):
        values[field] = _checked(field, value, f"{name}: {dotted}")
    return _complete(values, unknown)


def usable(content: dict[str, Any]) -> HookConfig:
    """The settings of a broken file that can be used all the same: for what must not depend on the others."""
    values = {}
    for _, field, kind, value in _values(content):
        try:
            if is_kind(value, kind):
                values[field] = _checked(field, value, "")
        except InputError:
            pass
    return _complete(values, ())


def _values(content: dict[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """(dotted name, field, type, value) of every key that has an effect and is given."""
    for section, key, kind, field in KEYS:
        table: Any = content
        for part in filter(None, section.split(".")):
            table = table.get(part) if isinstance(table, dict) else None
        if field and isinstance(table, dict) and key in table:
            yield f"{section}.{key}".lstrip("."), field, kind, table[key]


def _complete(values: dict[str, Any], unknown: tuple[str, ...]) -> HookConfig:
    config = HookConfig(**values, unknown=unknown)
    if config.allow_compat and config.compat_mode == "":
        return config.replace(compat_mode="mount")
    return config.replace(compat_mode=config.compat_mode or "disabled")


def _checked(field: str, value: Any, label: str) -> Any:
    """One setting, in the form HookConfig keeps it."""
    if has_nul(value):
        raise InputError(f"{label} contains a NUL character")
    if field == "supported_capabilities":
        return _supported(value, label)
    if field == "compat_mode":
        # An unknown word must not turn on more than asked for.
        return _COMPAT_MODES.get(value, "")
    if field in ("create_imex", "additional_gids"):
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
