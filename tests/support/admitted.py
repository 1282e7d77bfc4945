"""Containers of an agent's tenants without an agent: monitors and supervisors are real, listeners are pipes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Self

from nvc.agent.container_state import ContainerProcess
from nvc.agent.journal import Journal
from nvc.agent.state.records import prepare
from nvc.agent.tenants import Tenants
from nvc.guard.supervisors import START, Supervisors
from nvc.share import limits as limits_file
from nvc.share import store
from nvc.share.entry import StoredShare
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from tests.support import leftovers, registered
from tests.support.native import build

GPU = ResolvedGpu("GPU-11111111-2222-3333-4444-555555555555", 0, 1 << 30)
KEY = "c1"


class AdmittedContainers:
    """One registered container with a share, whose first process sleeps. A context manager; it ends what it started."""

    def __init__(self, path: Path) -> None:
        """path: an empty directory; its directory "agent" may be there, on another file system."""
        build("nvc-monitor", "nvc-supervisor")
        self.path, self.directory, self.shares = path, str(path / "agent"), str(path / "share")
        prepare(self.directory)
        self.told: list[dict[str, object]] = []
        self._journal = Journal(-1)
        self._journal.listen(self.told.append)
        self.container = subprocess.Popen(["sleep", "infinity"])
        self.limits = Limits((GPU,), (), "580.105.08", KEY)
        pid = self.container.pid
        store.create(StoredShare(KEY, KEY, pid, store.start_time(pid)), self.limits, b"", directory=self.shares)
        self.process = ContainerProcess(KEY, pid, pid, "creating", "nvc", "", 0)
        self._monitors: list[subprocess.Popen[bytes]] = []
        self.agent()
        registered.register(self.tenants.registrations, KEY, pid)

    def agent(self) -> Tenants:
        """What another agent has; the one before let go of its tenants."""
        if hasattr(self, "supervisors"):
            self.supervisors.close()
        self.supervisors = Supervisors(str(self.path), self.directory)
        self.tenants = Tenants(self.supervisors, self._journal, self.directory, self.shares, [])
        return self.tenants

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for tenant in self.tenants:
            self.supervisors.remove(tenant.number)
        self.supervisors.close()
        for one in self._monitors:
            one.wait(20)
        self.container.kill()
        self.container.wait()

    def events(self) -> list[object]:
        return [one["event"] for one in self.told]

    def admit(self, listener: int, **changes: object) -> bool:
        """As an acceptor: whether it is a new container's. listener: ours; its copy is the agent's."""
        connection, monitor = self.supervisors._spawn()
        taken = asyncio.run(self.tenants.admit(self.process.replace(**changes), os.dup(listener), connection)) == START
        if taken:
            self._monitors.append(monitor)
            # An acceptor has it already.
            self.supervisors.listen(max(one.number for one in self.tenants), listener)
        else:
            connection.close()
            monitor.wait(20)
        return taken

    def set(self, **fields: object) -> None:
        """Change the share in its limits file."""
        self.limits = self.limits.replace(gpus=(GPU.replace(**fields),))
        descriptor = os.open(f"{self.shares}/{KEY}/{store.LIMITS}", os.O_RDWR)
        limits_file.write(descriptor, self.limits)
        os.close(descriptor)

    def are_gone(self) -> bool:
        """Whether the agent has no tenant in time."""

        def looked() -> bool:
            self.tenants.look()
            return not len(self.tenants)

        return leftovers.until(looked, seconds=30)
