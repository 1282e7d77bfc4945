"""Where tenants' on-phases lie in a period, so that no two of a GPU overlap while there is room. Pure."""

from __future__ import annotations

from bisect import bisect

from nvc.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Phase(Record):
    """When a tenant is on, in microseconds of the period; ``until`` may be beyond its end, and goes on at 0 then."""

    name: str
    since: int
    until: int


def lay(lengths: dict[str, int], period: int, before: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """On-phases of one GPU, of which no two overlap as long as caps do not add up to more than the whole.

    lengths: tenant -> microseconds. before: the phases that these come after. Those that overlap, because there is not
    room for all, share the time by their slices. A tenant keeps its place when the others find room beside it; else all
    are laid anew, end to end round the period.
    """
    return _beside(lengths, period, before) or _end_to_end(lengths, period)


def _beside(lengths: dict[str, int], period: int, before: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Phases around those that can stay; () when one finds no room."""
    places: dict[str, Phase] = {}
    ring = _Ring(period)
    for phase in before:
        length = lengths.get(phase.name)
        if length is None or phase.since >= period:
            continue
        kept = Phase(phase.name, phase.since, phase.since + length)
        if ring.has_room(kept):
            ring.put(kept)
            places[phase.name] = kept
    # Where another one ends, there may be room: handing over is as cheap as can be.
    room = _room(tuple(places.values()), period)
    for name, length in lengths.items():
        if name in places:
            continue
        since = next((end for end, free in room.items() if free >= length), -1)
        if since < 0:
            return ()
        places[name] = Phase(name, since, since + length)
        left = room.pop(since) - length
        if left:
            room[(since + length) % period] = left
    return tuple(places[name] for name in lengths)


def _room(phases: tuple[Phase, ...], period: int) -> dict[int, int]:
    """The end of each -> microseconds until another one begins; 0 is an end where there is none."""
    begins = sorted(phase.since for phase in phases)
    after = dict(zip(begins, [*begins[1:], *(begin + period for begin in begins[:1])], strict=True))
    free = {phase.until % period: after[phase.since] - phase.until for phase in phases} or {0: period}
    return {end: length for end, length in free.items() if length}


class _Ring:
    """Phases of one GPU of which no two overlap: of another one, only the two beside it matter."""

    def __init__(self, period: int) -> None:
        self._period = period
        self._begins: list[int] = []
        #: By their begins.
        self.phases: list[Phase] = []

    def has_room(self, phase: Phase) -> bool:
        at = bisect(self._begins, phase.since)
        beside = (self.phases[at - 1], self.phases[at % len(self.phases)]) if self.phases else ()
        return all(_apart(phase, one, self._period) for one in beside)

    def put(self, phase: Phase) -> None:
        """One that there is room for."""
        at = bisect(self._begins, phase.since)
        self._begins.insert(at, phase.since)
        self.phases.insert(at, phase)


def _apart(first: Phase, second: Phase, period: int) -> bool:
    """Whether two phases have no moment in common."""
    after, back = (second.since - first.since) % period, (first.since - second.since) % period
    if after == 0:
        return False
    return first.until - first.since <= after and second.until - second.since <= back


def _end_to_end(lengths: dict[str, int], period: int) -> tuple[Phase, ...]:
    phases, since = [], 0
    for name, length in lengths.items():
        phases.append(Phase(name, since, since + length))
        since = (since + length) % period
    return tuple(phases)


def lay_together(
    lengths: dict[str, dict[str, int]], period: int, before: Mapping[str, tuple[Phase, ...]]
) -> dict[str, tuple[Phase, ...]]:
    """Phases that begin together on all GPUs of a tenant, around those that can stay; else all are laid anew.

    lengths: UUID -> tenant -> microseconds; before: UUID -> the phases that these come after.
    Those with several GPUs are laid first. Where there is no room for all, phases overlap as ``_end_to_end`` has them.
    """
    places: dict[str, list[str]] = {}
    for uuid, found in lengths.items():
        for name in found:
            places.setdefault(name, []).append(uuid)
    order = sorted(places, key=lambda name: -len(places[name]))
    begins = _begins(lengths, places, order, period, before)
    if len(begins) < len(order):
        begins = _begins(lengths, places, order, period, {})
    cursor = 0
    for name in order:
        begins.setdefault(name, cursor)
        cursor = (begins[name] + max(lengths[uuid][name] for uuid in places[name])) % period
    return {
        uuid: tuple(Phase(name, begins[name], begins[name] + length) for name, length in found.items())
        for uuid, found in lengths.items()
    }


def _begins(
    lengths: dict[str, dict[str, int]],
    places: dict[str, list[str]],
    order: list[str],
    period: int,
    before: Mapping[str, tuple[Phase, ...]],
) -> dict[str, int]:
    """Where each begins, of those that find room."""
    last = {uuid: {phase.name: phase.since for phase in before.get(uuid, ())} for uuid in lengths}
    busy = {uuid: _Ring(period) for uuid in lengths}
    begins: dict[str, int] = {}

    def put(name: str, since: int) -> None:
        begins[name] = since
        for uuid in places[name]:
            busy[uuid].put(Phase(name, since, since + lengths[uuid][name]))

    for name in order:
        (since, *others) = {last[uuid].get(name, -1) for uuid in places[name]}
        new = {uuid: Phase(name, since, since + lengths[uuid][name]) for uuid in places[name]}
        if others or not 0 <= since < period:
            continue
        if all(busy[uuid].has_room(phase) for uuid, phase in new.items()):
            put(name, since)
    for name in order:
        if name in begins:
            continue
        taken = [phase for uuid in places[name] for phase in busy[uuid].phases]
        since = _first_room(taken, max(lengths[uuid][name] for uuid in places[name]), period)
        if since >= 0:
            put(name, since)
    return begins


def _first_room(taken: Sequence[Phase], length: int, period: int) -> int:
    """Where so many microseconds of the period are free, from the end of a phase on; -1: nowhere."""
    if not taken:
        return 0
    end = max(phase.until for phase in taken) - period  # of the last one of the period before
    for phase in sorted(taken, key=lambda phase: phase.since):
        if phase.since - end >= length:
            return end % period
        end = max(end, phase.until)
    return -1
