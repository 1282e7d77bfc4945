"""/etc/nvc/config.toml: its sections, keys and types, for every program that reads it (hook, runtime, agent, doctor).

In our own file, what is unknown is an error: a rule for shares must not be lost by a typing mistake. The container
toolkit's file (nvidia-container-toolkit.md 2) may be newer than this program, so there it is reported and ignored.
What values
mean is ``nvc.request.hook_config``, ``nvc.share.policy`` and ``nvc.agent.settings``.
"""

from __future__ import annotations

import os
import stat

from nvc.base import toml_subset
from nvc.base.errors import InputError, reason
from nvc.base.nearest import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CONFIG = "/etc/nvc/config.toml"
SIZE_LIMIT = 1 << 20
#: Directory of the toolkit's own config.toml.
_TOOLKIT = "nvidia-container-runtime"
CLI, RUNTIME, HOOK = "nvidia-container-cli", "nvidia-container-runtime", "nvidia-container-runtime-hook"

#: The toolkit's keys: section, key, type, field of ``HookConfig`` or "". A section is the dotted name of a table.
#: A row without a field is accepted, because the toolkit's own files have it, and changes nothing: this program needs
#: no other program's path, and docs/reference/configuration.md says why the rest has no effect.
KEYS: tuple[tuple[str, str, str, str], ...] = (
    ("", "disable-require", "boolean", "disable_require"),
    ("", "swarm-resource", "string", "swarm_resources"),
    ("", "accept-nvidia-visible-devices-envvar-when-unprivileged", "boolean", "accept_env_unprivileged"),
    ("", "accept-nvidia-visible-devices-as-volume-mounts", "boolean", "accept_mounts"),
    ("", "supported-driver-capabilities", "string", "supported_capabilities"),
    (CLI, "root", "string", "root"),
    (CLI, "path", "string", ""),
    (CLI, "environment", "list", ""),
    (CLI, "debug", "string", "debug"),
    (CLI, "ldcache", "string", "ldcache"),
    (CLI, "load-kmods", "boolean", "load_kmods"),
    (CLI, "no-pivot", "boolean", "no_pivot"),
    (CLI, "no-cgroups", "boolean", "no_cgroups"),
    (CLI, "user", "string", "user"),
    (CLI, "ldconfig", "string", "ldconfig"),
    ("nvidia-ctk", "path", "string", ""),
    (HOOK, "path", "string", "hook_path"),
    (HOOK, "skip-mode-detection", "boolean", "skip_mode_detection"),
    (RUNTIME, "debug", "string", "runtime_debug"),
    (RUNTIME, "log-level", "string", "log_level"),
    (RUNTIME, "runtimes", "list", "runtimes"),
    (RUNTIME, "mode", "string", "mode"),
    (f"{RUNTIME}.modes.csv", "mount-spec-path", "string", "csv_directory"),
    (f"{RUNTIME}.modes.csv", "compat-container-root", "string", ""),
    (f"{RUNTIME}.modes.cdi", "spec-dirs", "list", "spec_directories"),
    (f"{RUNTIME}.modes.cdi", "default-kind", "string", "default_kind"),
    (f"{RUNTIME}.modes.cdi", "annotation-prefixes", "list", "annotation_prefixes"),
    (f"{RUNTIME}.modes.cdi", "container-kinds", "list", "container_kinds"),
    (f"{RUNTIME}.modes.jit-cdi", "nvcdi-feature-flags", "list", ""),
    (f"{RUNTIME}.modes.jit-cdi", "nvcdi-disable-hooks", "list", ""),
    (f"{RUNTIME}.modes.legacy", "cuda-compat-mode", "string", "compat_mode"),
    ("mps", "user", "string", "mps_user"),
    ("features", "allow-cuda-compat-libs-from-container", "boolean", "allow_compat"),
    ("features", "allow-ldconfig-from-container", "boolean", ""),
    ("features", "allow-unknown-oci-spec-fields", "boolean", ""),
    ("features", "disable-cuda-compat-lib-hook", "boolean", ""),
    ("features", "disable-imex-channel-creation", "boolean", "create_imex"),
    ("features", "ignore-imex-channel-requests", "boolean", "ignore_imex"),
    ("features", "no-additional-gids-for-device-nodes", "boolean", "additional_gids"),
)
#: Sections that only our own file has. Their keys may be written with "_" too, as programs have them.
OURS: dict[str, dict[str, str]] = {
    "share": {
        "default": "string",
        "maximum": "string",
        "clamp": "boolean",
        "allow-off": "boolean",
        "variables": "boolean",
        "guard": "string",
        "allow-guard-off": "boolean",
        "unknown-driver": "string",
        "admission": "string",
    },
    "agent": {
        "directory": "string",
        "policy": "name",
        "slots": "integer",
        "first-uid": "integer",
        "period": "integer",
        "metrics": "string",
        "metrics-hami": "boolean",
        "group": "string",
        "unaccounted": "string",
        "graphics": "boolean",
    },
}
#: Type -> its name, Python's types, how it is written.
_KINDS: dict[str, tuple[str, tuple[type, ...], str]] = {
    "boolean": ("a boolean", (bool,), "true or false, without quotes"),
    "string": ("a string", (str,), "it in quotes"),
    "integer": ("an integer", (int,), "a number without quotes"),
    "name": ("a string or an integer", (str, int), "it in quotes, or a number"),
    "list": ("a list of strings", (list,), '["one", "two"]'),
}


