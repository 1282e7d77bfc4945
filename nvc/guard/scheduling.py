"""The schedule of a GPU: timeslices and phases from the shares of its tenants. Pure.

Two levers (gpu-sharing-kernel.md 4.3 to 4.5; measured on an H200):

- The *timeslice* of a channel group. Groups of saturated tenants get time in exact proportion to their slices; the
  hardware gives an idle group's time away. A share, never a cap. A switch between groups costs about 0.215 ms.
- *Freezing* a tenant's channels: off and on phases within a period. A cap, whatever others do.

A tenant with several groups (processes, contexts) has a slice for each, so its slice is divided by their number.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.nearest import did_you_mean
from nvc.base.record import Record
from nvc.guard import service
from nvc.guard.phases import Phase, lay, lay_together
from nvc.share.model import CAP_WHOLE, DEFAULT_WEIGHT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Microseconds in which every tenant has its turn once, and the shortest slice that is worth a switch.
ROUND_US, SHORTEST_US = 10_000, 500
#: A round is as long as this for each group: 5 of 5.215 ms are work; and never longer than the second.
TURN_US, LONGEST_ROUND_US = 5_000, 100_000
#: The longest that hardware was seen to keep (64 ms), and so the longest wait for a single other group.
LONGEST_US = 64_000
#: Slices beside a tenant with high priority: its own, and all others' together. 64 / (64 + 1 + 2 x 0.215) is 97.8 %.
HIGH_US, BESIDE_HIGH_US = 64_000, 1_000
#: No part or multiple of the 200 ms between two of the driver's samples: they find every place of the period in turn,
#: and so of its double, and so on up to MOST_PERIOD_US (nvc.agent.computed).
PERIOD_US = 47_000
#: A period is as long as this for each tenant that has a phase: stopping one and starting another takes 1 ms.
PHASE_US = 4_000
#: The longest period while nothing asks for more: a tenant that is off waits so long. And never longer than the guard
#: takes (native/guard/phase.c).
LONGEST_PERIOD_US, MOST_PERIOD_US = 200_000, 20 * PERIOD_US
#: Edges (a tenant of a GPU is stopped or started) that the driver takes in a second for a GPU: a call of it takes
#: 0.3 to 0.5 ms (gpu-sharing-kernel.md, "takes effect"), and it makes one at a time.
DRIVER_EDGES = 2_000
#: Half of them are planned, and admission refuses what needs more: the rest is for calls that take longer, for tenants
#: with several processes, and for tenants' own calls.
EDGES = DRIVER_EDGES // 2
#: So many edges a period has for each phase, and so many tenants of a GPU can have phases.
EDGES_A_PHASE = 2
MOST_PHASES = EDGES * MOST_PERIOD_US // 1_000_000 // EDGES_A_PHASE
#: A switch from a group to another (measured on an H200).
SWITCH_US = 215
#: Where a phase has to be long enough for two rounds: the slice for which the period is made longer than
#: LONGEST_PERIOD_US (82 % are work), and the shortest (70 %), below which the tenant with the small cap may miss turns.
IN_PHASE_US, SHORTEST_IN_PHASE_US = 1_000, SHORTEST_US
#: libcuda's own timeslice.
OWN_US = 2048
#: cGPU's policies by number: /proc/cgpu_km/N/policy.
POLICIES = ("fair", "preemptive", "weighted", "fixed", "soft", "native")


class Tenant(Record):
    """One tenant on one GPU.

    weight: 1 to 1000, 0: not said. cap: 1/1000 of the GPU's time, 1000: none. priority: of nvc.share.model.PRIORITIES.
    groups: live compute groups. Of a service: latency, the microseconds that it waits at most; use, what it does now
    (nvc.guard.service.ServiceUse); is_measured, whether that is by samples.
    """

    name: str
    weight: int = 0
    cap: int = CAP_WHOLE
    priority: str = "normal"
    groups: int = 0
    paused: bool = False
    latency: int = 0
    use: str = ""
    is_measured: bool = False


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
    word = dict(zip("012345", POLICIES, strict=True)).get(text, text)
    if word not in POLICIES:
        named = ", ".join(f"{number} {name}" for number, name in enumerate(POLICIES))
        hint = did_you_mean(text, POLICIES, otherwise=f"policies: {named}")
        raise InputError(f"scheduling policy: {text[:40]!r} is none", hint=hint)
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
    period: microseconds of one on-and-off; it is doubled for many tenants with a cap (``edges``), and for small caps
    beside tenants that have none. before: the phases of the schedule that this one comes after: tenants stay where they
    are in the period if they can.
    """
    active = _active(tenants, policy, slots)
    turns = _round(active, period)
    return _schedule(tenants, active, policy, turns, lay(_lengths(active, turns.period), turns.period, before))


