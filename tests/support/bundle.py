"""OCI bundles, written by hand (runtime-spec v1.0.2), so that every test says exactly what its container has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
STAGES = ("prestart", "createRuntime", "createContainer")
CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_MKNOD", "CAP_SETUID", "CAP_SETGID", "CAP_KILL")
#: Docker's list, less what has no meaning without its other settings.
MASKED = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi")


@dataclass(frozen=True)
class Hook:
    """One hook. env is everything it gets (both runtimes give nothing else once the key is there)."""

    path: str
    args: Sequence[str]
    env: Sequence[str] = (PATH,)
    timeout: int = 30

    def as_data(self) -> dict[str, Any]:
        return {"path": self.path, "args": list(self.args), "env": list(self.env), "timeout": self.timeout}


@dataclass(frozen=True)
class Container:
    """What a test wants to run.

    cgroup: path below the device cgroup's root. id_offset: host id of the container's root, 0 for no user namespace.
    namespaces: kinds beyond the usual ones ("cgroup"). joined: kinds that are not its own -> path, "" for the host's.
    devices: rules beyond the usual ones (runtime-spec: linux.resources.devices). annotations: of the container.
    capabilities: beyond the usual.
    """

    rootfs: Path
    args: Sequence[str]
    env: Sequence[str] = ()
    hooks: Mapping[str, Sequence[Hook]] = field(default_factory=dict)
    cgroup: str = ""
    id_offset: int = 0
    readonly: bool = False
    mounts: Sequence[Mapping[str, Any]] = ()
    namespaces: Sequence[str] = ()
    joined: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[Mapping[str, Any]] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    capabilities: Sequence[str] = ()


def config(container: Container) -> dict[str, Any]:
    """The config.json of a container. Device nodes may be made in it (c *:* m) but only the usual ones opened."""
    linux: dict[str, Any] = {
        "namespaces": _namespaces(container),
        "maskedPaths": list(MASKED),
        "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        "resources": {
            "devices": [
                {"allow": False, "access": "rwm"},
                {"allow": True, "type": "c", "access": "m"},
                {"allow": True, "type": "b", "access": "m"},
                *(dict(rule) for rule in container.devices),
            ]
        },
    }
    if container.cgroup:
        linux["cgroupsPath"] = container.cgroup
    if container.id_offset:
        mapping = [{"containerID": 0, "hostID": container.id_offset, "size": 65536}]
        linux["uidMappings"] = mapping
        linux["gidMappings"] = mapping
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(container.args),
            "env": [PATH, *container.env],
            "cwd": "/",
            "capabilities": {
                kind: [*CAPABILITIES, *container.capabilities] for kind in ("bounding", "effective", "permitted")
            },
            "noNewPrivileges": True,
        },
        "root": {"path": str(container.rootfs), "readonly": container.readonly},
        "hostname": "probe",
        "mounts": [*_mounts(), *(dict(mount) for mount in container.mounts)],
        "hooks": {stage: [hook.as_data() for hook in hooks] for stage, hooks in container.hooks.items()},
        "linux": linux,
        "annotations": dict(container.annotations),
    }


def write(directory: Path, container: Container) -> Path:
    """Write the bundle into ``directory`` (made when missing) and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(container), indent=1))
    return directory


def _namespaces(container: Container) -> list[dict[str, str]]:
    kinds = ["pid", "network", "ipc", "uts", "mount", *container.namespaces, *(["user"] if container.id_offset else [])]
    own = [{"type": kind} for kind in kinds if kind not in container.joined]
    return [*own, *({"type": kind, "path": path} for kind, path in container.joined.items() if path)]


def _mounts() -> list[dict[str, Any]]:
    def mount(target: str, kind: str, *options: str) -> dict[str, Any]:
        return {"destination": target, "type": kind, "source": kind, "options": list(options)}

    return [
        mount("/proc", "proc"),
        mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
        mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
        mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
    ]
