"""What the scheduler remembers of a tenant, and what is decided for a GPU. Pure."""

from __future__ import annotations

import time

from nvc.base.record import Record
from nvc.guard.scheduling import (
    EDGES,
    MOST_PERIOD_US,
    MOST_PHASES,
    Schedule,
    Tenant,
    decide_all,
    edges,
    expected,
    lost,
    waits,
)
from nvc.guard.service import ServiceUse
from nvc.share.model import CAP_WHOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nvc.guard.pages import TenantStatus
    from nvc.guard.phases import Phase
    from nvc.share.limits import Limits
    from nvc.share.model import ResolvedGpu

#: Seconds over which a share is measured.
WINDOW = 1.0
NOT_KNOWN = -1
#: Policies for which caps mean nothing (nvc.guard.scheduling).
_WITHOUT_CAPS = ("preemptive", "soft", "native")


class ScheduledShare(Record):
    """Of a GPU's time, 0 to 1. target: while all tenants have work. achieved: by that, and the time it was really off.

    An estimate: a tenant that had no work got less (``nvc.agent.computed`` measures). period: microseconds, of the
    tenant's phase as it is written into its plan; 0: it has none. bound_us, service: of a service with groups, how long
    it waits at most now, and how it is served (nvc.guard.service.STATES).
    """

    target: float
    achieved: float
    period: int = 0
    bound_us: int = 0
    service: str = ""

    @property
    def cap_in_force(self) -> bool:
        """False also without a cap."""
        return self.period > 0


NO_SHARE = ScheduledShare(0.0, 0.0)


class Known:
    """A tenant: its limits, and what was last seen of it, by GPU."""

    def __init__(self, limits: Limits, *, is_new: bool = False) -> None:
        """is_new: no agent has written a slice or a phase of it."""
        self.limits = limits
        self.groups = [0] * len(limits.gpus)
        #: What was written last; NOT_KNOWN: an agent before this one may have written something.
        self.slices = [0 if is_new else NOT_KNOWN] * len(limits.gpus)
        #: What a service does there.
        self.uses = [ServiceUse(time.monotonic_ns()) for _ in limits.gpus]
        #: (when, frozen_ns) at the beginning of the window, and the part of the last one that it was on.
        self.begin: list[tuple[float, int]] = [(0.0, 0)] * len(limits.gpus)
        self.on: list[float] = [1.0] * len(limits.gpus)
        #: When it was read last; when nothing had changed since; whether it can be left unread until something does.
        self.looked = 0.0
        self.unchanged = 0.0
        self.is_steady = False
        #: Whether the guard knows it.
        self.is_there = True

    def contends(self, index: int, policy: str) -> bool:
        """Whether it has, or had, anything of the GPU's time to divide: without that it changes nothing for others."""
        return bool(self.groups[index] or self.slices[index]) or has_phase(self.limits.gpus[index], policy)

    def see(self, status: TenantStatus, now: float) -> list[int]:
        """The indexes of GPUs where it has other groups now, or a service has work again."""
        found = []
        for index, gpu in enumerate(status.gpus[: len(self.groups)]):
            if self.groups[index] != gpu.groups:
                self.groups[index] = gpu.groups
                found.append(index)
            if self.limits.gpus[index].latency:
                use, at = self.uses[index], time.monotonic_ns()
                before = use.use(at)
                use.called(status.called_ns)
                if use.use(at) != before:
                    found.append(index)
            since, frozen = self.begin[index]
            since = max(since, self.unchanged)
            if now - since >= WINDOW:
                if since:
                    self.on[index] = max(0.0, 1 - (gpu.frozen_ns - frozen) / 1e9 / (now - since))
                self.begin[index] = now, gpu.frozen_ns
        self.looked = now
        self.is_steady = all(part == 1.0 for part in self.on) and not any(gpu.frozen for gpu in status.gpus)
        return found


def divides(limits: Limits) -> tuple[object, ...]:
    """What of these limits the division of time depends on."""
    return limits.paused, *((gpu.weight, gpu.cap, gpu.priority, gpu.latency) for gpu in limits.gpus)


class Decided(Record):
    """Of a GPU. parts: name -> the part of the time that it is to have. lost: in switches."""

    schedule: Schedule
    parts: dict[str, float]
    lost: float
    #: Service -> (microseconds, how it is served).
    waits: dict[str, tuple[int, str]] = {}


def connected(uuids: set[str], on: Mapping[str, Iterable[int]], known: Mapping[int, Known]) -> list[str]:
    """With the GPUs that they are decided on together with: those of their tenants, and so on.

    on: UUID -> numbers of its tenants.
    """
    found, left = dict.fromkeys(sorted(uuids - {""})), list(uuids)
    while left:
        for number in on.get(left.pop(), ()):
            for gpu in known[number].limits.gpus:
                if gpu.uuid not in found:
                    found[gpu.uuid] = None
                    left.append(gpu.uuid)
    return list(found)


def decided(
    tenants: dict[str, tuple[Tenant, ...]],
    policies: dict[str, str],
    slots: int,
    period: int,
    before: dict[str, tuple[Phase, ...]],
) -> dict[str, Decided]:
    """By UUID, as ``nvc.guard.scheduling.decide_all``."""
    schedules = decide_all(tenants, policies, slots, period, before)
    return {
        uuid: Decided(one, expected(tenants[uuid], one), lost(tenants[uuid], one), waits(tenants[uuid], one))
        for uuid, one in schedules.items()
    }


def has_phase(gpu: ResolvedGpu, policy: str) -> bool:
    """Whether a tenant with this share is off the GPU for a part of the time, by its cap or the policy's."""
    return policy == "fair" or (gpu.cap < CAP_WHOLE and policy not in _WITHOUT_CAPS)


def too_many(there: int, phases: int) -> str:
    """Why so many phases cannot be kept, where ``there`` are there."""
    return (
        f"{there} containers with a cap are there, and {MOST_PHASES} are the most: {phases} need "
        f"{edges(MOST_PERIOD_US, phases)} stops and starts a second at the longest period of "
        f"{MOST_PERIOD_US // 1000} ms, and the driver is given {EDGES}"
    )
