"""The configuration file of NVIDIA's device plugin (``version: v1``), as far as it decides what pods get. Pure.

Every key that the plugin reads (k8s-device-plugin, api/config/v1) is understood, without effect here, or refused with
a message. One that is unknown is refused: it could be a limit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nvc.base.errors import InputError
from nvc.base.record import Record
from nvc.cdi import text

if TYPE_CHECKING:
    from typing import Any

VERSION = "v1"
#: Of resources that are named without one.
DOMAIN = "nvidia.com"
GPU = f"{DOMAIN}/gpu"
MIG_STRATEGIES = ("none", "single", "mixed")
CDI_CRI, CDI_ANNOTATIONS = "cdi-cri", "cdi-annotations"
#: What ``renameByDefault`` appends.
SHARED = ".shared"
#: Replicas of one GPU. Kubernetes' own limit of an extended resource is far above.
REPLICAS_LIMIT = 1000
ANNOTATION_PREFIX = "cdi.k8s.io/"
#: As in NVIDIA's plugin. The resource's socket is named for it, and a socket's path has 107 characters (unix(7)).
_NAME_LIMIT = 63
_RESOURCE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_SELECTOR = re.compile(r"[0-9]+(:[0-9]+)?|(GPU|MIG)-[A-Za-z0-9/-]+")
_INDEX = re.compile(r"\[[0-9]+\]")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/")
_SLICING = "sharing.timeSlicing"
#: Table of the file -> its keys that are read.
KEYS: dict[str, tuple[str, ...]] = {
    "": ("version", "flags", "resources", "sharing", "imex"),
    "flags": (
        *("migStrategy", "failOnInitError", "nvidiaDriverRoot", "plugin"),
        *("gdsEnabled", "mofedEnabled", "gdrcopyEnabled"),
    ),
    "flags.plugin": ("deviceListStrategy", "deviceIDStrategy", "cdiAnnotationPrefix", "cdiFeatureFlags"),
    "resources": ("gpus", "mig"),
    "imex": ("channelIDs", "required"),
    "sharing": ("timeSlicing", "mps"),
    _SLICING: ("renameByDefault", "failRequestsGreaterThanOne", "resources", "strategy"),
    f"{_SLICING}.resources[]": ("name", "rename", "devices", "replicas"),
}
#: Flags that decide how NVIDIA's program works, and nothing about what a pod gets.
NO_EFFECT: dict[str, type] = {
    "flags.nvidiaDevRoot": str,
    "flags.useNodeFeatureAPI": bool,
    "flags.deviceDiscoveryStrategy": str,
    "flags.gfd": dict,
    # The engine adds a device's nodes with its CDI name, where runc and cgroups see them.
    "flags.plugin.passDeviceSpecs": bool,
    "flags.plugin.nvidiaCTKPath": str,
    "flags.plugin.nvidiaCDIHookPath": str,
    "flags.plugin.containerDriverRoot": str,
}
_OTHER_DEVICES = {"gdsEnabled": "gds", "mofedEnabled": "mofed", "gdrcopyEnabled": "gdrcopy"}


class Replicated(Record):
    """A resource whose devices several containers share.

    name: of the devices that are shared. rename: what the shares are called, "" for ``name``. devices: selectors of
    those that are shared (index, GPU:MIG, UUID), () for all; count: the first so many of them, 0 for no such limit.
    """

    name: str
    replicas: int
    rename: str = ""
    devices: tuple[str, ...] = ()
    count: int = 0


class PluginConfig(Record):
    """only_one: a container that asks for more than one share is refused. by_annotation: CDI names are given as an
    annotation, for kubelets before 1.28; prefix: how its key begins. wait: a machine without a GPU is no error.
    driver_root: where the driver is, as the file says. notes: what has another effect than the file says.
    """

    mig_strategy: str = MIG_STRATEGIES[0]
    replicated: tuple[Replicated, ...] = ()
    only_one: bool = False
    by_annotation: bool = False
    prefix: str = ANNOTATION_PREFIX
    wait: bool = False
    driver_root: str = "/"
    notes: tuple[str, ...] = ()


def parse(data: bytes, name: str) -> PluginConfig:
    """The configuration in a file (YAML or JSON). name: of the file, for messages. Raises InputError."""
    try:
        return _Reader(text.read(data, "yaml")).config()
    except InputError as error:
        raise InputError(f"{name}: {error.message}", hint=error.hint) from error


def equal(replicas: int, resource: str = GPU, mig_strategy: str = MIG_STRATEGIES[0]) -> PluginConfig:
    """What the options of the command say: every GPU in so many equal shares; 1: whole. Raises InputError."""
    wanted = _resource(resource, "--resource")
    if not 1 <= replicas <= REPLICAS_LIMIT:
        raise InputError(f"--replicas {replicas} is not a number from 1 to {REPLICAS_LIMIT}")
    shared = (Replicated(GPU, replicas, "" if wanted == GPU else wanted),)
    if replicas == 1 and wanted != GPU:
        raise InputError(f"--resource {resource}: whole GPUs are {GPU}", hint="give --replicas too")
    return PluginConfig(mig_strategy=mig_strategy, replicated=shared if replicas > 1 else ())


class _Reader:
    """One file's content. Places in messages are as the file has them: ``sharing.timeSlicing.resources[0].name``."""

    def __init__(self, content: Any) -> None:
        self.content = content
        self.notes: list[str] = []

    def config(self) -> PluginConfig:
        root = self.table(self.content, "")
        version = root.get("version") or VERSION
        if version != VERSION:
            raise InputError(f"version: {version!r} is not {VERSION}")
        flags = self.flags(root.get("flags"))
        self.resources(root.get("resources"))
        self.imex(root.get("imex"))
        shared, only_one = self.sharing(root.get("sharing"))
        return PluginConfig(replicated=shared, only_one=only_one, notes=tuple(self.notes), **flags)

    def flags(self, data: Any) -> dict[str, Any]:
        table = self.table(data, "flags")
        for key, mode in _OTHER_DEVICES.items():
            if self.of(table, "flags", key, bool, False):
                hint = f"leave it out; `nvc-py cdi generate --mode {mode}` makes CDI devices for it"
                raise InputError(f"flags.{key}: these devices are not given by this plugin", hint=hint)
        strategy = self.of(table, "flags", "migStrategy", str, MIG_STRATEGIES[0])
        if strategy not in MIG_STRATEGIES:
            raise InputError(f"flags.migStrategy: {strategy!r} is none of {', '.join(MIG_STRATEGIES)}")
        return {
            "mig_strategy": strategy,
            "wait": not self.of(table, "flags", "failOnInitError", bool, True),
            "driver_root": self.of(table, "flags", "nvidiaDriverRoot", str, "/") or "/",
            **self.plugin(table.get("plugin")),
        }

    def plugin(self, data: Any) -> dict[str, Any]:
        where = "flags.plugin"
        table = self.table(data, where)
        said = table.get("deviceListStrategy")
        ways = [said] if isinstance(said, str) else self.of(table, where, "deviceListStrategy", list, [])
        for way in ways:
            if way == "volume-mounts":
                raise InputError(
                    f"{where}.deviceListStrategy: {way}: a pod can name GPUs by mounts too, and nothing counts them",
                    hint=f"write {CDI_CRI}",
                )
            if way not in (CDI_CRI, CDI_ANNOTATIONS, "envvar"):
                raise InputError(f"{where}.deviceListStrategy: {way!r} is not known", hint=f"write {CDI_CRI}")
        if ways == ["envvar"]:
            self.notes.append(
                f"{where}.deviceListStrategy: CDI names are answered in place of NVIDIA_VISIBLE_DEVICES, which a pod's "
                "own environment overrides"
            )
        ids = self.of(table, where, "deviceIDStrategy", str, "uuid")
        if ids not in ("uuid", "index"):
            raise InputError(f"{where}.deviceIDStrategy: {ids!r} is neither uuid nor index")
        if self.of(table, where, "cdiFeatureFlags", list, []):
            raise InputError(f"{where}.cdiFeatureFlags: they are of NVIDIA's program", hint="leave them out")
        prefix = self.of(table, where, "cdiAnnotationPrefix", str, ANNOTATION_PREFIX)
        if not _PREFIX.fullmatch(prefix):
            raise InputError(f"{where}.cdiAnnotationPrefix: {prefix!r} is not a domain and a slash")
        return {"by_annotation": CDI_ANNOTATIONS in ways and CDI_CRI not in ways, "prefix": prefix}

    def resources(self, data: Any) -> None:
        if any(self.table(data, "resources").values()):
            self.notes.append("resources: names by pattern have no effect, as in NVIDIA's plugin")

    def imex(self, data: Any) -> None:
        table = self.table(data, "imex")
        if self.of(table, "imex", "channelIDs", list, []):
            raise InputError("imex.channelIDs: IMEX channels are not given by this plugin", hint="leave them out")
        self.of(table, "imex", "required", bool, False)

    def sharing(self, data: Any) -> tuple[tuple[Replicated, ...], bool]:
        table = self.table(data, "sharing")
        if table.get("mps"):
            raise InputError("sharing.mps: shares are held without MPS here", hint="write timeSlicing in place of mps")
        where = _SLICING
        given = table.get("timeSlicing")
        if given is None:
            return (), False
        slicing = self.table(given, where)
        if slicing.get("strategy"):
            raise InputError(f"{where}.strategy: {slicing['strategy']!r} is not known", hint="leave it out")
        rows = self.of(slicing, where, "resources", list, [])
        if not rows:
            raise InputError(f"{where}.resources: no resource is named", hint=f"- name: {GPU}")
        rename = self.of(slicing, where, "renameByDefault", bool, False)
        found = tuple(self.replicated(row, f"{where}.resources[{place}]", rename) for place, row in enumerate(rows))
        names = [one.name for one in found]
        twice = next((name for name in names if names.count(name) > 1), "")
        if twice:
            raise InputError(f"{where}.resources: {twice} twice")
        return found, self.of(slicing, where, "failRequestsGreaterThanOne", bool, False)

    def replicated(self, data: Any, where: str, rename: bool) -> Replicated:
        table = self.table(data, where)
        name = _resource(self.of(table, where, "name", str, ""), f"{where}.name")
        given = self.of(table, where, "rename", str, "")
        other = _resource(given, f"{where}.rename") if given else f"{name}{SHARED}" if rename else ""
        replicas = self.of(table, where, "replicas", int, 0)
        if not 2 <= replicas <= REPLICAS_LIMIT:
            raise InputError(f"{where}.replicas: {replicas} is not a number from 2 to {REPLICAS_LIMIT}")
        devices, count = self.devices(table.get("devices", "all"), f"{where}.devices")
        return Replicated(name, replicas, "" if other == name else other, devices, count)

    def devices(self, data: Any, where: str) -> tuple[tuple[str, ...], int]:
        if data == "all":
            return (), 0
        if isinstance(data, int) and not isinstance(data, bool) and data > 0:
            return (), data
        if not isinstance(data, list) or not data:
            raise InputError(f'{where}: {data!r} is neither "all" nor a number of devices nor a list of them')
        names = tuple(str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in data)
        for name in names:
            if not isinstance(name, str) or not _SELECTOR.fullmatch(name):
                raise InputError(f"{where}: {name!r} is no index, GPU:MIG index or UUID")
        return names, 0

    def table(self, data: Any, where: str) -> dict[str, Any]:
        """An object whose keys are known; {} for one that is not given."""
        known = KEYS[_INDEX.sub("[]", where)]
        if data is None:
            return {}
        if not isinstance(data, dict):
            raise InputError(f"{where or 'the file'}: expected keys and values")
        for key, value in data.items():
            place = f"{where}.{key}" if where else key
            if key in known:
                continue
            kind = NO_EFFECT.get(place)
            if kind is None:
                raise InputError(f"{place}: unknown key", hint="see docs/reference/kube-device-plugin.md for the keys")
            if value is not None and not isinstance(value, kind):
                raise InputError(f"{place}: {value!r} is not {_KINDS[kind]}")
        return data

    def of(self, table: dict[str, Any], where: str, key: str, kind: type, default: Any) -> Any:
        value = table.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InputError(f"{where}.{key}: {value!r} is not {_KINDS[kind]}")
        return value


_KINDS = {str: "a text", bool: "true or false", int: "a number", list: "a list", dict: "an object"}


def _resource(name: str, where: str) -> str:
    """The whole name of a resource. Raises InputError."""
    whole = name if "/" in name else f"{DOMAIN}/{name}"
    if not _RESOURCE.fullmatch(whole) or len(whole) > _NAME_LIMIT:
        hint = f"a name is like {GPU}, and has {_NAME_LIMIT} characters at most"
        raise InputError(f"{where}: {name!r} cannot be the name of a resource", hint=hint)
    return whole
