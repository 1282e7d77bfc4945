"""What tenants' plans say of the schedule: what was written of it, what is to be written, and what could not be."""

from __future__ import annotations

from nvc.agent.scheduled import NOT_KNOWN
from nvc.guard.scheduling import DRIVER_EDGES, OWN_US, edges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from typing import Any, Protocol

    from nvc.agent.scheduled import Known
    from nvc.guard.pages import TenantStatus
    from nvc.guard.scheduling import Schedule

    class SchedulingGuard(Protocol):
        """What scheduling needs of ``nvc.guard.supervisors.Supervisors``."""

        def changed(self) -> set[int]: ...
        def status(self, tenant: int) -> TenantStatus: ...
        def slice(self, tenant: int, gpu: int, microseconds: int) -> None: ...
        def phase(self, tenant: int, gpu: int, period: int, since: int, until: int) -> None: ...


#: So many different problems are remembered as logged.
_TOLD = 1000


class Planned:
    """Of all GPUs. Tenants are named by (number, GPU's index)."""

    def __init__(self, guard: SchedulingGuard, known: Mapping[int, Known], problem: Callable[[str], None]) -> None:
        """known: the scheduler's, by number. problem: hears what could not be done, each text once."""
        self._guard, self._known, self._problem = guard, known, problem
        #: UUID -> period, and (since, until) of each.
        self._phases: dict[str, tuple[int, dict[tuple[int, int], tuple[int, int]]]] = {}
        #: Those whose phases could not be written; tried again with every look.
        self.unwritten: set[tuple[int, int]] = set()
        self._problems: set[str] = set()

    def period(self, uuid: str, place: tuple[int, int]) -> int:
        """Microseconds of the tenant's phase; 0: it has none that is written into its plan."""
        period, phases = self._phases.get(uuid, (0, {}))
        return period if place in phases and place not in self.unwritten else 0

    def forget(self, number: int) -> None:
        """A tenant is gone."""
        self.unwritten = {place for place in self.unwritten if place[0] != number}

    def clear(self) -> None:
        """What was written stays in force."""
        self._phases.clear()

    def put(self, uuid: str, schedule: Schedule, numbers: dict[str, tuple[int, int]]) -> Generator[None, Any, None]:
        """Write what changed of a GPU's schedule, with places where others may have their turn.

        numbers: of all tenants of the GPU, by the schedule's names.
        """
        kept = {phase.name for phase in schedule.phases}
        for name, (number, index) in numbers.items():
            known = self._known.get(number)
            if name not in kept and known is not None and known.slices[index] == NOT_KNOWN:
                self._phase(number, index, 0, 0, 0)  # of an agent before this one
                yield
        yield from self._put_phases(uuid, schedule, numbers)
        for name, microseconds in schedule.slices:
            if self._slice(*numbers[name], microseconds):
                yield

    def _put_phases(
        self, uuid: str, schedule: Schedule, numbers: dict[str, tuple[int, int]]
    ) -> Generator[None, Any, None]:
        phases = {numbers[phase.name]: (phase.since, phase.until) for phase in schedule.phases}
        period, before = self._phases.get(uuid, (0, {}))
        needed = edges(schedule.period, len(phases))
        if needed > DRIVER_EDGES:
            # Admission refuses at half of that: limits files were written while there was no agent.
            self.tell(
                f"GPU {uuid}: caps of tenants that came or changed are not kept: {len(phases)} tenants with a cap need "
                f"{needed} stops and starts a second, and the driver takes {DRIVER_EDGES}; the plan before, of "
                f"{len(before)} tenants, stays in force"
            )
            return
        if phases:
            self._phases[uuid] = schedule.period, phases
        else:
            self._phases.pop(uuid, None)
        for place in before:
            if place not in phases and place[0] in self._known:
                self._phase(*place, 0, 0, 0)
                yield
        for place, (since, until) in phases.items():
            is_same = period == schedule.period and before.get(place) == (since, until)
            if place[0] in self._known and (not is_same or place in self.unwritten):
                self._phase(*place, schedule.period, since, until)
                yield

    def _phase(self, number: int, gpu: int, period: int, since: int, until: int) -> None:
        try:
            self._guard.phase(number, gpu, period, since, until)
            self.unwritten.discard((number, gpu))
        except OSError as error:
            self.unwritten.add((number, gpu))
            self.tell(f"tenant {number}: its cap is not written: {error}")

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
            self.tell(f"tenant {number}: its timeslice is not written: {error}")
            return True
        known.slices[index] = microseconds
        return True

    def tell(self, text: str) -> None:
        """A problem, once."""
        if text in self._problems:
            return
        if len(self._problems) >= _TOLD:
            self._problems.clear()
        self._problems.add(text)
        self._problem(text)