def decide_all(
    tenants: Mapping[str, tuple[Tenant, ...]],
    policies: Mapping[str, str],
    slots: int = 16,
    period: int = PERIOD_US,
    before: Mapping[str, tuple[Phase, ...]] | None = None,
) -> dict[str, Schedule]:
    """The schedules of GPUs, by UUID, as ``decide`` has that of one.

    A tenant with phases on several GPUs is on at the same time on all of them, for a job that has a part on each goes
    on while all of them do: GPUs that such tenants connect have one period, and its phases begin together there.
    """
    before = before or {}
    active = {uuid: _active(found, policies[uuid], slots) for uuid, found in tenants.items()}
    made = {}
    for uuids in _connected(active):
        if len(uuids) == 1:
            (uuid,) = uuids
            made[uuid] = decide(tenants[uuid], policies[uuid], slots, period, before.get(uuid, ()))
            continue
        common = max(_round(active[uuid], period).period for uuid in uuids)
        phases = lay_together({uuid: _lengths(active[uuid], common) for uuid in uuids}, common, before)
        for uuid in uuids:
            turns = _round(active[uuid], common)
            made[uuid] = _schedule(tenants[uuid], active[uuid], policies[uuid], turns, phases[uuid])
    return made


def _active(tenants: tuple[Tenant, ...], policy: str, slots: int) -> tuple[Tenant, ...]:
    return tuple(_by_policy(tenant, policy, slots) for tenant in tenants if not tenant.paused)


def _schedule(
    tenants: tuple[Tenant, ...],
    active: tuple[Tenant, ...],
    policy: str,
    turns: _Round,
    phases: tuple[Phase, ...],
) -> Schedule:
    frozen = tuple(tenant.name for tenant in tenants if tenant.paused)
    if policy == "native":
        return Schedule(tuple((tenant.name, 0) for tenant in active), (), frozen, turns.period)
    return Schedule(_slices(active, turns), phases, frozen, turns.period)


def expected(tenants: tuple[Tenant, ...], schedule: Schedule) -> dict[str, float]:
    """Which part of the time, 0 to 1, each tenant gets while all of them have work all the time; switching left out.

    A tenant with a phase shares it with those that have none, by slices; these share what is left. Beside services it
    is by weight: they get no more than that over some seconds.
    """
    slices = dict(schedule.slices)
    groups = {tenant.name: tenant.groups for tenant in tenants}
    if any(tenant.latency and tenant.groups for tenant in tenants) and any(slices.values()):
        slices = {tenant.name: round(OWN_US * _weight(tenant.replace(use=""))) for tenant in tenants}
        groups = {name: min(1, count) for name, count in groups.items()}
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


def waits(tenants: tuple[Tenant, ...], schedule: Schedule) -> dict[str, tuple[int, str]]:
    """Service with groups -> (microseconds that it waits at most, how it is served: ``nvc.guard.service.STATES``)."""
    given, live = dict(schedule.slices), [tenant for tenant in tenants if tenant.groups and not tenant.paused]
    found = {}
    for tenant in live:
        if tenant.latency:
            bound = service.waits(tenant.name, live, given, OWN_US)
            found[tenant.name] = bound, service.state(tenant, live, bound)
    return found


def service_bounds(tenants: tuple[Tenant, ...]) -> dict[str, int]:
    """Service -> the shortest wait in microseconds that can be kept beside the others, each with a group at least."""
    return service.shortest_bounds(tenants, {tenant.name: _weight(tenant) for tenant in tenants})


