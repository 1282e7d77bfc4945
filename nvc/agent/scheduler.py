"""The schedule of every GPU: from tenants' limits and groups to timeslices and phases, in the tenants' plans.

``nvc.guard.scheduling`` decides, supervisors write slices and keep phases (native/guard/phase_thread.c); here is what
is between them: what was decided last, what has to be written, and when to look again. A plan stays in force without
the agent.
"""

from __future__ import annotations

import asyncio
import errno
import time
from concurrent.futures import ThreadPoolExecutor

from nvc.agent.scheduled import (
    NO_SHARE,
    NOT_KNOWN,
    Decided,
    Known,
    ScheduledShare,
    connected,
    decided,
    has_phase,
    too_many,
)
from nvc.base.errors import ContainerError
from nvc.guard.scheduling import (
    DRIVER_EDGES,
    EDGES,
    MOST_PERIOD_US,
    OWN_US,
    PERIOD_US,
    Schedule,
    Tenant,
    edges,
    parse_policy,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Protocol

    from nvc.guard.pages import TenantStatus
    from nvc.share.limits import Limits

    class SchedulingGuard(Protocol):
        """What it needs of ``nvc.guard.supervisors.Supervisors``."""

        def stamp(self, tenant: int) -> object: ...
        def status(self, tenant: int) -> TenantStatus: ...
        def slice(self, tenant: int, gpu: int, microseconds: int) -> None: ...
        def phase(self, tenant: int, gpu: int, period: int, since: int, until: int) -> None: ...


#: Seconds between looks at the tenants' groups, and at most, however many there are.
LOOK, LOOK_MOST = 0.1, 0.3
#: No more of the agent's time than this goes into looking: with hundreds of tenants it looks less often.
EFFORT = 0.01
#: Seconds that it keeps the agent's loop from others.
_TURN = 0.005
#: So many different problems are remembered as told.
_TOLD = 1000
#: The part of a GPU's time in switches above which the log warns.
_LOST = 0.2


class Scheduler:
    """For one thread, the agent's loop. ``run`` is its task, which puts changes into force.

    Only GPUs are decided on whose tenants, groups or policy changed, and in a thread: with hundreds of tenants that
    takes tens of milliseconds. Calls of the driver are made in between: about 0.5 ms for each process whose slice
    changes.
    """

    def __init__(
        self,
        guard: SchedulingGuard,
        *,
        clock: Callable[[], float] = time.monotonic,
        policy: str = "weighted",
        slots: int = 16,
        period: int = PERIOD_US,
        problem: Callable[[str], None] = lambda text: None,
    ) -> None:
        """clock: seconds. policy: of GPUs that have none of their own. slots, period: ``nvc.guard.scheduling.decide``.

        problem: hears what the guard could not do, each text once. Raises InputError.
        """
        self._guard = guard
        self._clock = clock
        self._policy = parse_policy(policy)
        self._slots = slots
        self._period = period
        self._problem = problem
        self._known: dict[int, Known] = {}
        self._policies: dict[str, str] = {}
        self._schedules: dict[str, Schedule] = {}
        #: What the guard has: UUID -> period, and (tenant's number, GPU's index) -> (since, until).
        self._planned: dict[str, tuple[int, dict[tuple[int, int], tuple[int, int]]]] = {}
        #: (tenant's number, GPU's index) of phases that could not be written; tried again with every look.
        self._unwritten: set[tuple[int, int]] = set()
        #: UUID -> tenant's number -> the part of the time that it is to have.
        self._shares: dict[str, dict[int, float]] = {}
        #: UUID -> numbers of its tenants, and their index of it.
        self._on: dict[str, dict[int, int]] = {}
        #: GPUs that are to be decided on again.
        self._changed: set[str] = set()
        self._problems: set[str] = set()
        self._wake: asyncio.Event | None = None
        #: One renewal at a time; what decides, beside the loop.
        self._renewing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "nvc-schedule")

    # What it is told.

    def tenant(self, number: int, limits: Limits) -> None:
        """A tenant came, or its limits changed; the guard knows it by this number. In force with the next renewal."""
        known = self._known.get(number)
        if known is None or [gpu.uuid for gpu in known.limits.gpus] != [gpu.uuid for gpu in limits.gpus]:
            self._leave(number)
            self._known[number] = Known(limits)
            for index, gpu in enumerate(limits.gpus):
                self._on.setdefault(gpu.uuid, {})[number] = index
        else:
            known.limits = limits
        self._changed.update(gpu.uuid for gpu in limits.gpus)
        self.poke()

    def forget(self, number: int) -> None:
        """A tenant is gone."""
        self._leave(number)
        self._known.pop(number, None)
        self._unwritten = {place for place in self._unwritten if place[0] != number}
        self.poke()

    def _leave(self, number: int) -> None:
        known = self._known.get(number)
        for gpu in known.limits.gpus if known is not None else ():
            self._on.get(gpu.uuid, {}).pop(number, None)
            self._changed.add(gpu.uuid)

    def set_policy(self, policy: str, uuid: str = "") -> str:
        """A policy by name or number, for one GPU or (uuid "") for all; its name. In force with the next renewal.

        Raises InputError.
        """
        name = parse_policy(policy)
        if uuid:
            self._policies[uuid] = name
        else:
            self._policy = name
            self._policies.clear()
        self._changed.update([uuid] if uuid else self._on)
        self.poke()
        return name

    def settings(self, *, slots: int, period: int) -> None:
        """Other numbers for ``decide``. In force with the next renewal."""
        self._slots, self._period = slots, period
        self._changed.update(self._on)
        self.poke()

    def policy(self, uuid: str = "") -> str:
        """The name of the policy of a GPU, or of those that have none of their own."""
        return self._policies.get(uuid, self._policy)

    def share(self, number: int, gpu: int) -> ScheduledShare:
        """What a tenant is to have and has of the GPU with this index in its limits; 0 for one that is not known."""
        known = self._known.get(number)
        if known is None or not 0 <= gpu < len(known.limits.gpus):
            return NO_SHARE
        uuid = known.limits.gpus[gpu].uuid
        target = self._shares.get(uuid, {}).get(number, 0.0)
        planned = self._planned.get(uuid)
        in_force = planned is not None and (number, gpu) in planned[1] and (number, gpu) not in self._unwritten
        return ScheduledShare(target, min(target, known.on[gpu]), in_force)

    def check(self, limits: Limits, number: int = -1) -> None:
        """Whether the caps of these limits could be kept beside those of all tenants but ``number``.

        May be called in any thread. Raises ContainerError.
        """
        known = self._known.get(number)
        there = {gpu.uuid for gpu in known.limits.gpus if has_phase(gpu, self.policy(gpu.uuid))} if known else set()
        for gpu in limits.gpus:
            policy = self.policy(gpu.uuid)
            if gpu.uuid in there or not has_phase(gpu, policy):
                continue  # there are no more phases by it
            others = self._phases_of(gpu.uuid, policy, but=number)
            if edges(MOST_PERIOD_US, others + 1) > EDGES:
                raise ContainerError(
                    f"GPU {gpu.uuid}: its cap cannot be kept: {too_many(others, others + 1)}",
                    hint="take another GPU, no cap (a weight has no such limit), or wait for one of them to end",
                )

    def check_policy(self, policy: str, uuid: str = "") -> None:
        """Whether ``set_policy`` gives every tenant a phase that can be kept. Raises InputError, ContainerError."""
        name = parse_policy(policy)
        for one in [uuid] if uuid else list(self._on):
            phases = self._phases_of(one, name)
            if edges(MOST_PERIOD_US, phases) > EDGES:
                raise ContainerError(
                    f"GPU {one}: policy {name} cannot be kept: {too_many(phases, phases)}",
                    hint="take policy weighted and weights, or wait for containers to end",
                )

    def _phases_of(self, uuid: str, policy: str, but: int = -1) -> int:
        tenants = [
            (self._known.get(number), index) for number, index in list(self._on.get(uuid, {}).items()) if number != but
        ]
        return sum(known is not None and has_phase(known.limits.gpus[index], policy) for known, index in tenants)

    # What it does.

    def update(self) -> None:
        """Look at every tenant, decide, and put into force what changed. Raises nothing: problems are told."""
        steps, answer = self._steps(), None
        try:
            while True:
                ask = steps.send(answer)
                answer = ask() if ask is not None else None
        except StopIteration:
            return

    async def renew(self) -> None:
        """As ``update``; the loop's other tasks have their turns meanwhile. Changes made before are in force then."""
        loop = asyncio.get_running_loop()
        async with self._renewing:
            steps, answer, until = self._steps(), None, loop.time() + _TURN
            try:
                while True:
                    ask = steps.send(answer)
                    answer = await loop.run_in_executor(self._thread, ask) if ask is not None else None
                    if loop.time() > until:
                        await asyncio.sleep(0)
                        until = loop.time() + _TURN
            except StopIteration:
                return

    def _steps(self) -> Generator[Callable[[], Any] | None, Any, None]:
        """An update, with places where others may have their turn. What it yields is computed, in any thread."""
        for number in tuple(self._known):
            if (known := self._known.get(number)) is not None:
                self._look(number, known)
                yield None
        changed = connected(self._changed | {self._uuid(*place) for place in self._unwritten}, self._on, self._known)
        self._changed.clear()
        tenants = {uuid: self._requests(uuid) for uuid in changed}
        requests = {uuid: tuple(request for _, _, request in found) for uuid, found in tenants.items()}
        policies = {uuid: self.policy(uuid) for uuid in changed}
        before = {uuid: self._schedules[uuid].phases for uuid in changed if uuid in self._schedules}
        slots, period = self._slots, self._period
        answer = (yield lambda: decided(requests, policies, slots, period, before)) if changed else {}
        for uuid, one in answer.items():
            yield from self._put(uuid, tenants[uuid], one)

    def _uuid(self, number: int, index: int) -> str:
        known = self._known.get(number)
        return known.limits.gpus[index].uuid if known is not None else ""

    def _requests(self, uuid: str) -> list[tuple[int, int, Tenant]]:
        """(number, index, what ``nvc.guard.scheduling`` is to know) of the GPU's tenants."""
        found = []
        for number, index in self._on.get(uuid, {}).items():
            known = self._known[number]
            if known.is_there:
                gpu, paused = known.limits.gpus[index], known.limits.paused
                request = Tenant(str(number), gpu.weight, gpu.cap, gpu.priority, known.groups[index], paused=paused)
                found.append((number, index, request))
        return found

    def _look(self, number: int, known: Known) -> None:
        is_there = True
        try:
            stamp, now = self._guard.stamp(number), self._clock()
            if stamp == known.stamp and known.is_steady:
                known.unchanged = now
                return
            changed = known.see(self._guard.status(number), now)
            known.stamp = stamp
        except OSError as error:
            # One of which nothing is to be had now keeps what it has, its cap above all.
            changed, is_there = [], error.errno != errno.ENOENT
            if error.errno != errno.EBUSY:
                self._tell(f"tenant {number}: {error}")
        if is_there != known.is_there:
            known.is_there = is_there
            changed = list(range(len(known.limits.gpus)))
        self._changed.update(known.limits.gpus[index].uuid for index in changed)

    def _put(self, uuid: str, found: list[tuple[int, int, Tenant]], decided: Decided) -> Generator[None, Any, None]:
        schedule = decided.schedule
        if found:
            self._schedules[uuid] = schedule
        else:
            self._schedules.pop(uuid, None)
        numbers = {request.name: (number, index) for number, index, request in found}
        self._shares[uuid] = {numbers[name][0]: part for name, part in decided.parts.items()}
        kept = {phase.name for phase in schedule.phases}
        for name, (number, index) in numbers.items():
            known = self._known.get(number)
            if name not in kept and known is not None and known.slices[index] == NOT_KNOWN:
                self._phase(number, index, 0, 0, 0)  # of an agent before this one
                yield
        yield from self._plan(uuid, schedule, numbers)
        if schedule.phases and decided.lost > _LOST:
            groups = sum(request.groups for _, _, request in found if not request.paused)
            self._tell(
                f"GPU {uuid}: switches among {groups} groups take {decided.lost:.0%} of its time beside its smallest "
                "cap; a larger cap, or a weight in its place, takes less"
            )
        for name, microseconds in schedule.slices:
            if self._slice(*numbers[name], microseconds):
                yield

    def _plan(self, uuid: str, schedule: Schedule, numbers: dict[str, tuple[int, int]]) -> Generator[None, Any, None]:
        phases = {numbers[phase.name]: (phase.since, phase.until) for phase in schedule.phases}
        period, before = self._planned.get(uuid, (0, {}))
        needed = edges(schedule.period, len(phases))
        if needed > DRIVER_EDGES:
            # Admission refuses at half of that: limits files were written while there was no agent.
            self._tell(
                f"GPU {uuid}: caps of tenants that came or changed are not kept: {len(phases)} tenants with a cap need "
                f"{needed} stops and starts a second, and the driver takes {DRIVER_EDGES}; the plan before, of "
                f"{len(before)} tenants, stays in force"
            )
            return
        if phases:
            self._planned[uuid] = schedule.period, phases
        else:
            self._planned.pop(uuid, None)
        for place in before:
            if place not in phases and place[0] in self._known:
                self._phase(*place, 0, 0, 0)
                yield
        for place, (since, until) in phases.items():
            is_same = period == schedule.period and before.get(place) == (since, until)
            if place[0] in self._known and (not is_same or place in self._unwritten):
                self._phase(*place, schedule.period, since, until)
                yield

    def _phase(self, number: int, gpu: int, period: int, since: int, until: int) -> None:
        try:
            self._guard.phase(number, gpu, period, since, until)
            self._unwritten.discard((number, gpu))
        except OSError as error:
            self._unwritten.add((number, gpu))
            self._tell(f"tenant {number}: its cap is not written: {error}")

    def _slice(self, number: int, index: int, microseconds: int) -> bool:
        """False: there was nothing to do."""
        known = self._known.get(number)
        if known is None or known.slices[index] == microseconds:
            return False
        try:
            if not microseconds:
                # 0 says nothing about groups that have another one already.
                self._guard.slice(number, index, OWN_US)
            self._guard.slice(number, index, microseconds)
        except OSError as error:
            self._tell(f"tenant {number}: its timeslice is not written: {error}")
            return True
        known.slices[index] = microseconds
        return True

    def _tell(self, text: str) -> None:
        if text in self._problems:
            return
        if len(self._problems) >= _TOLD:
            self._problems.clear()
        self._problems.add(text)
        self._problem(text)

    # Its life.

    async def run(self) -> None:
        """Look until the task is cancelled, and then ``stop``."""
        self._wake = asyncio.Event()
        try:
            while True:
                begin = self._clock()
                await self.renew()
                took = self._clock() - begin
                try:
                    # wait_for of Python 3.11 loses a cancellation that comes together with the event.
                    async with asyncio.timeout(min(max(LOOK, took / EFFORT), LOOK_MOST)):
                        await self._wake.wait()
                    await asyncio.sleep(min(took, LOOK))  # what comes with it is decided on together
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            self.stop()

    def poke(self) -> None:
        """Something happened that may have changed groups: ``run`` looks at once."""
        if self._wake is not None:
            self._wake.set()

    def stop(self) -> None:
        """Forget the tenants. What was planned stays in force."""
        self._thread.shutdown(wait=False)
        self._planned.clear()
        self._schedules.clear()
        self._shares.clear()
