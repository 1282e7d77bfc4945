"""The agent's part that writes down what tenants used: computed time and memory of each GPU, for ``share usage``.

USAGE beside the agent's directory has a line of JSON for each tenant, GPU and interval: of INTERVAL seconds, up to the
tenant's or the agent's end, or up to the moment when somebody asks. An agent that is killed loses the interval that has
begun. The file before the present one is kept as USAGE.1; each is ended at LIMIT bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time

from nvc.agent.part import Part
from nvc.base.errors import AgentError, reason
from nvc.base.record import Record
from nvc.guard.protocol import DIRECTORY
from rpc.codec import CodecError, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from nvc.agent.agent import Agent
    from nvc.agent.control import Handler
    from nvc.agent.peer import Peer
    from nvc.agent.tenant import Tenant

USAGE, LIMIT = "usage.jsonl", 64 << 20
#: Seconds between two looks at what tenants have, and of an interval.
_LOOK_S, INTERVAL_S = 5.0, 600.0
_LINE = 4096


class Used(Record):
    """What a tenant used of a GPU from ``begin`` to ``end`` (seconds since 1970).

    computed: seconds, by the driver's samples. byte_seconds: of memory that was charged. peak: bytes, as looked at
    every few seconds. container, name: as in ``nvc.agent.status.StatusTenant``.
    """

    begin: float
    end: float
    container: str
    name: str
    gpu: str
    computed: float
    byte_seconds: float
    peak: int


class _Running:
    """Of one tenant and GPU, since the interval began."""

    def __init__(self, now: float, memory: int, computed_ns: int) -> None:
        self.begin = self.at = now
        self.memory = self.peak = memory
        self.computed_ns = self.computed_before = computed_ns
        self.byte_seconds = 0.0

    def add(self, now: float, memory: int, computed_ns: int) -> None:
        """What it had since the last time, and has now."""
        self.byte_seconds += self.memory * max(0.0, now - self.at)
        self.at, self.memory, self.peak = now, memory, max(self.peak, memory)
        self.computed_ns = computed_ns

    def ended(self, tenant: Tenant, gpu: str) -> Used:
        """The interval's line; another one begins."""
        computed = max(0, self.computed_ns - self.computed_before) / 1e9
        found = Used(
            round(self.begin, 3),
            round(self.at, 3),
            tenant.name,
            tenant.record.engine_name,
            gpu,
            round(computed, 3),
            round(self.byte_seconds),
            self.peak,
        )
        self.begin, self.peak = self.at, self.memory
        self.computed_before, self.byte_seconds = self.computed_ns, 0.0
        return found


class Accounting(Part):
    """Without room on the disk it goes on, and says so once."""

    _agent: Agent
    _problem = ""

    def __init__(self) -> None:
        self._running: dict[tuple[int, str], _Running] = {}
        self._stamps: dict[int, tuple[int, int, int]] = {}
        self._looked = self._written = float("-inf")
        #: Lines of tenants that are over, and what writes them.
        self._waiting: list[Used] = []
        self._writing: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()

    async def start(self, agent: Agent) -> None:
        self._agent = agent
        self._written = time.monotonic()
        for tenant in agent.tenants:
            self.added(tenant)

    def handlers(self) -> Mapping[str, Handler]:
        return {"usage": self._usage}

    async def _usage(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        """Write down what was used up to now. Raises AgentError."""
        self._waiting += self._lines(list(self._agent.tenants))
        await self._write()
        if self._problem:
            raise AgentError(self._problem, hint="make room there")
        return {}

    def added(self, tenant: Tenant) -> None:
        self._add(tenant)

    def gone(self, tenant: Tenant) -> None:
        self._waiting += self._lines([tenant], is_over=True)
        self._stamps.pop(tenant.number, None)
        for gpu in tenant.limits.gpus:
            self._running.pop((tenant.number, gpu.uuid), None)

    def look(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        for tenant in self._agent.tenants:
            self._add(tenant)
        if now - self._written > INTERVAL_S:
            self._written = now
            self._waiting += self._lines(list(self._agent.tenants))
        if self._waiting and (self._writing is None or self._writing.done()):
            self._writing = asyncio.ensure_future(self._write())

    async def stop(self) -> None:
        self._waiting += self._lines(list(self._agent.tenants))
        await self._write()

    def _lines(self, tenants: list[Tenant], *, is_over: bool = False) -> list[Used]:
        """is_over: the supervisors know the tenant no more."""
        found = []
        for tenant in tenants:
            self._add(tenant, is_over=is_over)
            for gpu in tenant.limits.gpus:
                running = self._running.get((tenant.number, gpu.uuid))
                if running is not None and running.at > running.begin:
                    found.append(running.ended(tenant, gpu.uuid))
        return found

    def _add(self, tenant: Tenant, *, is_over: bool = False) -> None:
        now = time.time()
        memory: list[int] = []
        with contextlib.suppress(OSError):
            stamp = self._agent.supervisors.stamp(tenant.number) if not is_over else None
            if stamp is not None and stamp != self._stamps.get(tenant.number):
                self._stamps[tenant.number] = stamp
                memory = [gpu.memory for gpu in self._agent.supervisors.status(tenant.number).gpus]
        for index, gpu in enumerate(tenant.limits.gpus):
            running = self._running.get((tenant.number, gpu.uuid))
            computed = self._agent.computed(tenant, gpu.uuid)[1]
            if running is None:
                held = memory[index] if index < len(memory) else 0
                self._running[tenant.number, gpu.uuid] = _Running(now, held, computed)
            else:
                running.add(now, memory[index] if index < len(memory) else running.memory, computed)

    async def _write(self) -> None:
        """What waits, in a thread: a disk may be slow. Raises nothing; what cannot be written is lost, and said."""
        async with self._one:  # the file is ended and begun anew by one at a time
            lines, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(append, self._agent.options.directory, lines)
                self._problem = ""
            except OSError as error:
                if not self._problem:
                    self._problem = f"{path(self._agent.options.directory)}: {reason(error)}"
                    self._agent.journal.write("warning", message=f"usage is not written down: {self._problem}")


def path(directory: str) -> str:
    """The file of an agent's directory; that of the node's agent outlives a reboot."""
    return f"/var/lib/nvc/{USAGE}" if directory == DIRECTORY else f"{directory}/{USAGE}"


def append(directory: str, lines: list[Used]) -> None:
    """Raises OSError."""
    if not lines:
        return
    name = path(directory)
    os.makedirs(os.path.dirname(name), mode=0o755, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if os.stat(name).st_size > LIMIT:
            os.replace(name, f"{name}.1")
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        data = b"".join(dumps(line.as_data()) + b"\n" for line in lines)
        if os.write(descriptor, data) != len(data):
            os.write(descriptor, b"\n")  # the next line is whole again
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def read(directory: str, since: float, until: float) -> Iterator[Used]:
    """What was used between two moments; of an interval that they cut, the part. What cannot be read is left out.

    Raises PermissionError.
    """
    for name in (f"{path(directory)}.1", path(directory)):
        with contextlib.suppress(FileNotFoundError), open(name, "rb") as file:
            for line in file:
                with contextlib.suppress(CodecError, ValueError):
                    used = Used.from_data(loads(line, limit=_LINE))
                    begin, end = max(used.begin, since), min(used.end, until)
                    if end <= begin:
                        continue
                    part = (end - begin) / (used.end - used.begin)
                    yield used.replace(
                        begin=begin,
                        end=end,
                        computed=used.computed * part,
                        byte_seconds=used.byte_seconds * part,
                    )
