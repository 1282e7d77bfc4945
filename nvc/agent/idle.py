"""The agent's part that knows which tenants with ``idle=60s`` computed nothing for so long, and which want to again.

Whether a tenant computed, the driver's samples say; where there are none, no tenant is idle. A call of the driver
counts as well. Of tenants that sleep the threads are looked at, twenty times a second (``nvc.agent.activity``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from nvc.agent import activity
from nvc.agent.part import Part
from nvc.agent.state.records import IDLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nvc.agent.activity import Threads
    from nvc.agent.agent import Agent
    from nvc.agent.tenant import Tenant

#: Seconds between two looks at threads; and whether any tenant sleeps.
_LOOK_S, _NONE_S = 0.05, 0.25
#: No more of the agent's processor time than this goes into looking at one tenant: it may have made many threads.
EFFORT = 0.05


class Idleness(Part):
    """Of all tenants. wake: called with a sleeping tenant that wants to compute, and why it seems so."""

    _agent: Agent
    _task: asyncio.Task[None]
    wake: Callable[[Tenant, str], None]

    def __init__(self) -> None:
        #: Number -> what it had computed and called when that was another amount last, and when.
        self._active: dict[int, tuple[object, float]] = {}
        #: Number -> threads before it was suspended, and at the last look; threads of CUDA's.
        self._first: dict[int, Threads] = {}
        self._own: dict[int, Collection[tuple[int, int]]] = {}
        self._last: dict[int, Threads] = {}
        #: Number -> when they may be looked at again.
        self._again: dict[int, float] = {}

    async def start(self, agent: Agent) -> None:
        self._agent = agent
        self._task = asyncio.ensure_future(self._watch())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def gone(self, tenant: Tenant) -> None:
        for known in (self._active, self._first, self._own, self._last, self._again):
            known.pop(tenant.number, None)

    def look(self) -> None:
        for tenant in self._agent.tenants:
            if seconds(tenant):
                stamp, now = self._stamp(tenant), time.monotonic()
                known, _ = self._active.get(tenant.number, (None, 0.0))
                if stamp is None or stamp != known:
                    self._active[tenant.number] = stamp, now

    def is_idle(self, tenant: Tenant) -> bool:
        stamp, since = self._active.get(tenant.number, (None, 0.0))
        return stamp is not None and 0 < seconds(tenant) <= time.monotonic() - since

    async def begin(self, tenant: Tenant) -> None:
        """It is about to be suspended: what its threads wait for now is nothing that it wants."""
        self._first[tenant.number] = await asyncio.to_thread(activity.look, self._pids(tenant))

    def asleep(self, tenant: Tenant, own: Collection[tuple[int, int]]) -> None:
        """It is suspended. own: (pid, thread) of CUDA's, which wait for what the agent does."""
        self._own[tenant.number] = own

    def ended(self, number: int) -> None:
        """It runs again, and is not idle at once."""
        self._first.pop(number, None)
        self._own.pop(number, None)
        self._last.pop(number, None)
        self._active[number] = None, time.monotonic()

    async def _watch(self) -> None:
        while True:
            asleep = [one for one in self._agent.tenants if _sleeps(one)]
            for number in self._last.keys() - {one.number for one in asleep}:  # it was resumed by whatever
                self.ended(number)
            await asyncio.sleep(_LOOK_S if asleep else _NONE_S)
            for tenant in asleep:
                if not _sleeps(tenant) or time.monotonic() < self._again.get(tenant.number, 0.0):
                    continue
                now, spent = await asyncio.to_thread(_look, self._pids(tenant))
                self._again[tenant.number] = time.monotonic() + spent / EFFORT
                before = self._last.get(tenant.number, now)
                self._last[tenant.number] = now
                # An agent that did not see it fall asleep takes every thread that waits for one that wants.
                own = self._own.get(tenant.number, ())
                why = activity.wants(self._first.get(tenant.number, {}), before, now, own)
                if why:
                    self.wake(tenant, why)

    def _pids(self, tenant: Tenant) -> list[int]:
        with contextlib.suppress(OSError):
            return [pid for pid, _ in self._agent.supervisors.processes(tenant.number)]
        return []

    def _stamp(self, tenant: Tenant) -> object:
        """Another one when it computed or called the driver; None: that is not known."""
        try:
            usage = self._agent.supervisors.usage().gpus
            calls = self._agent.supervisors.status(tenant.number).notifications
        except OSError:
            return None
        uuids = [gpu.uuid for gpu in tenant.limits.gpus]
        if not all(uuid in usage and usage[uuid].sampled_ns for uuid in uuids):
            return None
        return calls, tuple(self._agent.computed(tenant, uuid)[1] for uuid in uuids)


def seconds(tenant: Tenant) -> int:
    """After how long it is idle; 0: never, also where one of its GPUs has no such setting."""
    found = [gpu.idle for gpu in tenant.limits.gpus]
    return max(found) if found and all(found) else 0


def _look(pids: Iterable[int]) -> tuple[Threads, float]:
    """Their threads, and seconds of processor time that it took."""
    begun = time.thread_time()
    return activity.look(pids), time.thread_time() - begun


def _sleeps(tenant: Tenant) -> bool:
    suspended = tenant.record.suspended
    return suspended is not None and suspended.cause == IDLE and not suspended.is_changing
