"""The bundle's config.json, as much of it as decides whether and how a container gets a GPU.

Decoding is tolerant of what is not used (nvidia-container-toolkit.md 1.4) and strict in what is.
"""

from __future__ import annotations

import os

from hook import files
from nvc.base.budgets import CONFIG_BYTES
from nvc.base.errors import InputError
from nvc.base.record import Record
from rpc.codec import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Large images and Kubernetes pods stay below 1 MiB; what is larger is not read into a root process.
CONFIG_LIMIT = CONFIG_BYTES
#: The one Linux capability that makes a container "privileged" here.
SYS_ADMIN = "CAP_SYS_ADMIN"
#: Mounts of /dev/null below it are requests (``hook.mount_requests``).
_DEVICES = "nvidia-container-devices"
DEVICE_MOUNTS = f"/var/run/{_DEVICES}"
#: The annotation that asks for a share of the GPUs.
SHARE = "nvc.share"
#: The annotation that keeps a container out of the guard (value "off"), where the node lets it.
GUARD = "nvc.guard"
#: The hooks of nvc-cdi-hook that give shares: ours, and NVIDIA's that limits memory (``nvc.cdi.memory_limits``).
SHARE_HOOK, MEMORY_HOOK = "share", "apply-cuda-memory-limits"
#: CRI-O's annotations of a container: those that the kubelet gave it, as JSON, and whether it is a pod's first. CRI-O
#: adds the pod's own beside them (SpecAddAnnotations of internal/factory/container), and writes these two after them.
_KUBELETS, _KIND, _SANDBOX = "io.kubernetes.cri-o.Annotations", "io.kubernetes.cri-o.ContainerType", "sandbox"
#: containerd's, CRI-O's. Podman overwrites the manager's, also an image's.
_CRI, _MANAGER, _PODMAN = {"io.kubernetes.cri.container-type", _KUBELETS}, "io.container.manager", "libpod"
#: Option of nvc-hook and of the hook ``share``: settings that are final.
FIXED = "share-fixed"
#: Word that nvidia-ctk has before the name of a hook.
CTK_HOOK = "hook"


#: Annotations with which engines name a container: its namespace, its pod, itself ("": the engine has none).
#: containerd's CRI plugin (pkg/cri/annotations), CRI-O (pkg/annotations), nerdctl (pkg/labels); Docker, Podman: none.
NAMES = (
    ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.container-name"),
    ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"),
    ("nerdctl/namespace", "", "nerdctl/name"),
)
#: Kubernetes' names have no other characters, and no more of them (RFC 1123 subdomains).
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_NAME_LENGTH = 253


class Bundle(Record):
    """path: absolute. env: ``process.env`` in order. root: ``root.path``, may be relative to ``path``.

    privileged: CAP_SYS_ADMIN is in the bounding set, so ``docker run --cap-add SYS_ADMIN`` counts as well.
    device_mounts: what is asked for by mounts below DEVICE_MOUNTS, in order. annotations: those that can be requests.
    is_pods: made for a pod by containerd or CRI-O: its device annotations are the kubelet's.
    seccomp: linux.seccomp where it names a listener, unchecked: users write it (``nvc.guard.registered``).
    name: "NAMESPACE/POD/CONTAINER" by its engine, parts that it has not empty; "": it names none. For people only: some
    engines let users write such annotations.
    """

    path: str
    env: tuple[str, ...]
    root: str
    privileged: bool
    device_mounts: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    seccomp: dict[str, Any] = {}
    name: str = ""
    is_pods: bool = False

    @property
    def guard_off(self) -> bool:
        """Whether it asks to be kept out of the guard."""
        return dict(self.annotations).get(GUARD, "on").strip().lower() == "off"


def read(path: str) -> bytes:
    """The bytes of ``path``/config.json.

    Raises InputError when it is missing, unreadable, not a regular file, or above CONFIG_LIMIT.
    """
    return files.read(f"{path}/config.json", CONFIG_LIMIT)


def decode(data: bytes, path: str) -> Bundle:
    """The bundle at ``path`` whose config.json holds ``data``. Raises InputError naming the key that is wrong."""
    return look(parse(data, path), path)


def parse(data: bytes, path: str) -> dict[str, Any]:
    """config.json of the bundle at ``path``, whole. Raises InputError for what is no JSON object."""
    name = f"{path}/config.json"
    try:
        config = loads(data, limit=CONFIG_LIMIT)
    except ValueError as error:
        raise InputError(f"{name}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{name}: not a JSON object")
    return config


def look(config: dict[str, Any], path: str) -> Bundle:
    """What is used of ``config``. Raises InputError naming the key that is wrong."""
    name = f"{path}/config.json"
    if not isinstance(config.get("ociVersion"), str):
        raise InputError(f"{name}: ociVersion is missing or not a string")
    process = _object(config, "process", name)
    root = _object(config, "root", name).get("path")
    if root is not None and (not isinstance(root, str) or not files.can_be_a_path(root)):
        raise InputError(f"{name}: root.path is not a path")
    return Bundle(
        path,
        _env(process.get("env"), name),
        root or "",
        _privileged(process.get("capabilities"), name),
        _device_mounts(config.get("mounts"), name),
        _annotations(config.get("annotations"), name),
        _seccomp(config.get("linux")),
        _name(config.get("annotations")),
        _is_pods(config.get("annotations") or {}),
    )


