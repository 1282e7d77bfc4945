"""The engines, one row each: where their files are and which module plans the edits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from nvc.engines import containerd, crio, docker, podman

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nvc.engines.config import EngineConfig, Plan, Sources


class Engine(NamedTuple):
    """plan: the edits. names: the runtimes of ours.

    config, drop_in: the main file, and the one that takes the edits ("" where that is the main one). hooks_dir:
    for the OCI hook, "" where the engine has none. hooks: whether the hook is the usual way. own: the same three
    files for a user's own engine, below the configuration directory; empty where there is none.
    """

    plan: Callable[[EngineConfig, Sources], Plan]
    names: Callable[[EngineConfig, Sources], list[str]]
    config: str
    drop_in: str = ""
    hooks_dir: str = ""
    hooks: bool = False
    own: tuple[str, str, str] = ("", "", "")


ENGINES = {
    "docker": Engine(docker.plan, docker.names, "/etc/docker/daemon.json", own=("docker/daemon.json", "", "")),
    "containerd": Engine(containerd.plan, containerd.names, "/etc/containerd/config.toml"),
    "crio": Engine(
        crio.plan,
        crio.names,
        "/etc/crio/crio.conf",
        "/etc/crio/crio.conf.d/99-nvidia.toml",
        "/etc/containers/oci/hooks.d",
    ),
    "podman": Engine(
        podman.plan,
        podman.names,
        "/etc/containers/containers.conf",
        "/etc/containers/containers.conf.d/99-nvidia.conf",
        "/etc/containers/oci/hooks.d",
        hooks=True,
        own=("containers/containers.conf", "containers/containers.conf.d/99-nvidia.conf", "containers/oci/hooks.d"),
    ),
}


def places(engine: Engine, uid: int, environment: Mapping[str, str]) -> tuple[str, str, str]:
    """The main file, the drop-in and the hooks' directory for this user: root's are the machine's."""
    if uid and any(engine.own):
        base = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", "/"), ".config")
        config, drop_in, hooks_dir = (f"{base}/{name}" if name else "" for name in engine.own)
    else:
        config, drop_in, hooks_dir = engine.config, engine.drop_in, engine.hooks_dir
    alone = environment.get("CONTAINERS_CONF", "") if engine.plan is podman.plan else ""
    return (alone, "", hooks_dir) if alone else (config, drop_in, hooks_dir)
