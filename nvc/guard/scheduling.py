"""The schedule of a GPU: timeslices and phases from the shares of its tenants. Pure.

Two levers (gpu-sharing-kernel.md 4.3 to 4.5; measured on an H200):

- The *timeslice* of a channel group. Groups of saturated tenants get time in exact proportion to their slices; the
  hardware gives an idle group's time away. A share, never a cap. A switch between groups costs about 0.215 ms.
- *Freezing* a tenant's channels: off and on phases within a period. A cap, whatever others do.

A tenant with several groups (processes, contexts) has a slice for each, so its slice is divided by their number.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.record import Record
from nvc.share.model import CAP_WHOLE

#: Microseconds in which every tenant has its turn once, and the shortest slice that is worth a switch.
ROUND_US, SHORTEST_US = 10_000, 500
#: A round is as long as this for each group: 5 of 5.215 ms are work; and never longer than the second.
TURN_US, LONGEST_ROUND_US = 5_000, 100_000
#: The longest that hardware was seen to keep (64 ms), and so the longest wait for a single other group.
LONGEST_US = 64_000
#: Slices beside a tenant with high priority: its own, and all others' together. 64 / (64 + 1 + 2 x 0.215) is 97.8 %.
HIGH_US, BESIDE_HIGH_US = 64_000, 1_000
PERIOD_US = 50_000
#: A period is as long as this for each tenant that has a phase: stopping one and starting another takes 1 ms.
PHASE_US = 4_000
#: The longest period: a tenant that is off waits so long. Longer only where it has no room for all tenants' calls,
#: and never longer than the guard takes (guard.h).
LONGEST_PERIOD_US, MOST_PERIOD_US = 200_000, 1_000_000
#: That much of a period each tenant with a phase needs at the least: both its calls, and half of the time for delays.
CALLS_US = 2_000
#: So many tenants of a GPU can have phases: with more, the thread that stops and starts them would do nothing else.
MOST_PHASES = MOST_PERIOD_US // CALLS_US
#: The shortest slice where a phase has to be long enough for two rounds.
SHORTEST_IN_PHASE_US = 250
DEFAULT_WEIGHT = 10
#: libcuda's own timeslice.
OWN_US = 2048
#: cGPU's policies by number: /proc/cgpu_km/N/policy.
POLICIES = ("fair", "preemptive", "weighted", "fixed", "soft", "native")


class Tenant(Record):
    """One tenant on one GPU.

    weight: 1 to 1000, 0: not said. cap: 1/1000 of the GPU's time, 1000: none. priority: "low", "normal", "high".
    groups: live compute groups.
    """

    name: str
    weight: int = 0
    cap: int = CAP_WHOLE
    priority: str = "normal"
    groups: int = 0
    paused: bool = False


class Phase(Record):
    """When a tenant is on, in microseconds of the period; ``until`` may be beyond its end, and goes on at 0 then."""

    name: str
    since: int
    until: int


class Schedule(Record):
    """slices: (tenant, microseconds for each of its groups; 0: libcuda's own). phases: of tenants with a cap.

    frozen: tenants that are off until something changes.
    """

    slices: tuple[tuple[str, int], ...]
    phases: tuple[Phase, ...]
    frozen: tuple[str, ...] = ()
    period: int = PERIOD_US


def parse_policy(text: str) -> str:
    """A policy by cGPU's number or by name. Raises InputError."""
    word = POLICIES[int(text)] if text.isascii() and text.isdigit() and int(text) < len(POLICIES) else text
    if word not in POLICIES:
        named = ", ".join(f"{number} {name}" for number, name in enumerate(POLICIES))
        raise InputError(f"scheduling policy: {text!r} is none", hint=f"policies: {named}")
    return word


def decide(
    tenants: tuple[Tenant, ...],
    policy: str = "weighted",
    slots: int = 16,
    period: int = PERIOD_US,
    before: tuple[Phase, ...] = (),
) -> Schedule:
    """The schedule that holds until tenants, groups or shares change.

    policy: of POLICIES. slots: how many tenants "fair" divides a GPU among, present or not (cGPU's max_inst).
    period: microseconds of one on-and-off; it is doubled for many tenants with a cap, and for small caps beside tenants
    that have none. before: the phases of the schedule that this one comes after: tenants stay where they are in the
    period if they can.
    """
    frozen = tuple(tenant.name for tenant in tenants if tenant.paused)
    active = tuple(_by_policy(tenant, policy, slots) for tenant in tenants if not tenant.paused)
    if policy == "native":
        return Schedule(tuple((tenant.name, 0) for tenant in active), (), frozen, period)
    period, longest = _period_and_round(active, period)
    return Schedule(_slices(active, longest), _phases(active, period, before), frozen, period)


def expected(tenants: tuple[Tenant, ...], schedule: Schedule) -> dict[str, float]:
    """Which part of the time, 0 to 1, each tenant gets while all of them have work all the time; switching left out.

    A tenant with a phase shares it with those that have none, by slices; these share what is left.
    """
    slices = dict(schedule.slices)
    groups = {tenant.name: tenant.groups for tenant in tenants}
    parts = {name: (slices.get(name, 0) or OWN_US) * count for name, count in groups.items()}
    phased = {phase.name: (phase.until - phase.since) / schedule.period for phase in schedule.phases}
    free = sum(parts[name] for name in parts if name not in phased and name not in schedule.frozen)
    got = dict.fromkeys(parts, 0.0)
    for name, length in phased.items():
        if parts[name]:
            got[name] = length * parts[name] / (parts[name] + free)
    total = sum(got.values())
    if total > 1:
        got = {name: part / total for name, part in got.items()}
    for name, part in parts.items():
        if part and name not in phased and name not in schedule.frozen:
            got[name] = max(0.0, 1 - total) * part / free
    return got


def _by_policy(tenant: Tenant, policy: str, slots: int) -> Tenant:
    if policy == "fair":
        return tenant.replace(weight=0, cap=min(tenant.cap, max(1, CAP_WHOLE // max(1, slots))))
    if policy == "preemptive":
        return tenant.replace(weight=0, cap=CAP_WHOLE)
    if policy in ("soft", "native"):
        return tenant.replace(cap=CAP_WHOLE)
    return tenant


def _period_and_round(tenants: tuple[Tenant, ...], period: int) -> tuple[int, int]:
    """How long a period has to be, and a round may be, in microseconds.

    A tenant that is on for a part of the period must have a turn in it: where several can be on at a time, the shortest
    phase is two rounds.
    """
    live = [tenant for tenant in tenants if tenant.groups]
    caps = [tenant.cap for tenant in tenants if tenant.cap < CAP_WHOLE]
    shortest = min((tenant.cap for tenant in live if tenant.cap < CAP_WHOLE), default=CAP_WHOLE)
    together = shortest < CAP_WHOLE and (any(tenant.cap >= CAP_WHOLE for tenant in live) or sum(caps) > CAP_WHOLE)
    wanted = PHASE_US * len(caps)
    if together:
        wanted = max(wanted, 2 * TURN_US * sum(tenant.groups for tenant in live) * CAP_WHOLE // shortest)
    while period < wanted and period * 2 <= LONGEST_PERIOD_US:
        period *= 2
    while period < CALLS_US * len(caps) and period * 2 <= MOST_PERIOD_US:
        period *= 2
    return period, period * shortest // CAP_WHOLE // 2 if together else LONGEST_ROUND_US


def _slices(tenants: tuple[Tenant, ...], longest: int) -> tuple[tuple[str, int], ...]:
    """Slices of tenants that compute; 0 for a tenant that is alone, and for one that has nothing to give a slice to.

    longest: microseconds that a round may have.
    """
    live = [tenant for tenant in tenants if tenant.groups]
    if len(live) < 2:
        return tuple((tenant.name, 0) for tenant in tenants)
    beside_high = any(tenant.priority == "high" for tenant in live)
    whole = _beside_high(live, longest) if beside_high else _proportional(live, longest)
    return tuple((tenant.name, whole.get(tenant.name, 0)) for tenant in tenants)


def _weight(tenant: Tenant) -> float:
    return (tenant.weight or DEFAULT_WEIGHT) * (0.5 if tenant.priority == "low" else 1)


def _proportional(live: list[Tenant], longest: int) -> dict[str, int]:
    total = sum(_weight(tenant) for tenant in live)
    # Per group; a round is made longer when switching would take too much of it, or a slice would not be worth
    # the switch, as far as waiting allows.
    parts = {tenant.name: _weight(tenant) / total / tenant.groups for tenant in live}
    turns = max(ROUND_US, min(TURN_US * sum(tenant.groups for tenant in live), LONGEST_ROUND_US))
    length = min(max(turns, SHORTEST_US / min(parts.values())), LONGEST_US / max(parts.values()))
    if longest < LONGEST_ROUND_US:
        length = min(length, longest)
    return {name: max(_least(longest), round(length * part)) for name, part in parts.items()}


def _beside_high(live: list[Tenant], longest: int) -> dict[str, int]:
    high = [tenant for tenant in live if tenant.priority == "high"]
    rest = [tenant for tenant in live if tenant.priority != "high"]
    groups = sum(tenant.groups for tenant in rest)
    beside = BESIDE_HIGH_US
    if all(tenant.cap < CAP_WHOLE for tenant in high):
        # While these are off, the others are among themselves.
        beside = max(beside, min(TURN_US * groups, longest))
    slices = _share(
        high, HIGH_US * len(high) if longest >= LONGEST_ROUND_US else max(longest - beside, longest // 2), longest
    )
    slices.update(_share(rest, beside, longest))
    return slices


def _least(longest: int) -> int:
    return SHORTEST_IN_PHASE_US if longest < LONGEST_ROUND_US else 1


def _share(tenants: list[Tenant], length: int, longest: int) -> dict[str, int]:
    total = sum(_weight(tenant) for tenant in tenants)
    return {
        tenant.name: min(LONGEST_US, max(_least(longest), round(length * _weight(tenant) / total / tenant.groups)))
        for tenant in tenants
    }


def _phases(tenants: tuple[Tenant, ...], period: int, before: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """On-phases of which no two overlap, as long as caps do not add up to more than the whole.

    Those that do, because there is not room for all, share the time by their slices. A tenant keeps its place when
    the others find room beside it; else all are laid anew, end to end round the period.
    """
    lengths = {tenant.name: period * tenant.cap // CAP_WHOLE for tenant in tenants if tenant.cap < CAP_WHOLE}
    return _beside(lengths, period, before) or _end_to_end(lengths, period)


def _beside(lengths: dict[str, int], period: int, before: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Phases around those that can stay; () when one finds no room."""
    places: dict[str, Phase] = {}
    for phase in before:
        length = lengths.get(phase.name)
        if length is None or phase.since >= period:
            continue
        kept = Phase(phase.name, phase.since, phase.since + length)
        if all(_apart(kept, other, period) for other in places.values()):
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