def fixed(config: dict[str, Any], own: str, path: str) -> tuple[str, ...]:
    """The fixed settings of a container: those of this hook, ``own`` or "", and those of its other hooks.

    config: its config.json, {} where that is not to be read. Raises InputError.
    """
    found = (own,) if own else ()
    if FIXED not in repr(config.get("hooks")):
        return found
    from hook.runtime import shares

    return tuple(dict.fromkeys((*found, *shares.fixed(config, path))))


def rootfs(bundle: Bundle, reported: str) -> str:
    """The absolute path of the container's rootfs. reported: ``root`` of the state (crun's), or "".

    Raises InputError when there is none, or when it is the host's "/".
    """
    path = reported or bundle.root
    if not path:
        raise InputError(f"{bundle.path}/config.json: root.path is missing")
    if not path.startswith("/"):
        path = f"{bundle.path}/{path}"
    # Only by its text: links are resolved once, by the process that opens it.
    if os.path.normpath(path).strip("/") == "":
        raise InputError(f"invalid rootfs directory: {path!r} is the root of the host")
    return path


def _object(config: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    value = config.get(key)
    if not isinstance(value, dict):
        raise InputError(f"{name}: {key} is missing or not an object")
    return value


def _env(entries: object, name: str) -> tuple[str, ...]:
    if entries is None:
        return ()
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise InputError(f"{name}: process.env is not a list of strings")
    return tuple(entries)


def _device_mounts(mounts: object, name: str) -> tuple[str, ...]:
    if mounts is None:
        return ()
    if not isinstance(mounts, list) or not all(isinstance(mount, dict) for mount in mounts):
        raise InputError(f"{name}: mounts is not a list of objects")
    requests: dict[str, None] = {}
    for mount in mounts:
        target, source = mount.get("destination"), mount.get("source")
        if not isinstance(target, str) or _DEVICES not in target or not isinstance(source, str):
            continue
        # The reference compares the beginning as text, so that .../nvidia-container-devicesX counts too.
        place = os.path.normpath(target)
        if os.path.normpath(source) == "/dev/null" and place.startswith(f"{DEVICE_MOUNTS}/"):
            requests[place.removeprefix(f"{DEVICE_MOUNTS}/")] = None
    return tuple(requests)


def _annotations(annotations: object, name: str) -> tuple[tuple[str, str], ...]:
    if annotations is None:
        return ()
    if not isinstance(annotations, dict) or not all(isinstance(value, str) for value in annotations.values()):
        raise InputError(f"{name}: annotations is not an object of strings")
    # A request by annotation names CDI devices, VENDOR/CLASS=NAME, a share, or no guard.
    found = [item for item in annotations.items() if "=" in item[1] or item[0] in (SHARE, GUARD)]
    if _KUBELETS in annotations and any(key not in (SHARE, GUARD, _KUBELETS) for key, _ in found):
        # Which devices a pod has is the kubelet's to say.
        given = _kubelets(annotations)
        found = [(key, value) for key, value in found if key in (SHARE, GUARD) or given.get(key) == value]
    return tuple(sorted(found))


def _kubelets(annotations: dict[str, str]) -> dict[str, Any]:
    """Those that the kubelet gave a container of CRI-O's. A pod's first one has the pod's own in their place."""
    if annotations.get(_KIND) == _SANDBOX:
        return {}
    try:
        given = loads(annotations[_KUBELETS].encode(), limit=CONFIG_LIMIT)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def _is_pods(annotations: dict[str, Any]) -> bool:
    return annotations.get(_MANAGER) != _PODMAN and not _CRI.isdisjoint(annotations)


def _name(annotations: Any) -> str:
    for keys in NAMES if annotations else ():
        parts = [annotations.get(key, "") for key in keys]
        if parts[-1]:
            return "/".join(part if len(part) <= _NAME_LENGTH and _NAME.issuperset(part) else "" for part in parts)
    return ""


def _seccomp(linux: object) -> dict[str, Any]:
    seccomp = linux.get("seccomp") if isinstance(linux, dict) else None
    return seccomp if isinstance(seccomp, dict) and seccomp.get("listenerPath") else {}


def _privileged(capabilities: object, name: str) -> bool:
    """The layout is told by its shape: a flat list from 1.0.0-rc1 to -rc4, an object of sets in every other version."""
    if isinstance(capabilities, dict):
        capabilities = capabilities.get("bounding")
    if capabilities is None:
        return False
    if not isinstance(capabilities, list) or not all(isinstance(item, str) for item in capabilities):
        raise InputError(f"{name}: process.capabilities is not a list of names or an object of such lists")
    return SYS_ADMIN in capabilities
