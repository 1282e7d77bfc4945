"""Podman and LXC, each with configuration and state of its own below one directory, in a mount namespace of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.bundle import Hook
from tests.support.cgroupview import CgroupView, remove, remove_when_empty
from tests.support.runtimes import Result, execute, find

#: Root on a machine without CAP_SYS_RESOURCE cannot set podman's own default limits.
_CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
hooks_dir = ["{place}/hooks.d"]
tmp_dir = "{place}/tmp"
volume_path = "{place}/volumes"
runtime = "{runtime}"
[network]
network_config_dir = "{place}/net"
[engine.runtimes]
{runtime} = ["{path}"]
"""
_STORAGE_CONF = '[storage]\ndriver = "vfs"\ngraphroot = "{place}/root"\nrunroot = "{place}/run"\n'
_LXC_CONF = """\
lxc.uts.name = {name}
lxc.rootfs.path = dir:{rootfs}
lxc.net.0.type = empty
lxc.apparmor.profile = unconfined
lxc.mount.auto = proc:mixed sys:ro
lxc.console.path = none
lxc.idmap = u 0 {offset} 65536
lxc.idmap = g 0 {offset} 65536
lxc.hook.version = 1
"""


def late(command: Sequence[str]) -> list[str]:
    """A container's command, begun when its output is read.

    Podman 4.3 on a busy machine sometimes attaches after a short command has ended, and then its output is lost
    although it exits with 0: about once in 120 starts here, without any hook or device.
    """
    return ["sh", "-c", 'sleep 0.1; exec "$@"', "sh", *command]


@dataclass
class Podman:
    """Rootful Podman over runc or crun. preload as in OciRuntime."""

    runtime: str
    view: CgroupView
    place: Path
    preload: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"podman-{self.runtime}-{self.view.name}"

    def prepare(self, hooks: Mapping[str, Hook]) -> None:
        """Write configuration and one oci-hooks(5) file a stage."""
        directory = self.place / "hooks.d"
        directory.mkdir(parents=True)
        (self.place / "tmp").mkdir()
        runtime = find(self.runtime)
        if self.preload:
            wrapper = self.place / f"{self.runtime}-norlim"
            wrapper.write_text(f'#!/bin/sh\nLD_PRELOAD={self.preload} exec {runtime} "$@"\n')
            wrapper.chmod(0o755)
            runtime = str(wrapper)
        values = {"place": str(self.place), "runtime": self.runtime, "path": runtime}
        (self.place / "containers.conf").write_text(_CONTAINERS_CONF.format(**values))
        (self.place / "storage.conf").write_text(_STORAGE_CONF.format(**values))
        for stage, hook in hooks.items():
            data = {"version": "1.0.0", "hook": hook.as_data(), "when": {"always": True}, "stages": [stage]}
            (directory / f"nvc-{stage}.json").write_text(json.dumps(data))

    def run(
        self, rootfs: Path, name: str, command: Sequence[str], env: Sequence[str] = (), more: Sequence[str] = ()
    ) -> Result:
        """``podman run --rm`` of a root file system, without network. more: options."""
        options = [*more, *(word for variable in env for word in ("--env", variable))]
        podman = ["podman", "run", "--rm", "--name", name, f"--cgroup-parent=/{name}-parent", "--log-driver=none"]
        # Pure v2 on a hybrid machine has no pids controller: 0 is no limit, -1 a limit that newer runc and crun write.
        argv = [*podman, "--network=none", "--pids-limit=0", *options, "--rootfs", str(rootfs), *late(command)]
        return execute(self.view.wrap(argv), env=self._env())

    def clean(self, name: str) -> None:
        """Remove the container if a failure left it."""
        execute(self.view.wrap(["podman", "rm", "--force", "--ignore", "--time", "0", name]), env=self._env())
        remove_when_empty(f"{name}-parent")  # podman leaves the parent it made

    def _env(self) -> dict[str, str]:
        settings = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
        base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {**base, **{name: str(self.place / file) for name, file in settings.items()}, **self.env}


@dataclass
class Lxc:
    """An idmapped LXC container started by root. place: LXC's directory; path: PATH of LXC and of its hooks.

    level: of LXC's log, where DEBUG has what hooks print. under: what it runs under (another userland).
    """

    name: str
    rootfs: Path
    place: Path
    path: str
    offset: int = 200000
    level: str = "INFO"
    env: Mapping[str, str] = field(default_factory=dict)
    under: Sequence[str] = ()

    def prepare(self, settings: Sequence[tuple[str, str]]) -> None:
        """Write the container's config; ``settings`` are further lines of it."""
        directory = self.place / self.name
        directory.mkdir(parents=True)
        text = _LXC_CONF.format(name=self.name, rootfs=self.rootfs, offset=self.offset)
        (directory / "config").write_text(text + "".join(f"{key} = {value}\n" for key, value in settings))
        over = self.place / "etc"
        over.mkdir()
        for name in ("subuid", "subgid"):
            (over / name).write_text(f"root:{self.offset}:65536\n")

    @property
    def log(self) -> Path:
        """LXC's own log: a hook's stderr is found there."""
        return self.place / f"{self.name}.log"

    def execute(self, command: Sequence[str]) -> Result:
        """``lxc-execute``. newuidmap must find the range in /etc/subuid, so this namespace sees one that has it.

        Not by a mount on the file: useradd elsewhere renames another one over it, which takes the mount away.
        """
        script = f'mount -t overlay etc -o lowerdir={self.place}/etc:/etc /etc && exec "$@"'
        wrap = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "lxc"]
        lxc = [
            "lxc-execute",
            "-P",
            str(self.place),
            "-n",
            self.name,
            "-o",
            str(self.log),
            "-l",
            self.level,
            "--",
            *command,
        ]
        try:
            return execute([*self.under, *wrap, *lxc], env={"PATH": self.path, "HOME": "/root", **self.env})
        finally:
            remove("lxc.pivot")  # LXC leaves it; one that is in use stays
