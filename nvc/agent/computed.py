"""Computed time: for how long each tenant computed on a GPU, as the driver's samples say.

A sample says how busy the GPU was since the sample before, whichever process it was, and names the process that was on
it at that moment. So the time of a tenant that computes alone is exact. Of several, each has of the busy time what it
has of the samples, with a deviation of some points in ten seconds (an H100 samples each 200 ms). With phases of caps
that says nothing: samples and phases are in step, and the same tenant is on at each. Pure.
"""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nvc.guard.usage import GpuUsage

#: Nanoseconds of samples that a ratio is of, and that it needs at least.
WINDOW_NS, LEAST_NS = 10_000_000_000, 2_000_000_000
#: Without a sample for so long there is no ratio.
STALE_NS = 5_000_000_000


class ComputedTime:
    """Of one GPU, from one answer of the driver to the next."""

    def __init__(self) -> None:
        self._before: GpuUsage | None = None
        #: Pid -> the tenant that it was of when it was alive; 0: of none.
        self._owners: dict[int, int] = {}
        #: Tenant -> nanoseconds since this object was made. Busy time that no sample had a process for.
        self._busy: dict[int, float] = {}
        self._rest = 0.0
        #: (sampled_ns, tenant -> nanoseconds), oldest first; when samples were added last, by CLOCK_MONOTONIC.
        self._window: deque[tuple[int, dict[int, float]]] = deque()
        self._sampled_at = 0

    def update(
        self, gpu: GpuUsage, owners: Mapping[int, int], computing: Collection[int], *, has_phases: bool = False
    ) -> None:
        """owners: pid -> tenant, of processes that are alive. computing: tenants that have groups; 0: others may.

        has_phases: whether a cap is in force on the GPU.
        """
        before, self._before = self._before, gpu
        self._owners = {pid: owners.get(pid) or self._owners.get(pid, 0) for pid in gpu.computed}
        # Another prober's begin at 0.
        if (
            before is None
            or gpu.sampled_ns < before.sampled_ns
            or not self._share_out(gpu, before, computing, has_phases)
        ):
            self._window.clear()
        if not self._window or gpu.sampled_ns > self._window[-1][0]:
            self._sampled_at = gpu.asked_ns
            self._window.append((gpu.sampled_ns, dict(self._busy)))
        while len(self._window) > 2 and self._window[1][0] <= gpu.sampled_ns - WINDOW_NS:
            self._window.popleft()

    def part(self, tenant: int) -> float | None:
        """Of the GPU's time in the last WINDOW_NS, 0 to 1; None: the driver has no samples, or too few yet."""
        if self._before is None or self._before.asked_ns - self._sampled_at > STALE_NS:
            return None
        (begin, was), (end, now) = self._window[0], self._window[-1]
        if end - begin < LEAST_NS:
            return None
        return min(1.0, (now.get(tenant, 0.0) - was.get(tenant, 0.0)) / (end - begin))

    def busy_ns(self, tenant: int) -> int:
        """In all, since this object was made."""
        return int(self._busy.get(tenant, 0.0))

    def lost(self) -> None:
        """There are no answers of the driver any more; what was computed stays counted."""
        self._before = None
        self._window.clear()

    def gone(self, tenant: int) -> None:
        """The tenant is over."""
        self._busy.pop(tenant, None)

    def _share_out(self, gpu: GpuUsage, before: GpuUsage, computing: Collection[int], has_phases: bool) -> bool:
        """The busy time since then, to the tenants that computed; False: nothing says which they were."""
        self._rest += max(0, gpu.busy_ns - before.busy_ns)
        grown = dict.fromkeys(computing, 0)
        for pid, now in gpu.computed.items():
            was = before.computed.get(pid, 0)
            size = now - was if now >= was else now
            if size:
                grown[self._owners[pid]] = grown.get(self._owners[pid], 0) + size
        total = sum(grown.values())
        if len(grown) > 1 and has_phases:
            self._rest = 0.0
            return False
        if len(grown) == 1:
            grown, total = dict.fromkeys(grown, 1), 1
        if total:
            for tenant, size in grown.items():
                self._busy[tenant] = self._busy.get(tenant, 0.0) + self._rest * size / total
            self._rest = 0.0
        return True
