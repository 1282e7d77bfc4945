"""What the keys of config.toml do, for people, and what counts where a key is not given.

``nvc.base.config_file`` has the keys and types; tests/contract/test_config_doc.py holds that each has a meaning here.
"""

from __future__ import annotations

import json
from typing import Any

from nvc.agent.settings import AgentSettings
from nvc.base import config_file
from nvc.base.record import Record
from nvc.request.hook_config import HookConfig
from nvc.share.policy import Policy
from nvc.share.spec import format_gpu

_CLI, _RUNTIME, _HOOK = config_file.CLI, config_file.RUNTIME, config_file.HOOK
MEANINGS = {
    "disable-require": "true: the conditions of images (NVIDIA_REQUIRE_*) are not looked at",
    "swarm-resource": "variables that ask for GPUs in place of NVIDIA_VISIBLE_DEVICES, with commas between them",
    "accept-nvidia-visible-devices-envvar-when-unprivileged": "false: variables of containers without CAP_SYS_ADMIN "
    "ask for nothing",
    "accept-nvidia-visible-devices-as-volume-mounts": "true: mounts below /var/run/nvidia-container-devices "
    "ask for GPUs",
    "supported-driver-capabilities": "what containers may ask for; anything else fails them",
    f"{_CLI}.root": "where the driver is",
    f"{_CLI}.debug": "a log of all steps; empty: none",
    f"{_CLI}.ldcache": "the loader cache in the driver's root; empty: /etc/ld.so.cache",
    f"{_CLI}.load-kmods": "load the kernel modules and make their device nodes",
    f"{_CLI}.no-pivot": "true: for hosts that run from an initial RAM disk",
    f"{_CLI}.no-cgroups": "true: leave the device cgroup alone; in a user namespace it always is",
    f"{_CLI}.user": "UID[:GID] of the process that asks NVML; empty: the user nobody",
    f"{_CLI}.ldconfig": "the host's ldconfig, with @ before it",
    f"{_HOOK}.path": "the hook that nvc-runtime adds; empty: nvc-hook beside it",
    f"{_HOOK}.skip-mode-detection": "true: the hook works in the modes cdi and csv too",
    f"{_RUNTIME}.debug": "the runtime's log; empty: none",
    f"{_RUNTIME}.log-level": "trace, debug, info, warning, error, fatal or panic",
    f"{_RUNTIME}.runtimes": "the real runtime: names or paths, the first that is executable",
    f"{_RUNTIME}.mode": "how containers get GPUs: auto, legacy, cdi, jit-cdi or csv",
    f"{_RUNTIME}.modes.csv.mount-spec-path": "mount lists of a Tegra; empty: the toolkit's directory",
    f"{_RUNTIME}.modes.cdi.spec-dirs": "where CDI specifications are; a later directory counts more",
    f"{_RUNTIME}.modes.cdi.default-kind": "the kind of a device that is asked for by its bare name",
    f"{_RUNTIME}.modes.cdi.annotation-prefixes": "beginnings of annotations that ask for CDI devices",
    f"{_RUNTIME}.modes.cdi.container-kinds": "other kinds of CDI devices that a container may ask for itself",
    f"{_RUNTIME}.modes.legacy.cuda-compat-mode": "CUDA's compat libraries in images: ldconfig, mount, hook or disabled",
    "mps.user": "uid or name of the user that the host's MPS server runs as; empty: root",
    "features.allow-cuda-compat-libs-from-container": "true, with an empty cuda-compat-mode: mount",
    "features.disable-imex-channel-creation": "true: make no nodes of IMEX channels",
    "features.ignore-imex-channel-requests": "true: containers get no IMEX channels",
    "features.no-additional-gids-for-device-nodes": "true: users of containers do not join the groups of device nodes",
    "share.default": "used for every setting that a container does not give: mem=50%,cap=50%; empty: none",
    "share.maximum": "no container gets more: mem=50%,cap=100%,weight=100; empty: no limit",
    "share.clamp": "true: cut what is above the maximum, with a warning, in place of refusing it",
    "share.allow-off": "true: a container may have no share in spite of the rules",
    "share.variables": "false: variables of a container ask for no share",
    "share.guard": "auto: guarded where an agent runs; require: no share without the guard; off",
    "share.allow-guard-off": "true: the annotation nvc.guard=off keeps a container out of the guard",
    "share.unknown-driver": "cap, weight and priority with a driver that is not known: refuse, or memory-only",
    "share.admission": "of which shares the requests fit on a GPU: ranges (those beside a range), or requests (all)",
    "agent.directory": "the agent's sockets and state",
    "agent.policy": "scheduling of GPUs: fair, preemptive, weighted, fixed, soft or native",
    "agent.slots": "how many containers the policy fair divides a GPU among",
    "agent.first-uid": "first of 131,073 uids and gids for guards, which no account may have",
    "agent.period": "milliseconds of a cap's on and off, 10 to 200",
    "agent.metrics": "ADDRESS:PORT for Prometheus; empty: none",
    "agent.metrics-hami": "true: HAMi's names of metrics as well",
    "agent.group": "members may ask the agent what there is",
    "agent.unaccounted": "on memory that no container is charged for: warn, stop-admission or freeze",
    "agent.graphics": "true: guarded containers have Vulkan, OpenGL and EGL, and their caps and weights are not exact",
}
_HEAD = """\
# Settings of nvc-py: /etc/nvc/config.toml. Written by `nvc-py config default`.
# Each key has its default here. What is not given has it; a key that is unknown is an error.
# After a change: nvc-py config validate, and `systemctl reload nvc-agent` for [agent] and [share].
"""


