"""How much of a GPU each tenant with a range (``mem=8Gi..40Gi``) may have at the moment. Pure.

What is in force for a tenant, its *limit*, lies between its request and the most. All limits together, with what is in
use above them, never exceed the GPU: so every request can be had at any time, also while no agent is there to move a
limit. What no request needs, the *headroom*, goes first to tenants that want memory, then in equal parts to the others.
"""

from __future__ import annotations

from nvc.base.record import Record
from nvc.share.model import RANK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Bytes above what is in use that a tenant above its request keeps, for what it allocates while its limit is lowered.
SLACK = 256 << 20
#: Bytes of a GPU that are no headroom: page tables and the like are charged to none.
RESERVE = 256 << 20
#: A limit is raised by as much at least, unless the tenant has none to spare: each move is a write for its supervisor.
STEP = 512 << 20
_ALIGN = 2 << 20


class Claim(Record):
    """A tenant on a GPU, in bytes.

    request: what it is promised. most: what it may have; the same without a range. limit: in force. used: charged.
    wants: it was refused memory lately, or has little left. sleeps: it is suspended, and gets no headroom. returns:
    what it brings back from the host. is_idle: it computed nothing for so long as its share says. lends: it was
    suspended for that, and others may have its request meanwhile.
    """

    number: int
    request: int
    most: int
    limit: int
    used: int
    wants: bool = False
    priority: str = "normal"
    sleeps: bool = False
    returns: int = 0
    is_idle: bool = False
    lends: bool = False

    @property
    def has_range(self) -> bool:
        return self.request < self.most

    @property
    def least(self) -> int:
        """Below that no limit goes."""
        held = self.used + self.returns
        if held <= self.request:
            return self.request
        return max(self.request, min(self.most, held + (SLACK if self.used > self.request else 0)))

    @property
    def promised(self) -> int:
        """What it has or is to have of the GPU, whatever others want."""
        return max(0 if self.lends else self.request, self.used + self.returns)


def shortage(capacity: int, claims: Iterable[Claim]) -> int:
    """Bytes that requests lack, because others have them above their own; below 0: none."""
    return sum(claim.promised for claim in claims) - capacity


def divide(capacity: int, claims: Sequence[Claim]) -> dict[int, int]:
    """Number -> limit, of the tenants with a range."""
    limits = {claim.number: claim.least for claim in claims if claim.has_range}
    left = capacity - RESERVE - _fixed(claims) - sum(limits.values())
    for wants in (True, False):
        rooms = {
            claim.number: claim.most - limits[claim.number]
            for claim in claims
            if claim.has_range and not claim.sleeps and claim.wants is wants
        }
        for number, size in _filled(left, rooms).items():
            limits[number] += size
            left -= size
    return limits


def moves(capacity: int, claims: Sequence[Claim]) -> tuple[dict[int, int], dict[int, int]]:
    """(limits to be lowered, and to be raised once that is in force); nothing where all may stay as it is."""
    aims = divide(capacity, claims)
    ranged = [claim for claim in claims if claim.has_range]
    fits = _fixed(claims) + sum(aims.values()) <= capacity
    raised = {}
    for claim in ranged:
        # Where it does not fit: a limit below what is in use stops a program, and allows nothing.
        aim = aims[claim.number] if fits else min(claim.most, max(claim.limit, claim.used))
        if _is_raised(claim, aim):
            raised[claim.number] = aim
    taken = _fixed(claims) + sum(max(claim.limit, claim.promised) for claim in ranged)
    if not raised and taken <= capacity:
        return {}, {}
    lowered = {claim.number: aims[claim.number] for claim in ranged if aims[claim.number] < claim.limit}
    return lowered, raised


def victims(claims: Iterable[Claim]) -> list[Claim]:
    """Tenants that may be suspended for others, in that order: idle ones; then those above their requests, the lowest
    priority first, then that which frees the most."""
    found = [
        claim
        for claim in claims
        if (claim.is_idle and claim.used) or (claim.has_range and claim.used > claim.request)
        if not (claim.sleeps or claim.returns)
    ]
    return sorted(found, key=lambda claim: (not claim.is_idle, RANK[claim.priority], -_freed(claim)))


def _freed(claim: Claim) -> int:
    return claim.used if claim.is_idle else claim.used - claim.request


def _fixed(claims: Iterable[Claim]) -> int:
    """What tenants without a range have, or may have."""
    return sum(max(claim.most, claim.promised) for claim in claims if not claim.has_range)


def _is_raised(claim: Claim, aim: int) -> bool:
    gain = aim - claim.limit
    return gain >= STEP or (gain > 0 and (aim == claim.most or claim.limit < claim.used + claim.returns))


def _filled(left: int, rooms: Mapping[int, int]) -> dict[int, int]:
    """Equal parts of ``left``, none above its room."""
    found: dict[int, int] = {}
    for place, (number, room) in enumerate(sorted(rooms.items(), key=lambda item: item[1])):
        part = max(0, left) // (len(rooms) - place)
        size = room if room <= part else part // _ALIGN * _ALIGN
        found[number] = size
        left -= size
    return found
