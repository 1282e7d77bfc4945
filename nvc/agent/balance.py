"""Node balance: whether all memory that a GPU has in use is charged to a tenant or reported for a process of none.

What is not is memory that got past the guard's rules, whichever way: a last line, for ways that are not known. Pure.
"""

from __future__ import annotations

from collections import deque

from nvc.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvc.guard.usage import GpuUsage

#: Bytes in use that are neither charged nor reported, of an honest GPU at the most: so much, and so much for each
#: process, but no more than the process has. Chosen; to be measured on a GPU with ten honest processes.
TOLERANCE, PER_PROCESS = 64 << 20, 16 << 20
#: Nanoseconds above that until it is said; until something is done. Ledgers and the driver's numbers are some
#: hundred milliseconds apart: of a tenant that allocates and frees all the time, single differences say nothing.
SAY_NS, ACT_NS = 1_000_000_000, 3_000_000_000
#: A tenant is looked at after the driver answered: calls since the answer before may be in that look already.
_SEEN = 2


class Sight(Record):
    """A tenant on a GPU. charged: bytes of its ledger, at most its quota. reported: process -> bytes, by the driver.

    notifications, continued: calls, since it came. has_uvm: whether UVM's node is among its own.
    groups: compute groups.
    """

    number: int
    charged: int
    reported: dict[int, int]
    notifications: int
    continued: int
    has_uvm: bool
    groups: int = 0


class Finding(Record):
    """unaccounted: bytes, below 0: none. bound: what is allowed. lasts_ns: for how long it is above, 0: it is not.

    tenant: which it is most likely, 0: not known. is_certain: it can be no other.
    """

    unaccounted: int
    bound: int
    lasts_ns: int = 0
    tenant: int = 0
    is_certain: bool = False

    @property
    def is_said(self) -> bool:
        return self.lasts_ns > SAY_NS

    @property
    def is_acted_upon(self) -> bool:
        return self.lasts_ns > ACT_NS and self.is_certain


class Balance:
    """Of one GPU, from one answer of the driver to the next."""

    def __init__(self) -> None:
        #: What is in use without a tenant, and reported for no process.
        self._idle: int | None = None
        self._since = 0
        self._unaccounted = 0
        #: What was seen of tenants last, newest first.
        self._seen: deque[dict[int, Sight]] = deque(maxlen=_SEEN)
        #: (tenant, bytes): to which tenant each growth was put down, oldest first.
        self._growths: list[tuple[int, int]] = []
        #: Since when the driver reports more of a tenant's processes than may be. The only tenant or 0, since when.
        self._beyond: dict[int, int] = {}
        self._alone = 0, 0

    def update(self, gpu: GpuUsage, tenants: Sequence[Sight], outside: Mapping[int, int]) -> Finding:
        """outside: bytes that the driver reports of processes of no tenant."""
        before = self._seen[0] if self._seen else {}
        # What was charged at either look: the driver was asked between the two.
        charged = {one.number: max(one.charged, _charged(before, one.number)) for one in tenants}
        rest = gpu.used - sum(charged.values()) - sum(outside.values())
        if not tenants:  # one that is charged nothing, and of which nothing is reported, can hold memory
            self._idle = rest
        elif self._idle is None:
            self._idle = gpu.idle
        unaccounted = rest - self._idle
        every = [*outside.values(), *(own for sight in tenants for own in sight.reported.values())]
        bound = TOLERANCE + sum(min(PER_PROCESS, own) for own in every)
        self._attribute(unaccounted, tenants)
        self._seen.appendleft({sight.number: sight for sight in tenants})
        self._since = (self._since or gpu.asked_ns) if unaccounted > bound else 0
        lasts = max(1, gpu.asked_ns - self._since) if self._since else 0
        excess = {one.number: sum(one.reported.values()) - charged[one.number] for one in tenants}
        self._beyond = {
            number: self._beyond.get(number, gpu.asked_ns) for number, size in excess.items() if size > bound
        }
        alone = tenants[0].number if len(tenants) == 1 and not any(outside.values()) else 0
        if alone != self._alone[0]:
            self._alone = alone, gpu.asked_ns
        tenant, is_certain = self._tenant(tenants, excess, gpu.asked_ns) if lasts else (0, False)
        return Finding(unaccounted, bound, lasts, tenant, is_certain)

    def _attribute(self, unaccounted: int, tenants: Sequence[Sight]) -> None:
        """A growth to the tenant that most likely caused it: continued calls first, then UVM, then any calls."""
        known, self._unaccounted = max(0, self._unaccounted), unaccounted
        while self._growths and known > max(0, unaccounted):  # what came last goes first
            number, size = self._growths.pop()
            known -= size
            if known < unaccounted:
                self._growths.append((number, unaccounted - known))
                known = unaccounted
        if unaccounted <= known or not tenants:
            return

        def rank(sight: Sight) -> tuple[bool, bool, bool, int]:
            # One that came since then has made all of its calls since then.
            old = self._seen[-1].get(sight.number) if self._seen else None
            calls = sight.notifications - (old.notifications if old is not None else 0)
            continued = sight.continued - (old.continued if old is not None else 0)
            return calls > 0, continued > 0, sight.has_uvm and bool(sight.reported), calls

        first = max(tenants, key=rank)
        if rank(first)[0] or (first.has_uvm and len(tenants) == 1):
            self._growths.append((first.number, unaccounted - known))
        else:
            self._growths.append((0, unaccounted - known))

    def _tenant(self, tenants: Sequence[Sight], excess: Mapping[int, int], now: int) -> tuple[int, bool]:
        """(the tenant, whether it can be no other): by what the driver reports of its processes, or as the only one.

        Certain is what was so since there is too much, or for long: of one that frees memory between the driver's
        answer and the look a single answer says nothing, and an earlier tenant may have left what there is.
        """
        certain = {one: since <= self._since or now - since > ACT_NS for one, since in self._beyond.items()}
        if certain:
            worst = max(certain, key=lambda number: (certain[number], excess[number]))
            return worst, certain[worst]
        if self._alone[0] and self._alone[1] <= self._since:
            return self._alone[0], True
        sums: dict[int, int] = {}
        for number, size in self._growths:
            sums[number] = sums.get(number, 0) + size
        there = {one.number for one in tenants}
        likely = max(sums, key=lambda number: sums[number], default=0)
        return (likely if likely in there and 2 * sums[likely] > self._unaccounted else 0), False


def _charged(before: dict[int, Sight], number: int) -> int:
    old = before.get(number)
    return old.charged if old is not None else 0
