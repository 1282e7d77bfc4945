"""The schedule of every GPU: from tenants' limits and groups to timeslices and phases, in the tenants' plans.

``nvc.guard.scheduling`` decides, supervisors write slices and keep phases (native/guard/phase_thread.c); here is what
is between them: what was decided last, what has to be written, and when to look again. A plan stays in force without
the agent.
"""

from __future__ import annotations

import asyncio
import errno
import time

from nvc.base.errors import ContainerError
from nvc.base.record import Record
from nvc.guard.scheduling import (
    DRIVER_EDGES,
    EDGES,
    MOST_PERIOD_US,
    MOST_PHASES,
    OWN_US,
    PERIOD_US,
    Schedule,
    Tenant,
    decide_all,
    edges,
    expected,
    lost,
    parse_policy,
)
from nvc.share.model import CAP_WHOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from nvc.guard.pages import TenantStatus
    from nvc.share.limits import Limits
    from nvc.share.model import ResolvedGpu

    class SchedulingGuard(Protocol):
        """What it needs of ``nvc.guard.supervisors.Supervisors``."""

        def status(self, tenant: int) -> TenantStatus: ...
        def slice(self, tenant: int, gpu: int, microseconds: int) -> None: ...
        def phase(self, tenant: int, gpu: int, period: int, since: int, until: int) -> None: ...


#: Seconds between looks at the tenants' groups, and at most, however many there are.
LOOK, LOOK_MOST = 0.1, 0.3
#: No more of the agent's time than this goes into looking: with thousands of tenants it looks less often.
EFFORT = 0.1
#: Seconds over which a share is measured.
WINDOW = 1.0
NOT_KNOWN = -1
#: So many different problems are remembered as told.
_TOLD = 1000
#: The part of a GPU's time in switches above which the log warns.
_LOST = 0.2
#: Policies for which caps mean nothing (nvc.guard.scheduling).
_WITHOUT_CAPS = ("preemptive", "soft", "native")


class ScheduledShare(Record):
    """Of a GPU's time, 0 to 1. target: while all tenants have work. achieved: by that, and the time it was really off.

    The driver does not say how long a process computed: a tenant that had no work got less. cap_in_force: the tenant's
    phase is written into its plan; False also without a cap.
    """

    target: float
    achieved: float
    cap_in_force: bool = False


NO_SHARE = ScheduledShare(0.0, 0.0)


