"""The test bed: everything a test (or the demonstration) needs to start real containers, in one directory.

All of it carries one token: directory, container names, cgroups, the environment of every process. ``close`` removes it
and names what a test left on the machine.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nvc.sim import create
from tests.support import bundle, cgroupview, launchers, leftovers, rootfs, runtimes
from tests.support.bundle import Container, Hook
from tests.support.runtimes import OciRuntime, Result

#: Every pair of runtime and cgroup view that can work; crun refuses hybrid machines.
PAIRS = (("runc", "hybrid"), ("runc", "v1"), ("runc", "v2"), ("crun", "v1"), ("crun", "v2"))


class Unavailable(Exception):
    """This machine lacks what a test needs; the text says what."""


class Bed:
    """One directory with a root file system to copy, the product's commands and simulated machines."""

    def __init__(self) -> None:
        self.token = f"nvct{secrets.token_hex(4)}"
        self.place = Path(tempfile.gettempdir(), self.token)
        self.place.mkdir()
        # A remapped container's root must be able to come through, whatever the umask is.
        self.place.chmod(0o755)
        self.commands = launchers.install(self.place / "product")
        self._machines: dict[str, Path] = {}
        self._preload: Path | None = None
        self._numbers = itertools.count(1)
        #: The root file system that copies are made of; it is not written to.
        self.base = rootfs.build(self.place / "base")

    @property
    def env(self) -> dict[str, str]:
        """The variable that marks a process as ours."""
        return {leftovers.VARIABLE: self.token}

    def name(self, kind: str) -> str:
        """A new name, for a container, a cgroup or a directory."""
        return f"{self.token}-{kind}{next(self._numbers)}"

    def directory(self, kind: str) -> Path:
        """A new, empty, world-searchable directory."""
        # Short: podman's socket below it has 107 bytes, and waits 20 s when they are not enough.
        path = self.place / f"{kind}{next(self._numbers)}"
        path.mkdir()
        path.chmod(0o755)
        return path

    def rootfs(self, *, owner: int = 0) -> Path:
        """A root file system of its own; owner: host id of its root."""
        target = rootfs.copy(self.base, self.directory("rootfs"))
        if owner:
            rootfs.shift_owner(target, owner)
        return target

    def machine(self, name: str) -> Path:
        """The simulated machine of that name; made once, read by all."""
        if name not in self._machines:
            self._machines[name] = self._make_machine(name)
        return self._machines[name]

    def new_machine(self, name: str, **changes: object) -> str:
        """Another machine of that kind, whose inventory was not read; returns the name for ``machine``.

        changes: to its description (docs/user/simulated-machine.md).
        """
        made = self._make_machine(name, **changes)
        self._machines[made.name] = made
        return made.name

    def _make_machine(self, name: str, **changes: object) -> Path:
        target = self.place / self.name(f"machine-{name}-")
        kind = name
        if changes:
            kind = str(self.directory("description") / f"{name}.json")
            known = json.loads((Path(create.__file__).parent / f"machines/{name}.json").read_text())
            Path(kind).write_text(json.dumps({**known, **changes}))
        made = self.call(self.commands.nvc, "sim", "create", str(target), "--machine", kind)
        if made.code != 0:
            raise RuntimeError(f"machine {name} cannot be made: {made.err}")
        return target

    def runtime(self, name: str, view: str) -> OciRuntime:
        """A runtime in a cgroup view. Raises Unavailable."""
        seen = cgroupview.named(view)
        if seen is None:
            raise Unavailable(f"this machine cannot show cgroup {view}")
        if not runtimes.find(name):
            raise Unavailable(f"{name} is not installed")
        return OciRuntime(name, seen, self.directory("state"), self.preload(name, view), self.env)

    def preload(self, runtime: str, view: str) -> str:
        """What crun needs where root may not raise limits (see norlim.c), else ""."""
        if runtime != "crun" or view != "v2":
            return ""
        if self._preload is None:
            self._preload = runtimes.build_norlim(self.place)
        return str(self._preload)

    def hook(self, stage: str, *options: str, machine: str = "h200") -> Hook:
        """Our hook at a stage, for a simulated machine (``machine`` "": the real one)."""
        sim = ("--sim", str(self.machine(machine))) if machine else ()
        return Hook(self.commands.hook, ["nvc-hook", *sim, *options, stage], self._hook_env())

    def shell_hook(self, script: str) -> Hook:
        """A hook that is a shell script; $pid is the container's, from the state on its stdin."""
        find = "pid=$(sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p'); "
        return Hook("/bin/sh", ["sh", "-c", find + script], self._hook_env())

    def _hook_env(self) -> list[str]:
        """What runtimes give a hook whose entry says nothing: their own PATH, where drivers' programs may be."""
        path = f"PATH={os.environ['PATH']}" if "PATH" in os.environ else bundle.PATH
        return [path, *(f"{key}={value}" for key, value in self.env.items())]

    def bundle(self, container: Container) -> Path:
        """Write the bundle; a container without a cgroup path gets one with our token."""
        env = [*container.env, *(f"{key}={value}" for key, value in self.env.items())]
        cgroup = container.cgroup or f"/{self.name('cgroup')}"
        return bundle.write(self.directory("bundle"), replace(container, env=env, cgroup=cgroup))

    def run(self, runtime: OciRuntime, container: Container) -> Result:
        """Run a container to its end and delete it."""
        try:
            return runtime.run(self.bundle(container), self.name("c"))
        finally:
            runtime.clean()

    def call(self, *command: str, env: Mapping[str, str] | None = None, check: bool = False) -> Result:
        """Run one of the commands with a plain environment. Raises CalledProcessError with ``check``."""
        plain = {"PATH": os.environ.get("PATH", "/usr/bin:/bin:/usr/sbin:/sbin"), **self.env, **(env or {})}
        result = runtimes.execute(command, env=plain)
        if check and result.code != 0:
            print(result.err)  # the exception does not show it
            raise subprocess.CalledProcessError(result.code, command, result.out, result.err)
        return result

    def close(self) -> list[str]:
        """Remove everything and return what was left on the machine."""
        left = leftovers.everything(self.token)
        if left:
            leftovers.remove(self.token)
        if not leftovers.mounts(self.token):  # never delete through a mount that was left
            # Hundreds of trees: Python alone takes most of a minute for them.
            subprocess.run(["rm", "-rf", "--one-file-system", self.place], check=False, capture_output=True)
        return left


def device_nodes(machine: Path) -> dict[str, tuple[int, int]]:
    """The device nodes of a machine's tree: container path -> numbers, as the file system says."""
    found = {}
    for directory, _, files in os.walk(machine / "dev"):
        for name in files:
            path = Path(directory, name)
            status = path.lstat()
            if stat.S_ISCHR(status.st_mode):
                numbers = (os.major(status.st_rdev), os.minor(status.st_rdev))
                found["/" + str(path.relative_to(machine))] = numbers
    return found


def gpu_env(devices: str, capabilities: str = "compute,utility", *more: str) -> Sequence[str]:
    """The environment with which an image asks for GPUs."""
    return (f"NVIDIA_VISIBLE_DEVICES={devices}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}", *more)