def _by_section() -> dict[str, dict[str, str]]:
    """Dotted name of every table that there can be, outer ones too -> its keys -> their types."""
    found: dict[str, dict[str, str]] = {"": {}, **OURS}
    for section, key, kind, _ in KEYS:
        if section not in found:
            for place in range(section.count(".") + 1):
                found.setdefault(section.rsplit(".", place)[0], {})
        found[section][key] = kind
    return found


_SECTIONS = _by_section()
#: Parts of a name that a mistake can have: those of the deepest section, and one that it does not know.
_DEPTH = 2 + max(section.count(".") for section in _SECTIONS)
#: What no name of a table or key has, and what a dotted name could not show without quotes.
_ONLY_QUOTED = frozenset('."')


def load(name: str, *, must_exist: bool = True) -> dict[str, Any]:
    """The tables of the file ``name``, checked; {} when it does not exist and need not.

    Raises InputError for a file that cannot be read or is not as it should be.
    """
    try:
        data = read(name)
    except FileNotFoundError:
        # A dangling link: the rules that it should lead to are not known.
        if must_exist or os.path.lexists(name):
            raise missing(name) from None
        return {}
    return tables(data, name)[0]


def missing(name: str) -> InputError:
    """The error for a file that should be there."""
    if os.path.lexists(name):
        return InputError(f"{name}: dangling symbolic link", hint="correct the link, or remove it")
    return InputError(f"{name}: there is no such file")


def read(name: str) -> bytes:
    """The bytes of a configuration file. Raises FileNotFoundError, and InputError for what else keeps it from it."""
    try:
        # O_NONBLOCK: a FIFO in its place has no writer to wait for.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{name}: {reason(error)}", hint="it has this node's settings, and must be readable") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError(f"{name}: not a regular file")
        data = b""
        while len(data) <= SIZE_LIMIT and (chunk := os.read(descriptor, SIZE_LIMIT + 1 - len(data))):
            data += chunk
    except OSError as error:
        raise InputError(f"{name}: {reason(error)}") from None
    finally:
        os.close(descriptor)
    if len(data) > SIZE_LIMIT:
        raise InputError(f"{name}: larger than {SIZE_LIMIT >> 20} MiB")
    return data


def is_toolkits(name: str) -> bool:
    """Whether ``name`` is where the container toolkit has its own file."""
    return name.split("/")[-2:-1] == [_TOOLKIT]


