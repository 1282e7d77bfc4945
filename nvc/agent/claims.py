"""What tenants hold and want of a GPU now, for ``nvc.agent.ranges``: from counters, records and the driver."""

from __future__ import annotations

import contextlib
import time
from collections import deque

from nvc.agent.dividing import Claim
from nvc.agent.state.records import IDLE
from nvc.base.record import Record
from nvc.bindings.reasons import OVER_QUOTA
from nvc.share import admission, store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.agent.agent import Agent
    from nvc.agent.idle import Idleness
    from nvc.agent.tenant import Tenant
    from nvc.guard.usage import GpuUsage
    from nvc.share.entry import StoredShare
    from nvc.share.limits import Limits
    from nvc.share.model import ResolvedGpu

#: A tenant with less than this part of its limit left wants more.
_LITTLE = 16
#: Answers of the driver that count: its number of a GPU's used memory is older than the ledgers.
_ANSWERS = 4
#: The part of a GPU by which a ledger may be below what the driver reports.
_HIDDEN = 64
#: Seconds that a tenant counts as wanting memory after it was refused some; that memory which came back is in no
#: ledger yet; between two looks at containers that the preloaded library holds.
_WANTS_S, _RETURNS_S, _STORE_S = 10.0, 2.0, 2.0


class Sight(Record):
    """A GPU. total: its bytes. least, most: what its tenants can have, by the driver's last answers; claims: theirs."""

    total: int
    least: int
    most: int
    claims: tuple[Claim, ...]