def edges(period: int, phases: int) -> int:
    """How many times a second tenants of a GPU are stopped or started, by microseconds of a period and its phases."""
    return -(-EDGES_A_PHASE * phases * 1_000_000 // period)


def lost(tenants: tuple[Tenant, ...], schedule: Schedule) -> float:
    """Which part of the time, 0 to 1, goes into switches while every tenant has work all the time."""
    slices = dict(schedule.slices)
    live = [(slices.get(tenant.name, 0) or OWN_US, tenant.groups) for tenant in tenants if tenant.groups]
    switches = sum(groups for _, groups in live)
    if switches < 2:
        return 0.0
    mean = sum(length * groups for length, groups in live) / switches
    return SWITCH_US / (mean + SWITCH_US)


class _Round(Record):
    """period: microseconds. longest: of a round. groups, weight: of those that are on at a time, at most."""

    period: int
    longest: int
    groups: int
    weight: float


def _round(tenants: tuple[Tenant, ...], period: int) -> _Round:
    """How long a period has to be, and a round may be.

    A tenant that is on for a part of the period must have a turn in it: where several can be on at a time, the shortest
    phase is two rounds.
    """
    live = [tenant for tenant in tenants if tenant.groups]
    caps = [tenant.cap for tenant in tenants if tenant.cap < CAP_WHOLE]
    free = [tenant for tenant in live if tenant.cap >= CAP_WHOLE]
    shortest = min((tenant.cap for tenant in live if tenant.cap < CAP_WHOLE), default=CAP_WHOLE)
    together = shortest < CAP_WHOLE and (bool(free) or sum(caps) > CAP_WHOLE)
    groups, weight = _on_together(live, -(-sum(caps) // CAP_WHOLE) if together else len(live))
    needed = 2 * groups * CAP_WHOLE // shortest if together else 0
    while period < max(PHASE_US * len(caps), TURN_US * needed) and period * 2 <= LONGEST_PERIOD_US:
        period *= 2
    while period < MOST_PERIOD_US and (edges(period, len(caps)) > EDGES or period < IN_PHASE_US * needed):
        period = min(period * 2, MOST_PERIOD_US)
    longest = period * shortest // CAP_WHOLE // 2 if together else LONGEST_ROUND_US
    return _Round(period, longest, groups, weight)


def _on_together(live: list[Tenant], phases: int) -> tuple[int, float]:
    """Groups and weight of the tenants that are on at a time, where so many phases overlap: the largest."""
    free = [tenant for tenant in live if tenant.cap >= CAP_WHOLE]
    capped = [tenant for tenant in live if tenant.cap < CAP_WHOLE]
    groups = sorted((tenant.groups for tenant in capped), reverse=True)[:phases]
    weights = sorted(map(_weight, capped), reverse=True)[:phases]
    return sum(tenant.groups for tenant in free) + sum(groups), sum(map(_weight, free)) + sum(weights)


def _slices(tenants: tuple[Tenant, ...], turns: _Round) -> tuple[tuple[str, int], ...]:
    """Slices of tenants that compute; 0 for a tenant that is alone, and for one that has nothing to give a slice to."""
    live = [tenant for tenant in tenants if tenant.groups]
    if len(live) < 2:
        return tuple((tenant.name, 0) for tenant in tenants)
    weights = {tenant.name: _weight(tenant) for tenant in live}
    most = service.SERVICE_US if turns.longest >= LONGEST_ROUND_US else turns.longest // 2
    beside_high = any(tenant.priority == "high" for tenant in live)
    whole = service.slices(live, weights, most)
    if whole is None:
        whole = _beside_high(live, turns.longest) if beside_high else _proportional(live, turns)
    return tuple((tenant.name, whole.get(tenant.name, 0)) for tenant in tenants)


def _weight(tenant: Tenant) -> float:
    part = service.GIVES_BACK if tenant.use == service.OVER else 0.5 if tenant.priority == "low" else 1
    return (tenant.weight or DEFAULT_WEIGHT) * part


def _proportional(live: list[Tenant], turns: _Round) -> dict[str, int]:
    # Per group, of a round of those that are on at a time; it is made longer when switching would take too much of it,
    # or a slice would not be worth the switch, as far as waiting allows.
    parts = {tenant.name: _weight(tenant) / turns.weight / tenant.groups for tenant in live}
    wanted = max(ROUND_US, min(TURN_US * turns.groups, LONGEST_ROUND_US))
    length = min(max(wanted, SHORTEST_US / min(parts.values())), LONGEST_US / max(parts.values()))
    if turns.longest < LONGEST_ROUND_US:
        length = min(length, turns.longest)
    return {name: max(_least(turns.longest), round(length * part)) for name, part in parts.items()}


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


def _lengths(tenants: tuple[Tenant, ...], period: int) -> dict[str, int]:
    return {tenant.name: period * tenant.cap // CAP_WHOLE for tenant in tenants if tenant.cap < CAP_WHOLE}


def _connected(active: Mapping[str, tuple[Tenant, ...]]) -> list[list[str]]:
    """The GPUs in groups: two that a tenant has phases on are in one."""
    group = {uuid: [uuid] for uuid in active}
    first: dict[str, str] = {}
    for uuid, tenants in active.items():
        for tenant in tenants:
            if tenant.cap >= CAP_WHOLE:
                continue
            other = group[first.setdefault(tenant.name, uuid)]
            if other is group[uuid]:
                continue
            other += group[uuid]
            for one in group[uuid]:
                group[one] = other
    return list({id(uuids): uuids for uuids in group.values()}.values())
