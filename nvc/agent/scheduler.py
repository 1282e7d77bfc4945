"""The schedule of every GPU: from tenants' limits and groups to timeslices and phases, in the tenants' plans.

``nvc.guard.scheduling`` decides, supervisors write slices and keep phases (native/guard/phase_thread.c); here is what
is between them: what was decided last, what has to be written, and when to look again. A plan stays in force without
the agent.
"""

from __future__ import annotations

import asyncio
import errno
import time

from nvc.agent.planned import Planned
from nvc.agent.scheduled import (
    NO_SHARE,
    WINDOW,
    Decided,
    Known,
    ScheduledShare,
    connected,
    decided,
    divides,
    has_phase,
    too_many,
)
from nvc.agent.services import Services
from nvc.agent.waiting import Turn, threads
from nvc.base.errors import ContainerError
from nvc.guard.scheduling import EDGES, MOST_PERIOD_US, PERIOD_US, Schedule, Tenant, edges, parse_policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from typing import Any

    from nvc.agent.planned import SchedulingGuard
    from nvc.share.limits import Limits


#: Seconds between looks at the tenants' groups, and at most, however many there are.
LOOK, LOOK_MOST = 0.1, 0.3
#: No more of the agent's time than this goes into looking: with hundreds of tenants it looks less often.
EFFORT = 0.01
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
        self._known: dict[int, Known] = {}
        self._planned = Planned(guard, self._known, problem)
        self._policies: dict[str, str] = {}
        self._schedules: dict[str, Schedule] = {}
        #: UUID -> tenant's number -> the part of the time that it is to have.
        self._shares: dict[str, dict[int, float]] = {}
        #: UUID -> numbers of its tenants, and their index of it.
        self._on: dict[str, dict[int, int]] = {}
        #: Those of them that have something of its time to divide (``Known.contends``): decided is about these alone.
        self._contending: dict[str, dict[int, int]] = {}
        #: Those that are read again without having published anything; when the last look was.
        self._unsteady: set[int] = set()
        self._looked = 0.0
        self._services = Services(self._known, self._on)
        #: GPUs that are to be decided on again.
        self._changed: set[str] = set()
        self._wake: asyncio.Event | None = None
        #: One renewal at a time; what decides, beside the loop.
        self._renewing = asyncio.Lock()
        self._thread = threads(1, "nvc-schedule")

    # Its input.

    def tenant(self, number: int, limits: Limits, *, is_new: bool = False) -> None:
        """A tenant came, or its limits changed; the guard knows it by this number. In force with the next renewal.

        is_new: no agent has written anything into its plan but its limits.
        """
        known, before = self._known.get(number), None
        if known is None or [gpu.uuid for gpu in known.limits.gpus] != [gpu.uuid for gpu in limits.gpus]:
            self._leave(number)
            known = self._known[number] = Known(limits, is_new=is_new)
            self._unsteady.add(number)
            for index, gpu in enumerate(limits.gpus):
                self._on.setdefault(gpu.uuid, {})[number] = index
        else:
            before, known.limits = divides(known.limits), limits
        self._services.came(number, limits)
        if before != divides(limits):
            self._contend(number, known, range(len(limits.gpus)))

    def forget(self, number: int) -> None:
        """A tenant is gone."""
        self._leave(number)
        self._known.pop(number, None)
        self._unsteady.discard(number)
        self._planned.forget(number)

    def _leave(self, number: int) -> None:
        known = self._known.get(number)
        if known is None:
            return
        self._services.left(number, known.limits)
        for gpu in known.limits.gpus:
            self._on.get(gpu.uuid, {}).pop(number, None)
            if self._contending.get(gpu.uuid, {}).pop(number, None) is not None:
                self._decide_on(gpu.uuid)

    def _contend(self, number: int, known: Known, indexes: Iterable[int]) -> None:
        """What a tenant is to have of these GPUs may have changed: each is decided on where it has a part in it."""
        for index in indexes:
            uuid = known.limits.gpus[index].uuid
            there = self._contending.setdefault(uuid, {})
            if known.contends(index, self.policy(uuid)):
                there[number] = index
            elif there.pop(number, None) is None:
                continue
            self._decide_on(uuid)

    def _decide_on(self, *uuids: str) -> None:
        self._changed.update(uuids)
        self.poke()

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
        for one in [uuid] if uuid else list(self._on):
            for number in self._on.get(one, ()):
                known = self._known[number]
                self._contend(number, known, range(len(known.limits.gpus)))  # its phases were together on all of them
            self._decide_on(one)
        return name

    def settings(self, *, slots: int, period: int) -> None:
        """Other numbers for ``decide``. In force with the next renewal."""
        self._slots, self._period = slots, period
        self._decide_on(*self._on)

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
        period = self._planned.period(uuid, (number, gpu))
        return ScheduledShare(target, min(target, known.on[gpu]), period, *self._services.waits(uuid, number))

    def check(self, limits: Limits, number: int = -1) -> None:
        """Whether the caps of these limits could be kept beside those of all tenants but ``number``, and every service
        be served in its time.

        May be called in any thread. Raises ContainerError.
        """
        for index, gpu in enumerate(limits.gpus):
            self._services.check(gpu.uuid, self.policy(gpu.uuid), number, limits, index)
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
            self._services.check(one, name)
            phases = self._phases_of(one, name)
            if edges(MOST_PERIOD_US, phases) > EDGES:
                raise ContainerError(
                    f"GPU {one}: policy {name} cannot be kept: {too_many(phases, phases)}",
                    hint="take policy weighted and weights, or wait for containers to end",
                )

    def _phases_of(self, uuid: str, policy: str, but: int = -1) -> int:
        on = self._contending if policy == self.policy(uuid) else self._on
        tenants = [
            (self._known.get(number), index) for number, index in list(on.get(uuid, {}).items()) if number != but
        ]
        return sum(known is not None and has_phase(known.limits.gpus[index], policy) for known, index in tenants)

    # What it does.

    async def renew(self) -> None:
        """Look at tenants, decide, and put into force what changed. Raises nothing: problems are logged.

        The loop's other tasks have their turns meanwhile. Changes made before are in force then.
        """
        loop = asyncio.get_running_loop()
        async with self._renewing:
            steps, answer, turn = self._steps(), None, Turn()
            try:
                while True:
                    ask = steps.send(answer)
                    answer = await loop.run_in_executor(self._thread, ask) if ask is not None else None
                    await turn.pause()
            except StopIteration:
                return

    def _steps(self) -> Generator[Callable[[], Any] | None, Any, None]:
        """An update, with places where others may have their turn. What it yields is computed, in any thread."""
        now, last = self._clock(), self._looked
        self._looked = now
        for number in sorted(self._guard.changed() | self._due(now)):
            if (known := self._known.get(number)) is not None:
                if known.is_steady and known.looked < last:
                    known.unchanged = last
                self._look(number, known)
                yield None
        again = {self._uuid(*place) for place in self._planned.unwritten}
        changed = connected(self._changed | again, self._contending, self._known)
        self._changed.clear()
        tenants = {uuid: self._requests(uuid) for uuid in changed}
        requests = {uuid: tuple(request for _, _, request in found) for uuid, found in tenants.items()}
        policies = {uuid: self.policy(uuid) for uuid in changed}
        before = {uuid: self._schedules[uuid].phases for uuid in changed if uuid in self._schedules}
        slots, period = self._slots, self._period
        answer = (yield lambda: decided(requests, policies, slots, period, before)) if changed else {}
        for uuid, one in answer.items():
            yield from self._put(uuid, tenants[uuid], one)

    def sampled(self, uuid: str, now: int, computed: Mapping[int, int] | None) -> None:
        """As ``nvc.agent.part.Part.sampled``."""
        if self._services.sampled(uuid, now, computed, self._shares.get(uuid, {})):
            self._decide_on(uuid)

    def hint(self, number: int, word: str) -> None:
        """A service has work soon, or none: of ``nvc.guard.service.HINTS``. In force with the next renewal."""
        self._decide_on(*self._services.hint(number, word))

    def _uuid(self, number: int, index: int) -> str:
        known = self._known.get(number)
        return known.limits.gpus[index].uuid if known is not None else ""

    def _requests(self, uuid: str) -> list[tuple[int, int, Tenant]]:
        """(number, index, what ``nvc.guard.scheduling`` is to know) of the GPU's tenants that contend for its time."""
        found = []
        for number, index in sorted(self._contending.get(uuid, {}).items()):
            known = self._known[number]
            if known.is_there:
                found.append((number, index, self._services.request(number, index)))
        return found

    def _due(self, now: float) -> set[int]:
        """Those of which something changes without being published: the time for which they are off."""
        return {number for number in self._unsteady if now - self._known[number].looked >= WINDOW}

    def _look(self, number: int, known: Known) -> None:
        is_there = True
        try:
            changed = known.see(self._guard.status(number), self._clock())
        except OSError as error:
            # One of which nothing is to be had now keeps what it has, its cap above all.
            changed, is_there = [], error.errno != errno.ENOENT
            known.looked, known.is_steady = 0.0, False
            if error.errno != errno.EBUSY:
                self._planned.tell(f"tenant {number}: {error}")
        if is_there != known.is_there:
            known.is_there = is_there
            changed = list(range(len(known.limits.gpus)))
        if known.is_steady and is_there:
            self._unsteady.discard(number)
        else:
            self._unsteady.add(number)
        self._contend(number, known, changed)

    def _put(self, uuid: str, found: list[tuple[int, int, Tenant]], decided: Decided) -> Generator[None, Any, None]:
        schedule = decided.schedule
        if found:
            self._schedules[uuid] = schedule
        else:
            self._schedules.pop(uuid, None)
        numbers = {request.name: (number, index) for number, index, request in found}
        self._shares[uuid] = {numbers[name][0]: part for name, part in decided.parts.items()}
        self._services.decided(uuid, numbers, decided)
        if schedule.phases and decided.lost > _LOST:
            groups = sum(request.groups for _, _, request in found if not request.paused)
            self._planned.tell(
                f"GPU {uuid}: switches among {groups} groups take {decided.lost:.0%} of its time beside its smallest "
                "cap; a larger cap, or a weight in its place, takes less"
            )
        yield from self._planned.put(uuid, schedule, numbers)
        for number, index, _ in found:
            known = self._known.get(number)
            if known is not None and not known.contends(index, self.policy(uuid)):
                self._contending[uuid].pop(number, None)

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
        self._services.clear()