class Claims:
    """Of all GPUs. coming: limits of containers that are about to become tenants, by key. For the agent's thread."""

    def __init__(self, agent: Agent, idleness: Idleness) -> None:
        self._agent, self._idleness = agent, idleness
        self.coming: dict[str, Limits] = {}
        #: Number -> GPUs on which its share moves.
        self._moving: dict[int, list[str]] = {}
        for tenant in agent.tenants:
            self.follow(tenant)
        #: UUID -> (when, bytes in use that are of no tenant), newest last.
        self._outside: dict[str, deque[tuple[int, int]]] = {}
        #: (Number, UUID) -> limits in force, the last one and the one before.
        self._limits: dict[tuple[int, str], tuple[int, int]] = {}
        #: (Number, UUID) -> (when, bytes that the driver reports beyond what its supervisor says), newest last.
        self._hidden: dict[tuple[int, str], deque[tuple[int, int]]] = {}
        #: UUID -> bytes that containers without the guard were promised, and when that was looked at.
        self._library: dict[str, int] = {}
        self._library_at = float("-inf")
        #: Number -> (refusals that were counted, until when it wants memory).
        self._refused: dict[int, tuple[int, float]] = {}
        #: Number -> (bytes a GPU, until when that counts): of suspended tenants that are to come back, and of tenants
        #: that came back and whose ledgers may not say so yet.
        self._back: dict[int, tuple[Sequence[int], float]] = {}
        self._here: dict[int, tuple[Sequence[int], float]] = {}

    def uuids(self) -> list[str]:
        """GPUs on which a share that moves is, or is about to be: a range, or one with ``idle``."""
        every = [*self._moving.values(), *map(_moving, self.coming.values())]
        return list(dict.fromkeys(uuid for one in every for uuid in one))

    def follow(self, tenant: Tenant) -> None:
        """It is new, or its limits are other ones."""
        for one in tenant.members:
            if self.coming.get(one.key) is tenant.limits:  # not those of another container of this name, which waits
                del self.coming[one.key]
        found = _moving(tenant.limits)
        if found:
            self._moving[tenant.number] = found
        else:
            self._moving.pop(tenant.number, None)

    def has_range(self, uuid: str) -> bool:
        """Whether requests on a GPU are guaranteed: admission saw that they fit."""
        every = [*(tenant.limits for tenant in self._agent.tenants), *self.coming.values()]
        return any(gpu.request for limits in every for gpu in limits.gpus if gpu.uuid == uuid)

    def comes_back(self, tenant: Tenant, memory: Sequence[int]) -> None:
        """Its memory is about to come back from the host."""
        self._back[tenant.number] = memory, time.monotonic() + _RETURNS_S

    def stays(self, tenant: Tenant) -> None:
        """It does not come back now."""
        self._back.pop(tenant.number, None)

    def gone(self, tenant: Tenant) -> None:
        self._back.pop(tenant.number, None)
        self._here.pop(tenant.number, None)
        self._moving.pop(tenant.number, None)
        self._refused.pop(tenant.number, None)
        for key in [key for key in (*self._limits, *self._hidden) if key[0] == tenant.number]:
            self._limits.pop(key, None)
            self._hidden.pop(key, None)

    def is_stale(self) -> bool:
        """Whether ``look`` is due, which is for a thread."""
        return time.monotonic() - self._library_at > _STORE_S

    def look(self) -> None:
        """At containers that have a share and no guard: no limit of theirs is moved. Raises NvcError, OSError."""
        keys = {one.key for tenant in self._agent.tenants for one in tenant.members} | self.coming.keys()
        totals = {gpu.uuid: gpu.memory for gpu in self._agent.inventory}
        found: dict[str, int] = {}
        for record, gpus in self._entries():
            if record.key not in keys and record.is_alive():
                for gpu in gpus:
                    size = admission.request(gpu, totals.get(gpu.uuid, 0))
                    found[gpu.uuid] = found.get(gpu.uuid, 0) + size
        self._library, self._library_at = found, time.monotonic()

    def _entries(self) -> list[tuple[StoredShare, Sequence[ResolvedGpu]]]:
        """Of the store, those of ended containers too: as the agent knows them, or read where nothing tells of changes.

        Raises NvcError, OSError.
        """
        shares = self._agent.options.shares
        found: list[tuple[StoredShare, Sequence[ResolvedGpu]]] = []
        with store.Locked(shares), self._agent.promised.known() as known:
            if known is not None:
                return list(known.entries())
        for entry in store.each(shares):
            with entry, contextlib.suppress(OSError, ValueError):
                found.append((entry.record, entry.limits().gpus))
        return found

    def sight(self, uuid: str) -> Sight | None:
        """None where the driver does not say what is in use: then no tenant gets more than it has. Raises nothing."""
        try:
            usage = self._agent.supervisors.usage().gpus.get(uuid)
        except OSError:
            return None
        if usage is None:
            return None
        claims, charged = [], 0
        for tenant in self._agent.tenants:
            for place, gpu in enumerate(tenant.limits.gpus):
                if gpu.uuid == uuid:
                    with contextlib.suppress(OSError):  # it has ended
                        claims.append(self._claim(tenant, place, usage))
                        charged += claims[-1].used
        there = {one.key for tenant in self._agent.tenants for one in tenant.members}
        for number, (key, limits) in enumerate(self.coming.items()):
            for gpu in limits.gpus:
                if gpu.uuid == uuid and key not in there:
                    size = admission.request(gpu, usage.total)
                    claims.append(Claim(-1 - number, size, size, size, 0))
        outside = self._of_none(usage, charged)
        library = self._library.get(uuid, 0)
        least, most = (usage.total - max(part(outside), library) for part in (max, min))
        return Sight(usage.total, least, most, tuple(claims))

    def _of_none(self, usage: GpuUsage, charged: int) -> list[int]:
        seen = self._outside.setdefault(usage.uuid, deque(maxlen=_ANSWERS))
        if not seen or seen[-1][0] != usage.asked_ns:
            seen.append((usage.asked_ns, max(0, usage.used - charged)))
        return [size for _, size in seen]

    def _allowed(self, tenant: Tenant, gpu: ResolvedGpu) -> int:
        """What it can have in use: it may have allocated while its limit was lowered."""
        key = tenant.number, gpu.uuid
        last, before = self._limits.get(key, (gpu.memory, gpu.memory))
        if gpu.memory != last:
            last, before = gpu.memory, last
        self._limits[key] = last, before
        return max(last, before)

    def _beyond(self, tenant: Tenant, usage: GpuUsage, used: int) -> int:
        """Bytes that its supervisor does not say, by several answers of the driver: one that lies is reclaimed from."""
        seen = self._hidden.setdefault((tenant.number, usage.uuid), deque(maxlen=_ANSWERS))
        if tenant.record.suspended is not None:
            seen.clear()  # what the driver said before
            return 0
        if not seen or seen[-1][0] != usage.asked_ns:
            seen.append((usage.asked_ns, self._agent.reported(tenant, usage.uuid) - used))
        size = min(size for _, size in seen) if len(seen) == _ANSWERS else 0
        return size if size > usage.total // _HIDDEN else 0

    def _claim(self, tenant: Tenant, place: int, usage: GpuUsage) -> Claim:
        """Raises OSError."""
        gpu = tenant.limits.gpus[place]
        status = self._agent.supervisors.status(tenant.number)
        request = admission.request(gpu, usage.total)
        most = gpu.most or request
        # A supervisor that its tenant has taken over can say anything. What it never could have no other tenant lacks.
        used = min(status.gpus[place].memory, self._allowed(tenant, gpu) if gpu.request else most)
        used = min(used + self._beyond(tenant, usage, used), most)
        suspended, now = tenant.record.suspended, time.monotonic()
        if suspended is not None and suspended.is_changing:
            self._here[tenant.number] = suspended.memory, now + _RETURNS_S
        known = self._back if suspended is not None and not suspended.is_changing else self._here
        memory, until = known.get(tenant.number, ((), 0.0))
        returns = max(0, memory[place] - used) if now < until else 0
        return Claim(
            tenant.number,
            request,
            most,
            gpu.memory,
            used,
            self._wants(tenant, dict(status.reasons).get(OVER_QUOTA, 0), gpu.memory - used < gpu.memory // _LITTLE),
            gpu.priority,
            suspended is not None and not returns,
            min(returns, most - used),
            self._idleness.is_idle(tenant),
            suspended is not None and suspended.cause == IDLE and not returns,
        )

    def _wants(self, tenant: Tenant, refusals: int, has_little: bool) -> bool:
        """For a while: one that was given what it wanted must not lose it to the next one at once."""
        known, until = self._refused.get(tenant.number, (refusals, 0.0))
        if refusals != known or has_little:
            until = time.monotonic() + _WANTS_S
        self._refused[tenant.number] = refusals, until
        return time.monotonic() < until


def _moving(limits: Limits) -> list[str]:
    return [gpu.uuid for gpu in limits.gpus if gpu.request or gpu.idle]