class _Known:
    """A tenant: its limits, and what was last seen of it, by GPU."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.groups = [0] * len(limits.gpus)
        #: What was written last; NOT_KNOWN: an agent before this one may have written something.
        self.slices = [NOT_KNOWN] * len(limits.gpus)
        #: (when, frozen_ns) at the beginning of the window, and the part of the last one that it was on.
        self.begin: list[tuple[float, int]] = [(0.0, 0)] * len(limits.gpus)
        self.on: list[float] = [1.0] * len(limits.gpus)


class Scheduler:
    """For one thread, the agent's loop. ``run`` is its task; everything else takes effect before it returns.

    Calls of the driver are made in between: about 0.5 ms for each process whose slice changes.
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
        self._known: dict[int, _Known] = {}
        self._policies: dict[str, str] = {}
        self._schedules: dict[str, Schedule] = {}
        #: What the guard has: UUID -> (period, phases).
        self._planned: dict[str, tuple[int, tuple[tuple[int, int, int, int], ...]]] = {}
        #: (tenant's number, GPU's index) of phases that could not be written; tried again with every look.
        self._unwritten: set[tuple[int, int]] = set()
        self._shares: dict[tuple[int, str], float] = {}
        self._problems: set[str] = set()
        self._wake: asyncio.Event | None = None

    # What it is told.

    def tenant(self, number: int, limits: Limits) -> None:
        """A tenant came, or its limits changed; the guard knows it by this number. Followed by ``update``."""
        known = self._known.get(number)
        if known is None or len(known.limits.gpus) != len(limits.gpus):
            self._known[number] = _Known(limits)
        else:
            known.limits = limits

    def forget(self, number: int) -> None:
        """A tenant is gone. Followed by ``update``."""
        self._known.pop(number, None)
        self._unwritten = {place for place in self._unwritten if place[0] != number}

    def set_policy(self, policy: str, uuid: str = "") -> str:
        """A policy by name or number, for one GPU or (uuid "") for all; its name. Followed by ``update``.

        Raises InputError.
        """
        name = parse_policy(policy)
        if uuid:
            self._policies[uuid] = name
        else:
            self._policy = name
            self._policies.clear()
        return name

    def settings(self, *, slots: int, period: int) -> None:
        """Other numbers for ``decide``. Followed by ``update``."""
        self._slots, self._period = slots, period

    def policy(self, uuid: str = "") -> str:
        """The name of the policy of a GPU, or of those that have none of their own."""
        return self._policies.get(uuid, self._policy)

    def share(self, number: int, gpu: int) -> ScheduledShare:
        """What a tenant is to have and has of the GPU with this index in its limits; 0 for one that is not known."""
        known = self._known.get(number)
        if known is None or not 0 <= gpu < len(known.limits.gpus):
            return NO_SHARE
        uuid = known.limits.gpus[gpu].uuid
        target = self._shares.get((number, uuid), 0.0)
        _, phases = self._planned.get(uuid, (0, ()))
        in_force = (number, gpu) not in self._unwritten and any(phase[:2] == (number, gpu) for phase in phases)
        return ScheduledShare(target, min(target, known.on[gpu]), in_force)

    def check(self, limits: Limits, number: int = -1) -> None:
        """Whether the caps of these limits could be kept beside those of all tenants but ``number``.

        May be called in any thread. Raises ContainerError.
        """
        for gpu in limits.gpus:
            others = self._phases_of(gpu.uuid, self.policy(gpu.uuid), but=number)
            if _has_phase(gpu, self.policy(gpu.uuid)) and edges(MOST_PERIOD_US, others + 1) > EDGES:
                raise ContainerError(
                    f"GPU {gpu.uuid}: its cap cannot be kept: {_too_many(others, others + 1)}",
                    hint="take another GPU, no cap (a weight has no such limit), or wait for one of them to end",
                )

    def check_policy(self, policy: str, uuid: str = "") -> None:
        """Whether ``set_policy`` gives every tenant a phase that can be kept. Raises InputError, ContainerError."""
        name = parse_policy(policy)
        for one in dict.fromkeys([uuid] if uuid else [gpu.uuid for known in self._all() for gpu in known.limits.gpus]):
            phases = self._phases_of(one, name)
            if edges(MOST_PERIOD_US, phases) > EDGES:
                raise ContainerError(
                    f"GPU {one}: policy {name} cannot be kept: {_too_many(phases, phases)}",
                    hint="take policy weighted and weights, or wait for containers to end",
                )

    def _all(self, but: int = -1) -> list[_Known]:
        return [known for number, known in list(self._known.items()) if number != but]

    def _phases_of(self, uuid: str, policy: str, but: int = -1) -> int:
        gpus = (gpu for known in self._all(but) for gpu in known.limits.gpus)
        return sum(gpu.uuid == uuid and _has_phase(gpu, policy) for gpu in gpus)

    # What it does.

    def update(self) -> None:
        """Look at every tenant, decide, and put into force what changed. Raises nothing: problems are told."""
        tenants: dict[str, list[tuple[int, int, Tenant]]] = {}
        for number in list(self._known):
            known = self._known[number]
            if not self._look(number, known):
                continue
            for index, gpu in enumerate(known.limits.gpus):
                request = Tenant(
                    str(number), gpu.weight, gpu.cap, gpu.priority, known.groups[index], paused=known.limits.paused
                )
                tenants.setdefault(gpu.uuid, []).append((number, index, request))
        self._shares = {}
        uuids = dict.fromkeys([*self._schedules, *tenants])
        schedules = decide_all(
            {uuid: tuple(request for _, _, request in tenants.get(uuid, [])) for uuid in uuids},
            {uuid: self.policy(uuid) for uuid in uuids},
            self._slots,
            self._period,
            {uuid: schedule.phases for uuid, schedule in self._schedules.items()},
        )
        for uuid, schedule in schedules.items():
            self._schedule(uuid, tenants.get(uuid, []), schedule)

    def _look(self, number: int, known: _Known) -> bool:
        try:
            status = self._guard.status(number)
        except OSError as error:
            # One of which nothing is to be had now keeps what it has, its cap above all.
            if error.errno != errno.EBUSY:
                self._tell(f"tenant {number}: {error}")
            return error.errno != errno.ENOENT
        now = self._clock()
        for index, gpu in enumerate(status.gpus[: len(known.groups)]):
            known.groups[index] = gpu.groups
            since, frozen = known.begin[index]
            if now - since >= WINDOW:
                if since:
                    known.on[index] = max(0.0, 1 - (gpu.frozen_ns - frozen) / 1e9 / (now - since))
                known.begin[index] = now, gpu.frozen_ns
        return True

    def _schedule(self, uuid: str, found: list[tuple[int, int, Tenant]], schedule: Schedule) -> None:
        requested = tuple(request for _, _, request in found)
        if found:
            self._schedules[uuid] = schedule
        else:
            self._schedules.pop(uuid, None)
        parts = expected(requested, schedule)
        numbers = {request.name: (number, index) for number, index, request in found}
        for name, part in parts.items():
            self._shares[numbers[name][0], uuid] = part
        kept = {phase.name for phase in schedule.phases}
        for name, (number, index) in numbers.items():
            if name not in kept and self._known[number].slices[index] == NOT_KNOWN:
                self._phase(number, index, 0, 0, 0)  # of an agent before this one
        self._plan(uuid, schedule, numbers)
        if schedule.phases and (part := lost(requested, schedule)) > _LOST:
            groups = sum(request.groups for request in requested if not request.paused)
            self._tell(
                f"GPU {uuid}: switches among {groups} groups take {part:.0%} of its time beside its smallest cap; a "
                "larger cap, or a weight in its place, takes less"
            )
        for name, microseconds in schedule.slices:
            self._slice(*numbers[name], microseconds)

    def _plan(self, uuid: str, schedule: Schedule, numbers: dict[str, tuple[int, int]]) -> None:
        phases = tuple((*numbers[phase.name], phase.since, phase.until) for phase in schedule.phases)
        planned = (schedule.period, phases) if phases else (0, ())
        before = self._planned.get(uuid, (0, ()))
        if before == planned and not any(phase[:2] in self._unwritten for phase in phases):
            return
        needed = edges(schedule.period, len(phases))
        if needed > DRIVER_EDGES:
            # Admission refuses at half of that: limits files were written while there was no agent.
            self._tell(
                f"GPU {uuid}: caps of tenants that came or changed are not kept: {len(phases)} tenants with a cap need "
                f"{needed} stops and starts a second, and the driver takes {DRIVER_EDGES}; the plan before, of "
                f"{len(before[1])} tenants, stays in force"
            )
            return
        kept = {phase[:2] for phase in phases}
        for number, gpu, _, _ in before[1]:
            if (number, gpu) not in kept and number in self._known:
                self._phase(number, gpu, 0, 0, 0)
        is_new = before != planned
        for number, gpu, since, until in phases:
            if is_new or (number, gpu) in self._unwritten:
                self._phase(number, gpu, schedule.period, since, until)
        if phases:
            self._planned[uuid] = planned
        else:
            self._planned.pop(uuid, None)

    def _phase(self, number: int, gpu: int, period: int, since: int, until: int) -> None:
        try:
            self._guard.phase(number, gpu, period, since, until)
            self._unwritten.discard((number, gpu))
        except OSError as error:
            self._unwritten.add((number, gpu))
            self._tell(f"tenant {number}: its cap is not written: {error}")

    def _slice(self, number: int, index: int, microseconds: int) -> None:
        known = self._known[number]
        if known.slices[index] == microseconds:
            return
        try:
            if not microseconds:
                # 0 says nothing about groups that have another one already.
                self._guard.slice(number, index, OWN_US)
            self._guard.slice(number, index, microseconds)
        except OSError as error:
            self._tell(f"tenant {number}: its timeslice is not written: {error}")
            return
        known.slices[index] = microseconds

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
                self.update()
                pause = min(max(LOOK, (self._clock() - begin) / EFFORT), LOOK_MOST)
                try:
                    await asyncio.wait_for(self._wake.wait(), pause)
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
        self._planned.clear()
        self._schedules.clear()
        self._shares.clear()


def _has_phase(gpu: ResolvedGpu, policy: str) -> bool:
    return policy == "fair" or (gpu.cap < CAP_WHOLE and policy not in _WITHOUT_CAPS)


def _too_many(there: int, phases: int) -> str:
    return (
        f"{there} containers with a cap are there, and {MOST_PHASES} are the most: {phases} need "
        f"{edges(MOST_PERIOD_US, phases)} stops and starts a second at the longest period of "
        f"{MOST_PERIOD_US // 1000} ms, and the driver is given {EDGES}"
    )