class Setting(Record):
    """A key. section, key: as in the file. default: what counts where it is not given. meaning: for people."""

    section: str
    key: str
    default: Any
    meaning: str

    @property
    def dotted(self) -> str:
        return f"{self.section}.{self.key}".lstrip(".")


def settings() -> tuple[Setting, ...]:
    """Every key that has an effect, those of one section together, in the file's order."""
    hook = HookConfig()
    rows = [
        Setting(section, key, _hook_default(kind, field, getattr(hook, field)), _meaning(section, key))
        for section, key, kind, field in config_file.KEYS
        if field
    ]
    rows += [
        Setting(section, key, _own_default(section, key), _meaning(section, key))
        for section, keys in config_file.OURS.items()
        for key in keys
    ]
    return tuple(rows)


def given(content: dict[str, Any], setting: Setting) -> Any:
    """The value in the tables of a file; None where it is not given."""
    table: Any = content
    for part in filter(None, setting.section.split(".")):
        table = table.get(part, {})
    names = (setting.key, setting.key.replace("-", "_")) if setting.section in config_file.OURS else (setting.key,)
    return next((table[name] for name in names if name in table), None)


def toml(value: Any) -> str:
    """A value as it is written in a file."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def sample() -> str:
    """A file with every key as a comment."""
    lines, section = [_HEAD.rstrip("\n")], ""
    for setting in settings():
        if setting.section != section:
            section = setting.section
            lines += ["", f"[{section}]"]
        lines += [f"# {setting.meaning}", f"#{setting.key} = {toml(setting.default)}"]
    return "\n".join(lines) + "\n"


def _meaning(section: str, key: str) -> str:
    return MEANINGS[f"{section}.{key}".lstrip(".")]


def _hook_default(kind: str, field: str, value: Any) -> Any:
    """As the file says it."""
    if kind == "list":
        return list(value)
    if field in ("create_imex", "additional_gids"):
        return not value
    return ",".join(value) if isinstance(value, tuple) else value


def _own_default(section: str, key: str) -> Any:
    if section == "share":
        value = getattr(Policy(), key.replace("-", "_"))
        return format_gpu(value) if key in ("default", "maximum") else value
    if key == "period":
        return AgentSettings().period_us // 1000
    return getattr(AgentSettings(), key.replace("-", "_"))
