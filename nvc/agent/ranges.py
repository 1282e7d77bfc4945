"""The agent's part that moves memory limits of tenants with a range, ``mem=8Gi..40Gi``, and reclaims memory.

Limits are lowered, that is in force, what is in use is read again, and only then are others raised: an agent that ends
at any place leaves limits that keep every request (``nvc.agent.dividing``). Memory above a request that another's
request needs is reclaimed by suspending its tenant (``nvc.agent.suspending``), which comes back when there is room.
So is all memory of a tenant that is idle (``nvc.agent.idle``): that comes back when it wants to compute.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from nvc.agent import dividing
from nvc.agent.claims import Claims
from nvc.agent.part import Part
from nvc.agent.state.records import IDLE, RECLAIMED
from nvc.base.errors import ContainerError, NvcError
from nvc.share import change
from nvc.share.model import RANK
from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from nvc.agent.agent import Agent
    from nvc.agent.idle import Idleness
    from nvc.agent.suspending import Suspending
    from nvc.agent.tenant import Tenant
    from nvc.share.entry import Entry
    from nvc.share.limits import Limits

#: So often limits are lowered and looked at again before the next look goes on.
_ROUNDS = 3
#: Part of a GPU that may lack, for the driver keeps some memory for itself; seconds that more does before a tenant is
#: suspended: the driver's numbers are half a second old.
_TOLERANCE, _LACKS_S = 1 / 64, 2.0
#: Seconds that a container waits at its start for memory that is reclaimed; for a tenant's work to end; until one that
#: could not be suspended is tried again; between two tries to resume one.
_ROOM_S, _LOCK_S, _AGAIN_S, _RESUME_S = 60.0, 10.0, 60.0, 2.0
_LOOK_S = 0.1
#: Seconds that a tenant that wakes waits for the driver's numbers to say that there is room, before more is reclaimed.
_WAKE_S = 1.5
#: Seconds after which a problem that did not come again is over: written when it comes once more.
_OVER_S = 600.0


class Ranges(Part):
    """One move at a time on a GPU; reclaiming and resuming take seconds, and go on beside it."""

    _agent: Agent
    _claims: Claims

    def __init__(self, suspending: Suspending, idleness: Idleness) -> None:
        self._suspending, self._idleness = suspending, idleness
        idleness.wake = self._wake
        self._waking: set[int] = set()
        self._turns: dict[str, asyncio.Lock] = {}
        self._dividing: set[str] = set()
        self._due = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        #: UUID -> since when requests lack memory.
        self._lacking: dict[str, float] = {}
        self._reclaiming: set[str] = set()
        self._looking: set[str] = set()
        #: Number -> when it may be suspended, or resumed, again.
        self._not_before: dict[int, float] = {}
        #: Problem -> when it came last, newest last.
        self._told: dict[str, float] = {}

    async def start(self, agent: Agent) -> None:
        self._agent = agent
        self._claims = Claims(agent, self._idleness)
        self._begin(self._run())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def look(self) -> None:
        self._due.set()

    def added(self, tenant: Tenant) -> None:
        self._claims.follow(tenant)
        self._look_soon()

    def changed(self, tenant: Tenant) -> None:
        self._claims.follow(tenant)
        self._look_soon()

    def gone(self, tenant: Tenant) -> None:
        self._claims.gone(tenant)
        self._not_before.pop(tenant.number, None)
        self._look_soon()

    def _look_soon(self) -> None:
        """Where there is nothing to move, the next look is soon enough."""
        if self._claims.uuids():
            self._due.set()

    # A container that comes, and one that comes back.

    async def making_room(self, key: str, limits: Limits) -> None:
        self._claims.coming[key] = limits
        try:
            moving = set(self._claims.uuids())
            for gpu in limits.gpus:
                if gpu.uuid in moving:
                    await self._reclaim(gpu.uuid, f"a container that starts: {key}")
        except BaseException:
            self._claims.coming.pop(key, None)
            raise
        # It becomes a tenant at once, or never.
        asyncio.get_running_loop().call_later(_LOCK_S, self._forget, key, limits)

    def _forget(self, key: str, limits: Limits) -> None:
        """Not another container of this name, which waits for its own."""
        if self._claims.coming.get(key) is limits:
            del self._claims.coming[key]

    async def returning(self, tenant: Tenant, memory: Sequence[int]) -> str:
        if not any(gpu.request for gpu in tenant.limits.gpus):
            return ""
        self._claims.comes_back(tenant, memory)
        places = [place for place, gpu in enumerate(tenant.limits.gpus) if memory[place] > gpu.request > 0]
        sights = [self._claims.sight(tenant.limits.gpus[place].uuid) for place in places]
        fits = all(sight is not None and dividing.shortage(sight.least, sight.claims) <= 0 for sight in sights)
        for place in places if fits else ():
            await self._divide(tenant.limits.gpus[place].uuid)
        if all(tenant.limits.gpus[place].memory >= memory[place] for place in places):
            return ""
        self._claims.stays(tenant)
        return f"{sum(memory) >> 20} MiB, a part of which others have or were promised"

    # All the time.

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._store()
            except (NvcError, OSError) as error:
                self._tell(str(error), getattr(error, "hint", ""))
            # Beside each other: a tenant that takes no limit, for seconds, is in no other GPU's way.
            for uuid in self._claims.uuids():
                if uuid not in self._dividing:
                    self._dividing.add(uuid)
                    self._begin(self._divide_later(uuid))
            self._resume_first()

    async def _divide_later(self, uuid: str) -> None:
        try:
            await self._divide(uuid)
            self._look_for_lack(uuid)
        except (NvcError, OSError) as error:
            self._tell(str(error), getattr(error, "hint", ""))
        finally:
            self._dividing.discard(uuid)

    async def _store(self) -> None:
        if self._claims.is_stale() and self._claims.uuids():
            await asyncio.to_thread(self._claims.look)

    async def _divide(self, uuid: str) -> None:
        """Move what is to be moved of a GPU. Raises NvcError: the rest stays as it is."""
        async with self._turns.setdefault(uuid, asyncio.Lock()):
            for _ in range(_ROUNDS):
                sight = self._claims.sight(uuid)
                if sight is None:
                    return
                lowered, raised = dividing.moves(sight.least, sight.claims)
                if not lowered:
                    await self._put(uuid, raised)
                    return
                await self._put(uuid, lowered)

    async def _put(self, uuid: str, limits: Mapping[int, int]) -> None:
        """Raises NvcError where one is not in force, when the others are."""
        done = await asyncio.gather(
            *(self._move(uuid, number, size) for number, size in limits.items()), return_exceptions=True
        )
        for problem in done:
            if problem is not None:
                raise problem

    async def _move(self, uuid: str, number: int, size: int) -> None:
        """Raises NvcError."""
        tenant = self._agent.tenants.by_number(number)
        if tenant is None:
            return

        def act(entry: Entry) -> None:
            change.move(entry, uuid, size)

        try:
            await asyncio.to_thread(self._agent.locked, tenant, act)
            await self._agent.put_in_force(tenant)
        except NvcError:
            if any(start_time(one.pid) == one.start_time for one in tenant.members):
                raise
            return  # it has ended
        with contextlib.suppress(OSError):  # what is published is 20 ms old at most
            self._agent.supervisors.refresh(number)

    # Reclaiming.

    def _look_for_lack(self, uuid: str) -> None:
        if self._lack(uuid, _TOLERANCE) <= 0:
            self._lacking.pop(uuid, None)
            return
        since = self._lacking.setdefault(uuid, time.monotonic())
        if time.monotonic() - since > _LACKS_S and uuid not in self._looking and self._victims(uuid):
            self._looking.add(uuid)
            self._begin(self._reclaim_later(uuid))

    async def _reclaim_later(self, uuid: str) -> None:
        try:
            await self._reclaim(uuid, "requests of other containers")
        except NvcError as error:
            self._tell(str(error), error.hint)
        finally:
            self._looking.discard(uuid)

    async def _reclaim(self, uuid: str, why: str, *, wakes: bool = False) -> None:
        """Suspend tenants until no request lacks memory.

        wakes: for a tenant that has to have all of its memory back. Raises ContainerError where what is promised lacks.
        """
        until, since = time.monotonic() + _ROOM_S, 0.0 if wakes else time.monotonic()
        failed: list[str] = []
        while True:
            try:
                await self._store()
                await self._divide(uuid)
            except NvcError as error:
                self._tell(str(error), error.hint)
            lack = self._lack(uuid, 0 if wakes else _TOLERANCE)
            if lack <= 0:
                return
            victims = self._victims(uuid)
            if not victims and not self._claims.has_range(uuid):
                return
            waits = uuid in self._reclaiming or time.monotonic() - since < _LACKS_S
            if time.monotonic() > until or not (victims or waits):
                held = "; ".join(failed) or "no container has memory above its request there"
                raise ContainerError(
                    f"GPU {uuid}: {lack >> 20} MiB lack for {why}: {held}",
                    hint="end a container of nvc-py share ls, or one that uses the GPU without a share",
                )
            if waits or not victims:
                await asyncio.sleep(_LOOK_S)
                continue
            self._reclaiming.add(uuid)
            try:
                await self._suspend(victims[0], why)
            except NvcError as error:
                self._not_before[victims[0].number] = time.monotonic() + _AGAIN_S
                failed.append(str(error))
                self._tell(f"{error}; its memory is not reclaimed", error.hint)
            finally:
                self._reclaiming.discard(uuid)

    async def _suspend(self, tenant: Tenant, why: str) -> None:
        """Raises NvcError."""
        if not self._idleness.is_idle(tenant):
            await self._suspending.suspend(tenant, _LOCK_S, cause=RECLAIMED, message=f"for {why}")
            return
        await self._idleness.begin(tenant)
        done = await self._suspending.suspend(tenant, _LOCK_S, cause=IDLE, message=f"idle, for {why}")
        self._idleness.asleep(tenant, done.threads)

    def _lack(self, uuid: str, tolerance: float) -> int:
        """Bytes; by the driver's answer that is best for the tenants: one that comes late suspends none.

        tolerance: the part of the GPU that may lack.
        """
        sight = self._claims.sight(uuid)
        if sight is None:
            return 0
        lack = dividing.shortage(sight.most, sight.claims)
        return lack if lack > sight.total * tolerance else 0

    def _victims(self, uuid: str) -> list[Tenant]:
        sight = self._claims.sight(uuid)
        claims = dividing.victims(sight.claims) if sight is not None else []
        found = [self._agent.tenants.by_number(claim.number) for claim in claims]
        now = time.monotonic()
        return [one for one in found if one is not None and self._not_before.get(one.number, 0.0) <= now]

    # Resuming.

    def _resume_first(self) -> None:
        """One at a time: what it takes is seen before the next one."""
        now = time.monotonic()
        asleep = [
            tenant
            for tenant in self._agent.tenants
            if tenant.record.suspended is not None
            and tenant.record.suspended.cause == RECLAIMED
            and not tenant.record.suspended.is_changing
            and self._not_before.get(tenant.number, 0.0) <= now
        ]
        for tenant in asleep:
            self._not_before[tenant.number] = now + _RESUME_S
        order = sorted(asleep, key=lambda one: -max(RANK[gpu.priority] for gpu in one.limits.gpus))
        if order:
            self._begin(self._resume(order))

    def _wake(self, tenant: Tenant, why: str) -> None:
        if tenant.number not in self._waking:
            self._waking.add(tenant.number)
            self._begin(self._wake_up(tenant, why))

    async def _wake_up(self, tenant: Tenant, why: str) -> None:
        """As soon as others have given the memory back that it had."""
        try:
            self._agent.journal.write("wake", container=tenant.name, message=why)
            problem = ""
            while tenant.record.suspended is not None and self._agent.tenants.by_number(tenant.number) is tenant:
                self._claims.comes_back(tenant, tenant.record.suspended.memory)
                try:
                    for gpu in tenant.limits.gpus:
                        await self._reclaim(gpu.uuid, f"container {tenant.name}, which wakes", wakes=True)
                    await self._suspending.resuming(tenant, _WAKE_S)
                except NvcError as error:
                    if not problem:
                        problem = f"{error}; it sleeps until then"
                        self._agent.journal.write("warning", message=problem, hint=error.hint)
                    await asyncio.sleep(_LOOK_S)
        finally:
            self._waking.discard(tenant.number)
            self._idleness.ended(tenant.number)

    async def _resume(self, order: Sequence[Tenant]) -> None:
        for tenant in order:
            try:
                if tenant.record.suspended is not None:
                    await self._suspending.resuming(tenant, 0.0)
            except NvcError:
                continue  # there is no room yet

    # Both.

    def _begin(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, message: str, hint: str = "") -> None:
        now = time.monotonic()
        while self._told and next(iter(self._told.values())) < now - _OVER_S:
            del self._told[next(iter(self._told))]
        if self._told.pop(message, None) is None:
            self._agent.journal.write("warning", message=message, hint=hint)
        self._told[message] = now
