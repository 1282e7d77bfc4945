"""A host for the doctor: a simulated machine whose files tests may change, which is its own kernel too."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

from nvc import __version__
from nvc.base.errors import AgentError, PrivilegeError
from nvc.base.log import Log
from nvc.bindings.uvm import OFF
from nvc.doctor import runner, table
from nvc.doctor.finding import Finding
from nvc.doctor.probe import AgentSeen, Probe
from nvc.inject.api import Config, Context
from nvc.model import Host, Inventory
from nvc.share import preload
from nvc.sim.create import create

MOUNTINFO_V2 = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n27 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
CHECKS = {check.name: check for check in table.CHECKS}


class Tree:
    """root: the machine's directory. inventory: asked of its NVML, or what a test puts here."""

    def __init__(self, root: str, machine: str) -> None:
        create(root, machine)
        self.root = Path(root)
        self.host = Host(root=root, system=root)
        self.calls = {"openat2": "", "memfd": ""}
        self.uid = 0
        self.libraries = ""
        self.own = ""
        self.agent: Callable[[], AgentSeen | None] = lambda: None
        self.version = ""
        self.filters: Callable[[str], None] = lambda path: None
        self.pageable: Callable[[Host], str] = lambda host: OFF
        self.ask: Callable[[], Inventory] = self._ask
        self.write("proc/self/mountinfo", MOUNTINFO_V2)

    def path(self, name: str) -> Path:
        """Links of the machine are absolute, and meant below its root."""
        return self.root / name.lstrip("/").replace("var/run/", "run/", 1)

    def write(self, name: str, text: str | bytes, mode: int = 0o644) -> Tree:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return self

    def json(self, name: str, value: object) -> Tree:
        return self.write(name, json.dumps(value))

    def program(self, *names: str) -> Tree:
        for name in names:
            self.write(f"usr/bin/{name}", "#!/bin/sh\n", 0o755)
        return self

    def directory(self, name: str, mode: int = 0o755) -> Tree:
        self.path(name).mkdir(parents=True, exist_ok=True)
        self.path(name).chmod(mode)
        return self

    def remove(self, *names: str) -> Tree:
        for name in names:
            self.path(name).unlink()
        return self

    def node(self, name: str, major: int, minor: int, mode: int = 0o666) -> Tree:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR, os.makedev(major, minor))
        path.chmod(mode)
        return self

    def replace(self, name: str, old: str, new: str) -> Tree:
        text = self.path(name).read_text()
        assert old in text
        return self.write(name, text.replace(old, new))

    def systemd(self) -> Tree:
        return self.directory("run/systemd/system")

    def spec(self, name: str = "run/cdi/nvidia.json", **changes: object) -> Tree:
        """A CDI spec that is true, and what a test makes of it: keys of its only device's containerEdits."""
        edits: dict[str, object] = {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "mounts": [{"hostPath": self.library, "containerPath": self.library}],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-smi", "env": ["PATH=/bin"]}],
        }
        kind, device = changes.pop("kind", "nvidia.com/gpu"), changes.pop("device", "0")
        edits |= changes
        content = {"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": device, "containerEdits": edits}]}
        return self.json(name, content)

    @property
    def library(self) -> str:
        found = next(self.root.glob("usr/lib/*-linux-gnu/libcuda.so.[0-9][0-9]*"))
        return f"/{found.relative_to(self.root)}"

    def preloads(self, *missing: str) -> Tree:
        """The directory of preloaded libraries, as installed."""
        self.libraries = str(self.root / "preload")
        words, narrow = preload.PLATFORMS[os.uname().machine]
        for word in (os.uname().machine, *words, *narrow):
            for name in preload.LIBRARIES:
                if f"{word}/{name}" not in missing:
                    self.write(f"preload/{word}/{name}", "ELF")
        return self

    def guarded(self, *builds: str) -> Tree:
        """Containers c0, c1, ... by the version of their supervisors."""
        guards = {f"c{number}": build for number, build in enumerate(builds)}
        self.agent = lambda: AgentSeen(__version__, guards)
        return self

    def says(self, version: str) -> Tree:
        """What programs of the host say of their version."""
        self.version = version
        return self

    def agent_of(self, version: str) -> Tree:
        """An agent of this version, without containers."""
        self.agent = lambda: AgentSeen(version, {})
        return self

    def hung_agent(self) -> Tree:
        def ask() -> AgentSeen:
            raise AgentError("it hangs")

        self.agent = ask
        return self

    def closed_agent(self) -> Tree:
        def ask() -> AgentSeen:
            raise PrivilegeError("the socket is root's")

        self.agent = ask
        return self

    def probe(self) -> Probe:
        return Probe(
            self.host,
            kernel=str(self.root),
            ask=self.ask,
            kernel_calls=lambda: self.calls,
            ask_filters=self.filters,
            ask_pageable=self.pageable,
            uid=self.uid,
            own=self.own,
            libraries=self.libraries,
            ask_agent=lambda: self.agent(),
            ask_version=lambda path: self.version,
        )

    def examine(self, name: str) -> list[Finding]:
        return runner.examine(CHECKS[name], self.probe())

    def _ask(self) -> Inventory:
        with Context(Config(sim=str(self.root), cache=False), log=Log.none()) as context:
            return context.inventory()
