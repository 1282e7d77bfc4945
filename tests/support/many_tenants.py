"""An agent with very many tenants, without their processes: what supervisors publish is one file, read as ever."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

from nvc.agent import report
from nvc.agent.agent import Agent, AgentOptions
from nvc.agent.control import ControlSocket
from nvc.agent.journal import Journal
from nvc.agent.metrics import server as metrics_server
from nvc.agent.state.records import TenantRecord
from nvc.agent.tenant import Tenant
from nvc.agent.tenants import Tenants
from nvc.agent.verbs import Verbs
from nvc.base.errors import AgentError
from nvc.guard import pages
from nvc.guard.pages import Counters, TenantStatus
from nvc.model import DeviceNode, Gpu
from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu

GIB = 1 << 30
UUIDS = tuple(f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in range(8))


class Published:
    """In the place of the tenants' supervisors."""

    def __init__(self, gpus: int, processes: int) -> None:
        head = pages._CountersFile(magic=pages.COUNTERS_MAGIC, version=pages.VERSION)
        said = head.counters[0]
        for gpu in range(gpus):
            said.status.memory[gpu] = said.status.driver_usage[gpu] = 10 * GIB + gpu
            said.status.frozen_ns[gpu] = 123_456_789_012
        said.status.reasons[1] = 7
        said.process_count = processes
        for index in range(processes):
            said.processes[index].pid = 100_000 + index
            for gpu in range(gpus):
                said.processes[index].memory[gpu] = 10 * GIB
        self.file = os.memfd_create("counters")
        os.write(self.file, bytes(head))
        self._counters = Counters(self.file, gpus)
        self._at = pages._CountersFile.counters.offset + pages._Counters.published_ns.offset
        #: Numbers of tenants that ended.
        self.ended: set[int] = set()

    def publish(self) -> None:
        """The same again."""
        os.pwrite(self.file, time.monotonic_ns().to_bytes(8, "little"), self._at)

    def freeze(self) -> None:
        """From now on, on the first GPU, on which it has a compute group."""
        status = pages._CountersFile.counters.offset + pages._Counters.status.offset
        for field in (pages._Status.frozen, pages._Status.groups):
            os.pwrite(self.file, (1).to_bytes(4, "little"), status + field.offset)
        self.publish()

    def stamp(self, number: int) -> tuple[int, int, int]:
        if number in self.ended:
            raise OSError("it has ended")
        return self._counters.stamp()

    def published(self, number: int) -> tuple[TenantStatus, tuple[tuple[int, tuple[int, ...]], ...]]:
        if number in self.ended:
            raise OSError("it has ended")
        return self._counters.published()

    def build(self, number: int) -> str:
        return self._counters.build


def make(place: Path, count: int, gpus: int = 1, processes: int = 2) -> Agent:
    """The agent with so many tenants of so many GPUs each. place: an empty directory."""
    (place / "none.toml").touch()
    inventory = [
        Gpu(index, index, "H100", "", uuid, "", "", DeviceNode("", 195, index), "", memory=80 * GIB)
        for index, uuid in enumerate(UUIDS)
    ]
    agent = Agent(
        AgentOptions(str(place), str(place / "shares"), config=str(place / "none.toml")), Journal(-1), inventory
    )
    published: Any = Published(gpus, processes)
    agent.supervisors = published
    os.makedirs(place / "registrations", exist_ok=True)
    agent.tenants = Tenants(published, agent.journal, str(place), str(place / "shares"), [])
    limits = Limits(tuple(ResolvedGpu(uuid, -1, 10 * GIB, 0, 10) for uuid in UUIDS[:gpus]))
    for number in range(1, count + 1):
        name = f"{number:064x}"
        record = TenantRecord(number, name, name, 1, 1, 1_766_275_200.123, f"namespace/pod-{number:06}/main")
        agent.tenants._added(Tenant(record, limits))
    return agent


@contextmanager
def serving(agent: Agent, path: Path, *, metrics: str = "", changes: bool = False) -> Iterator[str]:
    """The control socket with the verbs of the agent, in a thread; its path.

    metrics: their address too. changes: supervisors publish every 20 ms.
    """
    server = socket(AF_UNIX)
    server.bind(str(path))
    server.listen(64)
    loop = asyncio.new_event_loop()

    async def publish() -> None:
        published: Any = agent.supervisors
        while changes:
            published.publish()
            await asyncio.sleep(0.02)

    async def run() -> None:
        control = ControlSocket(server, Verbs(agent).handlers(), agent.journal, lambda: -1)
        tasks = [asyncio.ensure_future(one) for one in (control.serve(), publish())]
        if metrics:
            await metrics_server.serve(metrics, lambda: report.whole(agent))
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    main = loop.create_task(run())
    thread = threading.Thread(target=lambda: loop.run_until_complete(main))
    thread.start()
    try:
        yield str(path)
    finally:
        loop.call_soon_threadsafe(main.cancel)
        thread.join(20)
        if thread.is_alive():
            raise AgentError("the control socket does not end")
        loop.close()


def fill(shares: Path, count: int, gpus: int = 1) -> None:
    """The store's entries of ``make``'s tenants; their containers' first process is this one."""
    pid = os.getpid()
    limits = Limits(tuple(ResolvedGpu(uuid, -1, 10 * GIB, 0, 10) for uuid in UUIDS[:gpus]))
    for number in range(1, count + 1):
        name = f"{number:064x}"
        engine = f"namespace/pod-{number:06}/main"
        record = store.StoredShare(name, name, pid, store.start_time(pid), name=engine)
        store.create(record, limits, b"", directory=str(shares))
