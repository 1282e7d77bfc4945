"""The agent's part that writes down what tenants used of each GPU: computed time, energy, memory; for ``share usage``.

USAGE beside the agent's directory has a line of JSON for each tenant, GPU and interval: of INTERVAL seconds, up to the
tenant's or the agent's end, or up to the moment of a request. An agent that is killed loses the interval that has
begun. GPUs' counters of energy are read with each look and when a tenant ends: its last line waits for that reading.
The file before the present one is kept as USAGE.1; each is ended at LIMIT bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time

from nvc.agent.energy import DividedEnergy
from nvc.agent.part import Part
from nvc.base.errors import AgentError, NvcError, reason
from nvc.base.record import Record
from nvc.share.protocol import DIRECTORY
from rpc.codec import CodecError, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from nvc.agent.agent import Agent
    from nvc.agent.control import Handler
    from nvc.agent.energy_counters import EnergyCounters
    from nvc.agent.peer import Peer
    from nvc.agent.state.records import Suspension
    from nvc.agent.tenant import Tenant

USAGE, LIMIT = "usage.jsonl", 64 << 20
#: Seconds between two looks at what tenants have, and of an interval.
_LOOK_S, INTERVAL_S = 5.0, 600.0
#: Between two readings of energy; until it is tried again where it cannot be read, or no GPU counts it; that the agent,
#: or a client, waits for one; without a tenant until nothing is ready to read it any more.
_READ_S, _RETRY_S, _WAIT_S, _UNUSED_S = 0.5, 60.0, 2.0, 10.0
_LINE = 4096


class Used(Record):
    """What a tenant used of a GPU from ``begin`` to ``end`` (seconds since 1970).

    computed: seconds, by the driver's samples. byte_seconds: of memory that was charged. peak: bytes, as looked at
    every few seconds. energy: joules; None: not known. container, name: as in ``nvc.agent.status.StatusTenant``.
    """

    begin: float
    end: float
    container: str
    name: str
    gpu: str
    computed: float
    byte_seconds: float
    peak: int
    energy: float | None = None


class _Running:
    """Of one tenant and GPU, since the interval began."""

    def __init__(self, now: float, memory: int, computed_ns: int) -> None:
        self.begin = self.at = now
        self.memory = self.peak = memory
        self.computed_ns = self.computed_before = computed_ns
        self.byte_seconds = self.energy_before = 0.0
        #: Whether the driver's samples ever said what it computed.
        self.is_measured = False

    def add(self, now: float, memory: int, computed_ns: int) -> None:
        """What it had since the last time, and has now."""
        self.byte_seconds += self.memory * max(0.0, now - self.at)
        self.at, self.memory, self.peak = now, memory, max(self.peak, memory)
        self.computed_ns = computed_ns

    def ended(self, tenant: Tenant, gpu: str, energy: float | None) -> Used:
        """The interval's line; another one begins. energy: joules in all; None: not known."""
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
            None if energy is None else round(energy - self.energy_before, 3),
        )
        self.energy_before = energy or 0.0
        self.begin, self.peak = self.at, self.memory
        self.computed_before, self.byte_seconds = self.computed_ns, 0.0
        return found


