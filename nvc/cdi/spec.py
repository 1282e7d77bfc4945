"""A CDI spec as values, and the one table that says what its keys are called and since when they exist.

``decode`` reads data of any origin and reports everything that is wrong, each with its place; ``encode`` is the
inverse and leaves out what is empty, as every CDI library does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.record import Record
from nvc.cdi import rules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class CdiDeviceNode(Record):
    """path: in the container; host_path: on the host, "" when the same. Numbers and mode: 0 lets the engine look."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int = 0
    permissions: str = ""
    uid: int = 0
    gid: int = 0


class CdiMount(Record):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class CdiHook(Record):
    """timeout: seconds, 0 for none."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int = 0


class CdiNetDevice(Record):
    host_interface_name: str
    name: str


class CdiIntelRdt(Record):
    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False
    enable_cmt: bool = False
    enable_mbm: bool = False


class CdiEdits(Record):
    """What is changed in a container's OCI configuration."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[CdiDeviceNode, ...] = ()
    net_devices: tuple[CdiNetDevice, ...] = ()
    hooks: tuple[CdiHook, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    intel_rdt: CdiIntelRdt | None = None
    additional_gids: tuple[int, ...] = ()


class CdiDevice(Record):
    name: str
    edits: CdiEdits
    annotations: dict[str, str] = {}


class CdiSpec(Record):
    """version: cdiVersion. edits: common to all devices."""

    version: str
    kind: str
    devices: tuple[CdiDevice, ...]
    edits: CdiEdits = CdiEdits()
    annotations: dict[str, str] = {}

    def minimum_version(self) -> str:
        """The oldest version of the format that has everything used here."""
        return rules.newest(version for _, version in _needs(self))


class Problem(Record):
    """field: where in the spec, as ``devices[0].name``. reason: what is wrong."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


#: What a value may be. A Record class: an object; "many" before it: a list of them.
_TEXT, _NUMBER, _FLAG, _TEXTS, _NUMBERS, _TABLE = "text", "number", "flag", "texts", "numbers", "table"

#: Class -> (field, key, kind of value, whether it must be there, version that brought it). The order is that of the
#: written file.
KEYS: dict[type[Record], tuple[tuple[str, str, str | type[Record], bool, str], ...]] = {
    CdiSpec: (
        ("version", "cdiVersion", _TEXT, True, rules.BASE),
        ("kind", "kind", _TEXT, True, rules.BASE),
        ("annotations", "annotations", _TABLE, False, rules.DOTTED_CLASS),
        ("devices", "devices", CdiDevice, True, rules.BASE),
        ("edits", "containerEdits", CdiEdits, False, rules.BASE),
    ),
    CdiDevice: (
        ("name", "name", _TEXT, True, rules.BASE),
        ("annotations", "annotations", _TABLE, False, rules.DOTTED_CLASS),
        ("edits", "containerEdits", CdiEdits, True, rules.BASE),
    ),
    CdiEdits: (
        ("env", "env", _TEXTS, False, rules.BASE),
        ("device_nodes", "deviceNodes", CdiDeviceNode, False, rules.BASE),
        ("net_devices", "netDevices", CdiNetDevice, False, rules.RDT_MONITORING),
        ("hooks", "hooks", CdiHook, False, rules.BASE),
        ("mounts", "mounts", CdiMount, False, rules.BASE),
        ("intel_rdt", "intelRdt", CdiIntelRdt, False, rules.GIDS),
        ("additional_gids", "additionalGids", _NUMBERS, False, rules.GIDS),
    ),
    CdiDeviceNode: (
        ("path", "path", _TEXT, True, rules.BASE),
        ("host_path", "hostPath", _TEXT, False, rules.HOST_PATH),
        ("type", "type", _TEXT, False, rules.BASE),
        ("major", "major", _NUMBER, False, rules.BASE),
        ("minor", "minor", _NUMBER, False, rules.BASE),
        ("file_mode", "fileMode", _NUMBER, False, rules.BASE),
        ("permissions", "permissions", _TEXT, False, rules.BASE),
        ("uid", "uid", _NUMBER, False, rules.BASE),
        ("gid", "gid", _NUMBER, False, rules.BASE),
    ),
    CdiNetDevice: (
        ("host_interface_name", "hostInterfaceName", _TEXT, True, rules.RDT_MONITORING),
        ("name", "name", _TEXT, True, rules.RDT_MONITORING),
    ),
    CdiHook: (
        ("hook_name", "hookName", _TEXT, True, rules.BASE),
        ("path", "path", _TEXT, True, rules.BASE),
        ("args", "args", _TEXTS, False, rules.BASE),
        ("env", "env", _TEXTS, False, rules.BASE),
        ("timeout", "timeout", _NUMBER, False, rules.BASE),
    ),
    CdiMount: (
        ("host_path", "hostPath", _TEXT, True, rules.BASE),
        ("container_path", "containerPath", _TEXT, True, rules.BASE),
        ("options", "options", _TEXTS, False, rules.BASE),
        ("type", "type", _TEXT, False, rules.MOUNT_TYPE),
    ),
    CdiIntelRdt: (
        ("clos_id", "closID", _TEXT, False, rules.GIDS),
        ("l3_cache_schema", "l3CacheSchema", _TEXT, False, rules.GIDS),
        ("mem_bw_schema", "memBwSchema", _TEXT, False, rules.GIDS),
        ("schemata", "schemata", _TEXTS, False, rules.RDT_MONITORING),
        ("enable_monitoring", "enableMonitoring", _FLAG, False, rules.RDT_MONITORING),
        ("enable_cmt", "enableCMT", _FLAG, False, rules.GIDS),
        ("enable_mbm", "enableMBM", _FLAG, False, rules.GIDS),
    ),
}
#: Fields that hold a list of the Record in KEYS, not one.
_LISTS = ("devices", "device_nodes", "net_devices", "hooks", "mounts")


def encode(value: Record) -> dict[str, Any]:
    """The spec, or a part of it, as data for a file: keys in the order of KEYS, empty ones left out."""
    data: dict[str, Any] = {}
    for field, key, kind, needed, _ in KEYS[type(value)]:
        item = getattr(value, field)
        if not item and not needed:
            continue
        if isinstance(kind, type):
            item = [encode(part) for part in item] if field in _LISTS else encode(item)
        elif isinstance(item, tuple | dict):
            item = dict(sorted(item.items())) if isinstance(item, dict) else list(item)
        if item not in ({}, []) or needed:
            data[key] = item
    return data


def decode(data: object) -> tuple[CdiSpec | None, tuple[Problem, ...]]:
    """The spec in ``data``, and everything that is wrong with it: the spec is None when something is."""
    problems: list[Problem] = []
    found = _decode(CdiSpec, data, "", problems)
    if not problems:
        from nvc.cdi.validate import problems as check

        problems += check(found)
    return (None if problems else found), tuple(problems)


def _decode(cls: type[Record], data: object, where: str, problems: list[Problem]) -> Any:
    if not isinstance(data, dict):
        problems.append(Problem(where or "(file)", f"expected an object, got {_what(data)}"))
        return None
    prefix = f"{where}." if where else ""
    known = {key for _, key, _, _, _ in KEYS[cls]}
    for key in data:
        if key not in known:
            problems.append(Problem(f"{prefix}{key}", "unknown key: every engine refuses the whole file"))
    values = {}
    before = len(problems)
    for field, key, kind, needed, _ in KEYS[cls]:
        # A key without a value (null) is the same as no key, for Go's decoders.
        if data.get(key) is not None:
            values[field] = _value(field, kind, data[key], prefix + key, problems)
        elif needed:
            problems.append(Problem(prefix + key, "missing"))
    return cls(**values) if len(problems) == before else None


def _value(field: str, kind: str | type[Record], data: object, where: str, problems: list[Problem]) -> Any:
    if isinstance(kind, type) and field not in _LISTS:
        return _decode(kind, data, where, problems)
    if isinstance(kind, type) or kind in (_TEXTS, _NUMBERS):
        if not isinstance(data, list):
            problems.append(Problem(where, f"expected a list, got {_what(data)}"))
            return None
        places = ((f"{where}[{index}]", item) for index, item in enumerate(data))
        if isinstance(kind, type):
            return tuple(_decode(kind, item, place, problems) for place, item in places)
        one = _TEXT if kind == _TEXTS else _NUMBER
        return tuple(_atom(one, item, place, problems) for place, item in places)
    if kind == _TABLE:
        if not isinstance(data, dict):
            problems.append(Problem(where, f"expected an object, got {_what(data)}"))
            return None
        return {str(key): _atom(_TEXT, item, f"{where}.{key}", problems) for key, item in data.items()}
    return _atom(kind, data, where, problems)


def _atom(kind: str, data: object, where: str, problems: list[Problem]) -> Any:
    good = {_TEXT: isinstance(data, str), _FLAG: isinstance(data, bool)}
    good[_NUMBER] = isinstance(data, int) and not isinstance(data, bool)
    if not good[kind]:
        problems.append(Problem(where, f"expected a {kind}, got {_what(data)}"))
    elif isinstance(data, str) and "\0" in data:
        problems.append(Problem(where, "contains a NUL character"))
    return data


def _what(data: object) -> str:
    words = {dict: "an object", list: "a list", str: "a text", bool: "a flag", int: "a number", type(None): "nothing"}
    text = words.get(type(data), type(data).__name__)
    return f"{text} ({data!r})" if isinstance(data, str | int | float) and len(repr(data)) < 40 else text


def _needs(value: Record) -> Iterator[tuple[str, str]]:
    """(key, version) of everything that is used."""
    if isinstance(value, CdiSpec):
        yield "kind", rules.kind_version(value.kind)
    if isinstance(value, CdiDevice):
        yield "name", rules.device_version(value.name)
    for field, key, kind, _, since in KEYS[type(value)]:
        item = getattr(value, field)
        if not item:
            continue
        yield key, since
        if isinstance(kind, type):
            for part in item if field in _LISTS else (item,):
                yield from _needs(part)


def needs(spec: CdiSpec) -> dict[str, str]:
    """Key -> version that it needs, for the keys that need more than the first version."""
    found: dict[str, str] = {}
    for key, version in _needs(spec):
        if version != rules.BASE:
            found[key] = rules.newest((version, found.get(key, rules.BASE)))
    return found
