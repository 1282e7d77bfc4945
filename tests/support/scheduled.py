"""A guard that only takes notes, for the scheduler; limits that it gets."""

from __future__ import annotations

from nvc.agent.scheduler import Scheduler
from nvc.guard.pages import GpuStatus, TenantStatus
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu

ONE, TWO = (f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in (1, 2))


class Notes:
    """groups, frozen_ns: by (tenant, GPU's index). calls: what was done, in order."""

    def __init__(self) -> None:
        self.groups: dict[tuple[int, int], int] = {}
        self.frozen_ns: dict[tuple[int, int], int] = {}
        self.gone: set[int] = set()
        self.calls: list[tuple[object, ...]] = []
        self.slices: dict[tuple[int, int], int] = {}
        #: By (tenant, GPU's index): period, since, until.
        self.phases: dict[tuple[int, int], tuple[int, int, int]] = {}
        #: Tenants that are busy; whose plan cannot be written.
        self.busy: set[int] = set()
        self.full: set[int] = set()
        #: Tenants that publish nothing; those that were read, in order.
        self.still: set[int] = set()
        self.reads: list[int] = []
        self._seen: set[int] = set()

    def changed(self) -> set[int]:
        return self._seen - self.still

    def status(self, tenant: int) -> TenantStatus:
        self.reads.append(tenant)
        self._seen.add(tenant)
        if tenant in self.gone:
            raise OSError(2, "status")
        if tenant in self.busy:
            raise OSError(16, "status")
        gpus = tuple(
            GpuStatus(0, 0, 0, self.groups.get((tenant, gpu), 0), 0, False, self.frozen_ns.get((tenant, gpu), 0))
            for gpu in range(2)
        )
        return TenantStatus(gpus, 0, 0, 0, (), 0, 1, 1)

    def slice(self, tenant: int, gpu: int, microseconds: int) -> None:
        self.calls.append(("slice", tenant, gpu, microseconds))
        self.slices[tenant, gpu] = microseconds

    def phase(self, tenant: int, gpu: int, period: int, since: int, until: int) -> None:
        self.calls.append(("phase", tenant, gpu, period, since, until))
        if tenant in self.full:
            raise OSError(28, "phase")
        self.phases.pop((tenant, gpu), None)
        if period:
            self.phases[tenant, gpu] = period, since, until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def limits(*gpus: ResolvedGpu, paused: bool = False) -> Limits:
    return Limits(gpus, paused=paused)


def gpu(
    uuid: str = ONE, *, weight: int = 0, cap: int = 1000, priority: str = "normal", latency: int = 0
) -> ResolvedGpu:
    return ResolvedGpu(uuid, -1, cap=cap, weight=weight, priority="service" if latency else priority, latency=latency)


def update(scheduler: Scheduler) -> None:
    """As ``Scheduler.renew``, at once."""
    steps, answer = scheduler._steps(), None
    try:
        while True:
            ask = steps.send(answer)
            answer = ask() if ask is not None else None
    except StopIteration:
        return


def two_tenants(notes: Notes) -> Scheduler:
    """Of two tenants with a group each on the first GPU, weights 30 and 10."""
    scheduler = Scheduler(notes, clock=Clock())
    for number, weight in ((1, 30), (2, 10)):
        notes.groups[number, 0] = 1
        scheduler.tenant(number, limits(gpu(weight=weight)))
    update(scheduler)
    return scheduler