class Accounting(Part):
    """Without room on the disk it goes on, and says so once."""

    _agent: Agent
    _problem = ""

    def __init__(self, counters: EnergyCounters | None = None) -> None:
        """counters: None: energy is not read."""
        self._counters = counters
        self._divided: dict[str, DividedEnergy] = {}
        #: When the counters were read, or tried, last; when there was a tenant; whether one ended since; the reading
        #: under way.
        self._read_at = self._used_at = float("-inf")
        self._retry_at = 0.0
        self._is_due = False
        self._reading: asyncio.Task[None] | None = None
        self._energy_problem = ""
        #: Tenants that are over, whose last lines wait for a reading.
        self._over: list[Tenant] = []
        self._running: dict[tuple[int, str], _Running] = {}
        self._stamps: dict[int, tuple[int, int, int]] = {}
        self._looked = self._written = float("-inf")
        #: Number -> how it was suspended at the last look.
        self._suspended: dict[int, Suspension | None] = {}
        #: Lines of tenants that are over, and what writes them.
        self._waiting: list[Used] = []
        self._writing: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()

    async def start(self, agent: Agent) -> None:
        self._agent = agent
        self._written = time.monotonic()
        for tenant in agent.tenants:
            self._add(tenant)

    def handlers(self) -> Mapping[str, Handler]:
        return {"usage": self._usage}

    async def _usage(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        """Write down what was used up to now. Raises AgentError."""
        await self._settle()
        self._waiting += self._lines(list(self._agent.tenants))
        await self._write()
        if self._problem:
            raise AgentError(self._problem, hint="make room there")
        return {}

    def added(self, tenant: Tenant) -> None:
        now = time.time()
        for gpu in tenant.limits.gpus:
            self._running[tenant.number, gpu.uuid] = _Running(now, 0, 0)

    def gone(self, tenant: Tenant) -> None:
        self._add(tenant, is_over=True)
        self._stamps.pop(tenant.number, None)
        self._suspended.pop(tenant.number, None)
        self._over.append(tenant)
        self._is_due = True
        if self._counters is None or time.monotonic() < self._retry_at:
            self._end_over()

    def energy(self, tenant: Tenant, uuid: str) -> float | None:
        divided, running = self._divided.get(uuid), self._running.get((tenant.number, uuid))
        is_known = divided is not None and divided.is_known and running is not None and running.is_measured
        return divided.energy(tenant.number) if divided is not None and is_known else None

    def gpu_energy(self, uuid: str) -> float | None:
        divided = self._divided.get(uuid)
        return divided.total if divided is not None and divided.is_known else None

    def look(self) -> None:
        now = time.monotonic()
        self._look_at_energy(now)
        self._look_at_suspended()
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

    def _look_at_suspended(self) -> None:
        """All of a tenant's memory goes, or comes back: that does not wait for the look at all of them."""
        for tenant in self._agent.tenants:
            suspended = tenant.record.suspended
            if suspended is not self._suspended.get(tenant.number) or (suspended and suspended.is_changing):
                self._suspended[tenant.number] = suspended
                self._add(tenant)

    async def stop(self) -> None:
        await self._settle()
        self._end_over()
        self._waiting += self._lines(list(self._agent.tenants))
        await self._write()
        if self._counters is not None:
            await self._counters.end()

    def _lines(self, tenants: list[Tenant], *, is_over: bool = False) -> list[Used]:
        """is_over: what they had was added at their end."""
        found = []
        for tenant in tenants:
            if not is_over:
                self._add(tenant)
            for gpu in tenant.limits.gpus:
                running = self._running.get((tenant.number, gpu.uuid))
                if running is not None and running.at > running.begin:
                    found.append(running.ended(tenant, gpu.uuid, self.energy(tenant, gpu.uuid)))
        return found

    def _end_over(self) -> None:
        """Of tenants that are over: their last lines."""
        over, self._over = self._over, []
        self._waiting += self._lines(over, is_over=True)
        for tenant in over:
            for gpu in tenant.limits.gpus:
                self._running.pop((tenant.number, gpu.uuid), None)
                if gpu.uuid in self._divided:
                    self._divided[gpu.uuid].forget(tenant.number)

    def _look_at_energy(self, now: float) -> None:
        if self._running:
            self._used_at = now
        if self._counters is None or (self._reading is not None and not self._reading.done()):
            return
        if not self._running and self._read_at > float("-inf") and now - self._used_at > _UNUSED_S:
            self._read_at = float("-inf")
            for divided in self._divided.values():
                divided.rest()
            self._reading = asyncio.ensure_future(self._counters.end())
            return
        is_time = now >= self._retry_at and now - self._read_at > (_READ_S if self._is_due else _LOOK_S)
        if self._running and is_time:
            self._read_at, self._is_due = now, False
            self._reading = asyncio.ensure_future(self._read(self._counters))

    async def _read(self, counters: EnergyCounters) -> None:
        """Raises nothing; where it fails, intervals go on until the next reading."""
        try:
            found = await counters.read()
            self._retry_at, self._energy_problem = 0.0, ""
            if not found:
                self._retry_at = time.monotonic() + _RETRY_S
                await counters.end()
        except NvcError as error:
            found, self._retry_at = {}, time.monotonic() + _RETRY_S
            if str(error) != self._energy_problem:
                self._energy_problem = str(error)
                self._agent.journal.write("warning", message=str(error), hint=error.hint)
        for tenant in self._agent.tenants:
            self._add(tenant)
        computed: dict[str, dict[int, int]] = {uuid: {} for uuid in found}
        for (number, uuid), running in self._running.items():
            if uuid in computed:
                computed[uuid][number] = running.computed_ns
        for uuid, counter in found.items():
            self._divided.setdefault(uuid, DividedEnergy()).update(time.monotonic(), counter, computed[uuid])
        self._end_over()

    async def _settle(self) -> None:
        """Read now, if there is something to read; no longer than _WAIT_S."""
        if self._counters is not None and self._running and time.monotonic() >= self._retry_at:
            if self._reading is None or self._reading.done():
                self._read_at, self._is_due = time.monotonic(), False
                self._reading = asyncio.ensure_future(self._read(self._counters))
            await asyncio.wait([self._reading], timeout=_WAIT_S)

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
            part, computed = self._agent.computed(tenant, gpu.uuid)
            if running is None:
                held = memory[index] if index < len(memory) else 0
                running = self._running[tenant.number, gpu.uuid] = _Running(now, held, computed)
            else:
                running.add(now, memory[index] if index < len(memory) else running.memory, computed)
            running.is_measured |= part is not None or computed > 0

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
                        energy=used.energy * part if used.energy is not None else None,
                    )