def tables(data: bytes, name: str, *, lenient: bool | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The tables in the text of a configuration file called ``name``, and the dotted names that mean nothing in it.

    lenient: the file is the toolkit's, where unknown names are no error; by its name when not given. Raises InputError
    with file, line where it is found, name, and what may have been meant: for the first of the mistakes.
    """
    strict = not (is_toolkits(name) if lenient is None else lenient)
    content, text = _parsed(data, name)
    unknown = []
    for _, _, dotted, mistake in _examined(content, text, name, strict=strict):
        if mistake is not None:
            raise mistake
        unknown.append(dotted)
    return content, tuple(unknown)


def examined(data: bytes, name: str) -> tuple[dict[str, Any], list[InputError]]:
    """The tables without what is wrong in them, and every mistake. Raises InputError for what is not TOML."""
    content, text = _parsed(data, name)
    mistakes = []
    for table, key, _, mistake in tuple(_examined(content, text, name, strict=not is_toolkits(name))):
        if mistake is not None:
            mistakes.append(mistake)
            table.pop(key, None)
    return content, mistakes


def _parsed(data: bytes, name: str) -> tuple[dict[str, Any], str]:
    try:
        text = data.decode("utf-8")
        return parse(text), text
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not TOML: {error}") from None


def _examined(
    content: dict[str, Any], text: str, name: str, *, strict: bool
) -> Iterator[tuple[dict[str, Any], str, str, InputError | None]]:
    """(table, key, dotted name, mistake) of what no row has; no mistake: it is unknown in the toolkit's file."""
    lines: dict[str, int] = {}

    def place(dotted: str) -> str:
        if not lines:
            lines.update(lines_of(text))
        line = lines.get(dotted, 0)
        return f"{name}:{line}: " if line else f"{name}: "

    for section in () if strict else OURS:
        if section in content:
            hint = f"this is the container toolkit's file; put the section into {CONFIG}"
            what = f"{place(section)}section [{section}] is not read here"
            yield content, section, section, InputError(what, hint=hint)
            del content[section]
    for table, key, dotted, what, hint in _wrong(content, ""):
        if what:
            yield table, key, dotted, InputError(f"{place(dotted)}{what}", hint=hint)
        elif not strict:
            yield table, key, dotted, None
        elif '"' in dotted:
            what = f"{name}: {dotted} is unknown: no key is empty or has a dot"
            yield table, key, dotted, InputError(what, hint="write [a.b] for the table b in the table a")
        else:
            yield table, key, dotted, _mistake(dotted, table[key], place(dotted))


def parse(text: str) -> dict[str, Any]:
    """The tables of ``text``. Raises ValueError, RecursionError for what is not TOML."""
    content = toml_subset.loads(text)
    if content is None:
        import tomllib

        content = tomllib.loads(text)
    return content


def rescued(data: bytes) -> dict[str, Any]:
    """What can be understood of a broken file, line by line where it is not TOML: for stopping containers."""
    text = data.decode("utf-8", "replace")
    try:
        return parse(text)
    except (ValueError, RecursionError):
        header = ""
    content: dict[str, Any] = {}
    for line in text.splitlines():
        if line.lstrip().startswith("["):
            header = line
        for section, table in (toml_subset.loads(f"{header}\n{line}" if header != line else line) or {}).items():
            if isinstance(table, dict) and isinstance(content.setdefault(section, {}), dict):
                content[section].update(table)
            else:
                content[section] = table
    return content


def lines_of(text: str) -> dict[str, int]:
    """Dotted name of each table and key -> the first line that has it, or something in it."""
    section = ""
    lines: dict[str, int] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line.startswith("["):
            found = section = _joined(line.lstrip("[").partition("]")[0])
        else:
            key, equals, _ = line.partition("=")
            found = f"{section}.{_joined(key)}".lstrip(".") if equals and not line.startswith("#") else ""
        parts = found.split(".", _DEPTH)[:_DEPTH]
        for depth in range(1, len(parts) + 1 if found else 0):
            lines.setdefault(".".join(parts[:depth]), number)
    return lines


def _joined(name: str) -> str:
    return ".".join(part.strip(" \t\"'") for part in name.split("."))


def _wrong(table: dict[str, Any], section: str) -> Iterator[tuple[dict[str, Any], str, str, str, str]]:
    """(table, key, dotted name, what is wrong, hint) of each key that is not as a row has it. "": no row has it."""
    keys, seen = _SECTIONS[section], set()
    for key, value in table.items():
        # A quoted key may be "" or "a.b", which only reads like the name of a table: no reader would find it.
        shown = key if key and not _ONLY_QUOTED.intersection(key) else f'"{key}"'
        dotted = f"{section}.{shown}" if section else shown
        name = key.replace("_", "-") if section in OURS else key
        if dotted in _SECTIONS:
            if isinstance(value, dict):
                yield from _wrong(value, dotted)
            else:
                yield table, key, dotted, f"{dotted} is not a table", f"write [{dotted}], and its keys below"
        elif name not in keys:
            yield table, key, dotted, "", ""
        elif name in seen:
            yield table, key, dotted, f"{dotted} is given twice", f"{name} and {key} are one key"
        elif not is_kind(value, keys[name]):
            yield table, key, dotted, f"{dotted} is not {_KINDS[keys[name]][0]}", f"write {_KINDS[keys[name]][2]}"
        elif has_nul(value):
            yield table, key, dotted, f"{dotted} contains a NUL character", "leave it out"
        seen.add(name)


def is_kind(value: Any, kind: str) -> bool:
    """Whether a value has the type that a row names."""
    if isinstance(value, list):
        return kind == "list" and all(isinstance(item, str) for item in value)
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _KINDS[kind][1])


def has_nul(value: Any) -> bool:
    """Whether a string, or one of a list, cannot be given to the kernel."""
    return any("\0" in text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))


def _mistake(dotted: str, value: Any, place: str) -> InputError:
    """The error for a name that no row has, with what was probably meant."""
    section, _, key = dotted.rpartition(".")
    word = key.lower().replace("_", "-")
    homes = [f"[{name}]" for name, keys in _SECTIONS.items() if name and word in keys]
    own = {name: f"{section}.{name}".lstrip(".") for name in _SECTIONS[section]}
    if isinstance(value, dict):
        beside = {name: f"[{name}]" for name in _SECTIONS if name and name.rpartition(".")[0] == section}
        near = nearest(dotted.lower(), beside)
        what = f"{place}section [{dotted}] is unknown"
        if homes and not near:
            return InputError(what, hint=f"{key} is a key, of section {' or '.join(homes)}")
        own = beside or own
    else:
        what = f"{place}{dotted} is unknown" if section else f"{place}key {dotted} is unknown"
        if homes:
            return InputError(what, hint=f"it belongs to section {' or '.join(homes)}")
        if not section:
            own |= {name: f"{home}.{name}" for home in OURS for name in OURS[home]}
        near = nearest(word, own)
    return InputError(what, hint=f"did you mean {own[near]}?" if near else f"there are {', '.join(own.values())}")
