"""Who computes when on a GPU: from tenants' wishes to timeslices and phases. Pure.

Two levers (specification of GPU sharing in the kernel, 4.3 to 4.5; measured on an H200):

- The *timeslice* of a channel group. Groups of saturated tenants get time in exact proportion to their slices; the
  hardware gives an idle group's time away. A share, never a cap. A switch between groups costs about 0.215 ms.
- *Freezing* a tenant's channels: off and on phases within a period. A cap, whatever others do.

A tenant with several groups (processes, contexts) has a slice for each, so its slice is divided by their number.
"""

from __future__ import annotations

from nvc.errors import InputError
from nvc.record import Record

#: Microseconds in which every tenant has its turn once, and the shortest slice that is worth a switch.
ROUND_US, SHORTEST_US = 10_000, 500
#: The longest that hardware was seen to keep (64 ms), and so the longest anybody waits for a single other group.
LONGEST_US = 64_000
#: Slices beside a tenant with high priority: its own, and all others' together. 64 / (64 + 1 + 2 x 0.215) is 97.8 %.
HIGH_US, BESIDE_HIGH_US = 64_000, 1_000
PERIOD_US = 50_000
DEFAULT_WEIGHT = 10
#: cGPU's policies by number: /proc/cgpu_km/N/policy.
POLICIES = ("fair", "preemptive", "weighted", "fixed", "soft", "native")
WHOLE = 1000


class Tenant(Record):
    """One tenant on one GPU.

    weight: 1 to 1000, 0: not said. cap: 1/1000 of the GPU's time, 1000: none. priority: "low", "normal", "high".
    groups: live compute groups.
    """

    name: str
    weight: int = 0
    cap: int = WHOLE
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


def decide(tenants: tuple[Tenant, ...], policy: str = "weighted", slots: int = 16, period: int = PERIOD_US) -> Schedule:
    """What holds until tenants, groups or wishes change.

    policy: of POLICIES. slots: how many tenants "fair" divides a GPU among, present or not (cGPU's max_inst).
    period: microseconds of one on-and-off.
    """
    frozen = tuple(tenant.name for tenant in tenants if tenant.paused)
    wished = tuple(_by_policy(tenant, policy, slots) for tenant in tenants if not tenant.paused)
    if policy == "native":
        return Schedule(tuple((tenant.name, 0) for tenant in wished), (), frozen, period)
    return Schedule(_slices(wished), _phases(wished, period), frozen, period)


def _by_policy(tenant: Tenant, policy: str, slots: int) -> Tenant:
    if policy == "fair":
        return tenant.replace(weight=0, cap=min(tenant.cap, max(1, WHOLE // max(1, slots))))
    if policy == "preemptive":
        return tenant.replace(weight=0, cap=WHOLE)
    if policy in ("soft", "native"):
        return tenant.replace(cap=WHOLE)
    return tenant


def _slices(tenants: tuple[Tenant, ...]) -> tuple[tuple[str, int], ...]:
    """Slices of tenants that compute; 0 for a tenant that is alone, and for one that has nothing to give a slice to."""
    live = [tenant for tenant in tenants if tenant.groups]
    if len(live) < 2:
        return tuple((tenant.name, 0) for tenant in tenants)
    whole = _beside_high(live) if any(tenant.priority == "high" for tenant in live) else _proportional(live)
    return tuple((tenant.name, whole.get(tenant.name, 0)) for tenant in tenants)


def _weight(tenant: Tenant) -> float:
    return (tenant.weight or DEFAULT_WEIGHT) * (0.5 if tenant.priority == "low" else 1)


def _proportional(live: list[Tenant]) -> dict[str, int]:
    total = sum(_weight(tenant) for tenant in live)
    # Per group; a round is made longer when somebody's slice would not be worth the switch, as far as waiting allows.
    parts = {tenant.name: _weight(tenant) / total / tenant.groups for tenant in live}
    length = min(max(ROUND_US, SHORTEST_US / min(parts.values())), LONGEST_US / max(parts.values()))
    return {name: max(1, round(length * part)) for name, part in parts.items()}


def _beside_high(live: list[Tenant]) -> dict[str, int]:
    high = [tenant for tenant in live if tenant.priority == "high"]
    rest = [tenant for tenant in live if tenant.priority != "high"]
    slices = _share(high, HIGH_US * len(high))
    slices.update(_share(rest, BESIDE_HIGH_US))
    return slices


def _share(tenants: list[Tenant], length: int) -> dict[str, int]:
    total = sum(_weight(tenant) for tenant in tenants)
    return {
        tenant.name: min(LONGEST_US, max(1, round(length * _weight(tenant) / total / tenant.groups)))
        for tenant in tenants
    }


def _phases(tenants: tuple[Tenant, ...], period: int) -> tuple[Phase, ...]:
    """On-phases laid end to end round the period: as long as caps do not add up to more than the whole, no two overlap.

    Those that do, because there is not room for all, share the time by their slices.
    """
    phases, since = [], 0
    for tenant in tenants:
        if tenant.cap >= WHOLE:
            continue
        length = period * tenant.cap // WHOLE
        phases.append(Phase(tenant.name, since, since + length))
        since = (since + length) % period
    return tuple(phases)
