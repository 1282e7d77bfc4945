"""Slices beside services: tenants that wait for the GPU no longer than their latency. Pure.

While a service has work, each group of the others has a slice so short that all of them, with a switch for each and
the one away from the service, are over within the service's latency; the service itself has the longest slice. When it
has none, or has computed for more than its part, slices are by weight, as without services. A tenant that has no work
costs nothing at any slice, so short slices cost only while a service and others compute; and where the others have one
group in all, nothing at all else.

A service's time is its own: the others' reservations hold, for a service that computed more than its part by weight
gives it back (``ServiceUse``).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvc.guard.scheduling import Tenant

#: The shortest slice beside a service; in 1 us nothing is computed at all. A single group beside one that is served
#: first has it: what a neighbour keeps is computed while the service has no work, so beside one of 30 % load it was the
#: same with slices of 50 to 1000 us (one H100, docs/measured/h100-580-driver.md). And the usual one of each of several
#: groups, which switch between themselves as well.
LEAST_US, SHORT_US = 50, 100
#: A switch, for a bound: 0.21 to 0.23 ms on an H100. And the one away from a service that has run out of work, which
#: interrupts no kernel: 0.084 ms by the driver's trace. A request that comes meanwhile waits for it as well.
SWITCH_US, AWAY_US = 230, 90
#: A service's own slice while it is served first: the longest that hardware keeps.
SERVICE_US = 64_000
#: How a service is served now. SERVED: first. IDLE: by weight, for it has had no work for a while. OVER: by weight,
#: and with less of it, for it computed more than its part. CROWDED: first, but beside too many groups for its latency.
STATES = SERVED, IDLE, OVER, CROWDED = ("served", "idle", "over", "crowded")


def slices(live: Sequence[Tenant], weights: Mapping[str, float], most: int = SERVICE_US) -> dict[str, int] | None:
    """Microseconds for each group of tenants that have groups; None: no service is served first.

    weights: of all of them. most: the longest that a slice may be.
    """
    first = [tenant for tenant in live if is_first(tenant, live)]
    if not first or len(live) < 2:
        return None
    rest = [tenant for tenant in live if tenant not in first]
    budget = _budget(first, live)
    if len(first) > 1 and rest and all(tenant.is_measured for tenant in first):
        # They wait for each other, too: all that the others can do without is theirs.
        found = _share(rest, 0, weights, most)
        return found | _share(first, budget - _total(rest, found), weights, most)
    if len(first) > 1:
        return _share(live, budget, weights, most)
    (one,) = first
    if one.is_measured:
        groups = sum(tenant.groups for tenant in rest)
        usual = SHORT_US * groups if groups > 1 else LEAST_US
        return _share(rest, min(budget, usual), weights, most) | {one.name: most}
    # Without samples nothing would tell that it computed more than its part, so its slice is by weight as well, and all
    # are as long as its latency allows.
    found = _share(rest, budget, weights, most)
    by_weight = _total(rest, found) * weights[one.name] / sum(weights[tenant.name] for tenant in rest) / one.groups
    return found | {one.name: min(most, max(LEAST_US, round(by_weight)))}


def is_first(tenant: Tenant, live: Sequence[Tenant]) -> bool:
    """Whether it is served before the others now."""
    if not tenant.latency or tenant.use == OVER:
        return False
    return tenant.use != IDLE or sum(one.groups for one in live if one.name != tenant.name) < 2


def waits(name: str, live: Sequence[Tenant], given: Mapping[str, int], own_us: int) -> int:
    """Microseconds after which each group of the others has had its turn. given: slices; own_us: for 0."""
    turns = sum(one.groups * ((given.get(one.name, 0) or own_us) + SWITCH_US) for one in live if one.name != name)
    return turns + AWAY_US if turns else 0


def state(tenant: Tenant, live: Sequence[Tenant], bound: int) -> str:
    """Of STATES, for a service with this bound."""
    if not is_first(tenant, live):
        return tenant.use
    return CROWDED if bound > tenant.latency else SERVED


def shortest_bounds(tenants: Sequence[Tenant], weights: Mapping[str, float]) -> dict[str, int]:
    """Service -> the shortest wait that can be kept beside the others, each with its groups, and one at least."""
    found: dict[str, int] = {}
    for is_measured in (True, False):
        of_each = {"use": "", "is_measured": is_measured}
        there = [one.replace(groups=max(1, one.groups), latency=min(1, one.latency), **of_each) for one in tenants]
        given = slices(there, weights) or {}
        for one in there:
            if one.latency:
                found[one.name] = max(found.get(one.name, 0), waits(one.name, there, given, LEAST_US))
    return found


def _budget(first: Sequence[Tenant], live: Sequence[Tenant]) -> int:
    """What all groups but those of one service may have of a round, without the switches to them."""
    groups = sum(tenant.groups for tenant in live)
    return min(one.latency - AWAY_US - SWITCH_US * (groups - one.groups) for one in first)


def _share(tenants: Sequence[Tenant], length: int, weights: Mapping[str, float], most: int) -> dict[str, int]:
    """Slices in proportion to weights; longer in all where the shortest would be under LEAST_US, none above most."""
    total = sum(weights[tenant.name] for tenant in tenants)
    parts = {tenant.name: weights[tenant.name] / total / tenant.groups for tenant in tenants}
    length = min(max(length, round(LEAST_US / min(parts.values()))), round(most / max(parts.values())))
    return {name: max(LEAST_US, int(length * part)) for name, part in parts.items()}


def _total(tenants: Sequence[Tenant], given: Mapping[str, int]) -> int:
    return sum(given[tenant.name] * tenant.groups for tenant in tenants)


#: Nanoseconds: of samples before they count; without work for so long it is idle; for so long a hint is believed.
LEAST_SAMPLES_NS, IDLE_NS, HINT_NS = 1_500_000_000, 10_000_000_000, 10_000_000_000
#: Of the time between two answers: less is what the division of the window before changed by.
LEAST_WORK = 0.01
#: Nanoseconds that a service may have computed beyond its part before it gives them back, and that it gives back at
#: most. Without a trace of context switches a sample decides on 200 ms: by chance one at half of its part comes there
#: in one of a thousand samples.
MOST_AHEAD_NS, MOST_OWED_NS = 600_000_000, 1_000_000_000
#: What is left of the weight of a service that gives time back.
GIVES_BACK = 0.5
#: What a hint says.
HINTS = SOON, DONE = ("soon", "done")


class ServiceUse:
    """What a service did, by its computed time and by hints. Times are nanoseconds of CLOCK_MONOTONIC.

    What it computed beyond its part is owed to the others: they may not have wanted it, so it is never much. Beyond
    MOST_AHEAD_NS the service has less than its part until nothing is owed.
    """

    def __init__(self, now: int) -> None:
        self._first = self._last = self._computed = -1
        self._owed = 0.0
        self._worked = now
        self._done = 0  # when a hint said so
        self._is_over = False
        self.is_measured = False

    def sampled(self, now: int, computed_ns: int | None, target: float) -> None:
        """computed_ns: in all, None: not measured now. target: its part while all have work, 0 to 1."""
        if computed_ns is None:
            self._last, self._owed, self._worked = -1, 0.0, now  # nothing says that it is idle
            self.is_measured = self._is_over = False
            return
        if self._last < 0 or computed_ns < self._computed:
            self._first, self._last, self._computed = now, now, computed_ns
            return
        got, passed = computed_ns - self._computed, max(0, now - self._last)
        self._last, self._computed = now, computed_ns
        if got > LEAST_WORK * passed:
            self._worked = now
        self._owed = min(max(0.0, self._owed + got - target * passed), MOST_OWED_NS)
        self._is_over = self._owed > (0 if self._is_over else MOST_AHEAD_NS)
        self.is_measured = now - self._first >= LEAST_SAMPLES_NS

    def called(self, when: int) -> None:
        """It called the driver: it starts or ends something."""
        if when > self._done:
            self._worked = max(self._worked, when)

    def hint(self, word: str, now: int) -> None:
        """Of HINTS: work comes soon; there is none now."""
        self._worked = now + HINT_NS - IDLE_NS if word == SOON else now - IDLE_NS - 1
        self._done = now if word == DONE else 0

    def use(self, now: int) -> str:
        """IDLE, OVER or ""."""
        if self._is_over:
            return OVER
        return IDLE if now - self._worked > IDLE_NS else ""
