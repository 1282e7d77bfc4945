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
from nvc.guard.channel import START
from nvc.guard.supervisors import Supervisors
from nvc.share import limits as limits_file
from nvc.share import store
from nvc.share.entry import StoredShare
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from tests.support import leftovers, registered
from tests.support.native import build

GPU = ResolvedGpu("GPU-11111111-2222-3333-4444-555555555555", 0, 1 << 30)
KEY = "c1"


async def look(tenants: Tenants, supervisors: Supervisors) -> None:
    """As an agent, four times a second."""
    tenants.end_lost(supervisors.lost())
    await tenants.look(supervisors.publications.reader().take())
    await tenants.ended()


class AdmittedContainers:
    """A registered container with a share; its first process sleeps. A context manager; it ends what it started."""

    #: The agent's setting.
    graphics = False

    def __init__(self, path: Path, group: str = "") -> None:
        """path: an empty directory; its directory "agent" may be there, on another file system. group: of the share."""
        build("nvc-monitor", "nvc-supervisor")
        self.path, self.directory, self.shares = path, str(path / "agent"), str(path / "share")
        prepare(self.directory)
        self.told: list[dict[str, object]] = []
        self._journal = Journal(-1)
        self._journal.listen(self.told.append)
        self.containers: list[subprocess.Popen[bytes]] = []
        self.limits = Limits((GPU,), (), "580.105.08", KEY)
        self._monitors: list[subprocess.Popen[bytes]] = []
        self.agent()
        self.process = self.another(KEY, group, self.limits)
        self.container = self.containers[0]

    def another(self, key: str, group: str, limits: Limits) -> ContainerProcess:
        """One more registered container, as its runtime's message says it."""
        made = subprocess.Popen(["sleep", "infinity"])
        self.containers.append(made)
        record = StoredShare(key, key, made.pid, store.start_time(made.pid), group=group, name=f"default/{key}/main")
        store.create(record, limits, b"", directory=self.shares)
        registered.register(self.tenants.registrations, key, made.pid)
        return ContainerProcess(key, made.pid, made.pid, "creating", "")

    def agent(self) -> Tenants:
        """What another agent has; the one before let go of its tenants."""
        if hasattr(self, "supervisors"):
            self.supervisors.close()
        self.supervisors = Supervisors(str(self.path), self.directory)
        self.tenants = Tenants(
            self.supervisors, self._journal, self.directory, self.shares, [], graphics=lambda: self.graphics
        )
        return self.tenants

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for tenant in self.tenants:
            self.supervisors.remove(tenant.number)
        self.supervisors.close()
        for one in self._monitors:
            one.wait(20)
        for container in self.containers:
            container.kill()
            container.wait()

    def events(self) -> list[object]:
        return [one["event"] for one in self.told]

    def admit(self, listener: int, process: ContainerProcess | None = None, **changes: object) -> bool:
        """As an acceptor: whether it is a new tenant's. listener: ours; its copy is the agent's."""
        connection, monitor = self.supervisors._spawn()
        said = (process or self.process).replace(**changes)
        taken = asyncio.run(self.tenants.admit(said, os.dup(listener), connection)) == START
        if taken:
            self._monitors.append(monitor)
            # An acceptor has it already.
            self.supervisors.listen(max(one.number for one in self.tenants), listener)
        else:
            connection.close()
            monitor.wait(20)
        return taken

    def admit_several(self, count: int) -> list[int]:
        """Other containers, c2 and so on; both ends of their listeners, the caller's."""
        ends = [os.pipe() for _ in range(count)]
        for number, (listener, _) in enumerate(ends, 2):
            assert self.admit(listener, self.another(f"c{number}", "", self.limits.replace(container=f"c{number}")))
        return [one for pair in ends for one in pair]

    def admit_together(self, *arriving: tuple[int, ContainerProcess]) -> list[int]:
        """What an acceptor gets for each (listener, process) that comes at the same moment."""
        spawned = [self.supervisors._spawn() for _ in arriving]

        async def admit() -> list[int]:
            found = zip(arriving, spawned, strict=True)
            return await asyncio.gather(
                *(self.tenants.admit(said, os.dup(listener), made[0]) for (listener, said), made in found)
            )

        answers = asyncio.run(admit())
        for answer, (connection, monitor) in zip(answers, spawned, strict=True):
            if answer == START:
                self._monitors.append(monitor)
            else:
                connection.close()
                monitor.wait(20)
        return answers

    def set(self, **fields: object) -> None:
        """Change the share in its limits file."""
        self.limits = self.limits.replace(gpus=(GPU.replace(**fields),))
        descriptor = os.open(f"{self.shares}/{KEY}/{store.LIMITS}", os.O_RDWR)
        limits_file.write(descriptor, self.limits)
        os.close(descriptor)

    def are_gone(self) -> bool:
        """Whether the agent has no tenant in time."""

        def looked() -> bool:
            asyncio.run(look(self.tenants, self.supervisors))
            return not len(self.tenants)

        return leftovers.until(looked, seconds=30)
