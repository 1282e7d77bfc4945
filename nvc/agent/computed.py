"""Computed time: for how long each tenant computed on a GPU, as the driver's samples and its trace say.

A sample says how busy the GPU was since the sample before, whichever process it was, and names the process that was on
it at that moment. So the time of a tenant that computes alone is exact. Of several, each has of the busy time what it
has of the samples, with a deviation of some points in ten seconds (an H100 samples each 200 ms); but no tenant has more
than its contexts were on the engine for, by the trace of context switches, nor than its channels were on for, which the
guard measures: what samples gave it beyond that is of the others. Where the GPU is busy all the time, that is what the
trace says; a context that is done stays on the engine, so alone the trace would say too much.

Samples that are in step with the periods of caps find the same tenants again and again, and say nothing
(``is_in_step``): the trace has to. Pure.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from nvc.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nvc.guard.usage import GpuUsage

#: Nanoseconds of samples that a ratio is of, and that it needs at least.
WINDOW_NS, LEAST_NS = 10_000_000_000, 2_000_000_000
#: Microseconds between two samples of an H100, and how many are looked at.
SAMPLE_US, SAMPLES = 200_000, WINDOW_NS // 200_000_000
#: The largest part of a period without any of them.
_GAP = 0.1
#: The trace is up to so much longer or shorter than the time between two answers.
_TRACE_NS = 500_000_000
#: Of busy time; slices of 0.5 ms and switches of 0.22 leave 0.69.
_LEAST_PART = 0.6
#: Within so much time the trace has every tenant that samples found for so long.
_SILENT_NS, _TWICE_NS = 3_000_000_000, 2 * SAMPLE_US * 1000
#: Without a sample for so long there is no ratio.
STALE_NS = 5_000_000_000


def is_in_step(period: int) -> bool:
    """Whether samples leave out a part of such a period, in microseconds, again and again."""
    places = sorted(number * SAMPLE_US % period for number in range(SAMPLES))
    return max(after - place for place, after in pairwise([*places, places[0] + period])) > _GAP * period


class _Moment(Record):
    """What was counted in all by then, in nanoseconds (``ComputedTime``)."""

    sampled_ns: int
    asked_ns: int
    traced_ns: int
    untraced_ns: int
    shared: float
    busy: dict[int, float]
    alone: dict[int, float]
    named: dict[int, float]
    engine: dict[int, float]
    off: dict[int, int]
    caps: dict[int, float]


class ComputedTime:
    """Of one GPU, from one answer of the driver to the next."""

    def __init__(self) -> None:
        self._before: GpuUsage | None = None
        #: Pid -> the tenant that it was of when it was alive; 0: of none.
        self._owners: dict[int, int] = {}
        #: Busy time by tenant, since this object was made: of those alone on the GPU; that samples named it for beside
        #: others; all in all. And all busy time of several.
        self._alone: dict[int, float] = {}
        self._named: dict[int, float] = {}
        self._busy: dict[int, float] = {}
        self._shared = 0.0
        #: While contexts of each were on the engine, by the trace.
        self._engine: dict[int, float] = {}
        #: Of that, what no tenant was given yet.
        self._rest = 0.0
        #: What is of the last WINDOW_NS; of it, the parts of each, and of how much time they are.
        self._window: deque[_Moment] = deque()
        self._parts: dict[int, float] = {}
        self._span = 0
        #: When samples were added last, by CLOCK_MONOTONIC.
        self._sampled_at = 0
        self._is_lost = False

    def update(
        self,
        gpu: GpuUsage,
        owners: Mapping[int, int],
        computing: Collection[int],
        off_ns: Mapping[int, int],
        caps: Mapping[int, float],
        *,
        in_step: bool = False,
    ) -> None:
        """owners: pid -> tenant, of processes that are alive. computing: tenants that have groups; 0: others may.

        off_ns: tenant -> nanoseconds that its channels were off, in all, as the guard counts them. caps: tenant -> what
        its cap leaves it, 0 to 1, where it is in force: channels are on longer, for starting them takes time.
        in_step: whether a cap is in force on the GPU with whose period samples are in step.
        """
        before, self._before, self._is_lost = self._before, gpu, False
        self._owners = {pid: owners.get(pid) or self._owners.get(pid, 0) for pid in (*gpu.computed, *gpu.traced)}
        # Another prober's begin at 0.
        if before is None or gpu.sampled_ns < before.sampled_ns:
            self._begin_anew()
        elif not self._count(gpu, before, computing, in_step):
            self._begin_anew()
            self._rest = 0.0
        while len(self._window) > 1 and self._window[1].sampled_ns <= gpu.sampled_ns - WINDOW_NS:
            self._window.popleft()
        now = self._moment(gpu, off_ns, caps)
        if self._window and before is not None:
            self._span, self._parts = now.sampled_ns - self._window[0].sampled_ns, self._divided(now)
            self._give(max(0, gpu.busy_ns - before.busy_ns))
        if not self._window or now.sampled_ns > self._window[-1].sampled_ns:
            self._sampled_at = gpu.asked_ns
            self._window.append(now.replace(busy=dict(self._busy)))

    def part(self, tenant: int) -> float | None:
        """Of the GPU's time in the last WINDOW_NS, 0 to 1; None: the driver has no samples, or too few yet."""
        if self._before is None or self._is_lost or self._before.asked_ns - self._sampled_at > STALE_NS:
            return None
        return min(1.0, self._parts.get(tenant, 0.0) / self._span) if self._span >= LEAST_NS else None

    @property
    def has_samples(self) -> bool:
        """Whether samples tell now which tenants compute."""
        is_new = self._before is not None and self._before.asked_ns - self._sampled_at <= STALE_NS
        return is_new and not self._is_lost and len(self._window) > 1

    def busy_ns(self, tenant: int) -> int:
        """In all, since this object was made."""
        return int(self._busy.get(tenant, 0.0))

    def lost(self) -> None:
        """There is no answer of the driver; what is computed meanwhile is counted with the next one."""
        self._is_lost = True

    def gone(self, tenant: int) -> None:
        """The tenant is over. What it had, and what its processes have, is no tenant's (0) then."""
        self._owners = {pid: 0 if owner == tenant else owner for pid, owner in self._owners.items()}
        kept = [times for one in self._window for times in (one.busy, one.alone, one.named, one.engine)]
        for times in (self._busy, self._alone, self._named, self._engine, *kept):
            if tenant in times:
                times[0] = times.get(0, 0.0) + times.pop(tenant)

    def _begin_anew(self) -> None:
        self._window.clear()
        self._parts, self._span = {}, 0

    def _moment(self, gpu: GpuUsage, off_ns: Mapping[int, int], caps: Mapping[int, float]) -> _Moment:
        when = gpu.sampled_ns, gpu.asked_ns, gpu.traced_ns, gpu.untraced_ns
        times = dict(self._busy), dict(self._alone), dict(self._named), dict(self._engine)
        return _Moment(*when, self._shared, *times, dict(off_ns), dict(caps))

    def _count(self, gpu: GpuUsage, before: GpuUsage, computing: Collection[int], in_step: bool) -> bool:
        """The busy time since then, and which were named; False: nothing says which they were."""
        busy = max(0, gpu.busy_ns - before.busy_ns)
        engine = self._since(gpu.traced, before.traced)
        for tenant, size in engine.items():
            self._engine[tenant] = self._engine.get(tenant, 0.0) + size
        named = dict.fromkeys(computing, 0) | self._since(gpu.computed, before.computed)
        if len(named) == 1:
            (tenant,) = named
            self._alone[tenant] = self._alone.get(tenant, 0.0) + busy
            return True
        if named and in_step:
            if sum(engine.values()) < _LEAST_PART * busy:
                return False
            named = engine
        self._shared += busy
        for tenant, size in named.items():
            self._named[tenant] = self._named.get(tenant, 0.0) + size
        return True

    def _since(self, now: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
        """Tenant -> what its processes had, if any; a pid that had more before is another process's."""
        found = dict[int, int]()
        for pid, total in now.items():
            was = before.get(pid, 0)
            if size := total - was if total >= was else total:
                found[self._owners[pid]] = found.get(self._owners[pid], 0) + size
        return found

    def _divided(self, now: _Moment) -> dict[int, float]:
        """The busy time of each in the window: by samples, and at most what its contexts, channels or cap allow."""
        begin = self._window[0]
        sampled, asked = now.sampled_ns - begin.sampled_ns, max(1, now.asked_ns - begin.asked_ns)
        named = {tenant: _grown(now.named, begin.named, tenant) for tenant in now.named}
        each = (now.shared - begin.shared) / (sum(named.values()) or 1)
        tenants = named.keys() | now.alone.keys()
        wanted = {tenant: _grown(now.alone, begin.alone, tenant) + each * named.get(tenant, 0.0) for tenant in tenants}
        engine = {tenant: sampled * part for tenant, part in _engine_parts(begin, now, tenants).items()}
        if self._is_silent(now) or sum(engine.values()) < _LEAST_PART * sum(wanted.values()):
            engine = dict.fromkeys(tenants, float(sampled))
        most, weights = {}, named if min(engine.values(), default=0) >= sampled else engine
        for tenant in tenants:
            on = max(0.0, 1 - (now.off.get(tenant, 0) - begin.off.get(tenant, 0)) / asked)
            cap = now.caps.get(tenant, 1.0)
            if cap < 1:
                cap = max(cap, *(one.caps.get(tenant, 1.0) for one in self._window))
            most[tenant] = min(sampled * on, sampled * cap, engine[tenant])
        return _bounded(wanted, most, weights)

    def _is_silent(self, now: _Moment) -> bool:
        """Whether samples found a tenant lately that the trace does not have at all: it is none of these processes.

        A difference is no reason: a tenant that pauses when samples are taken makes as much as it likes.
        """
        begin = next(
            one for one in self._window if one.sampled_ns >= now.sampled_ns - _SILENT_NS or one is self._window[-1]
        )
        found = {one for one in now.named if one and _grown(now.named, begin.named, one) >= _TWICE_NS}
        if now.untraced_ns > begin.untraced_ns:
            return False
        return any(_grown(now.engine, begin.engine, tenant) <= 0 for tenant in found)

    def _give(self, busy: float) -> None:
        """So much busy time more, so that what each got in the window is its part of it."""
        self._rest += busy
        begin = self._window[0].busy
        missing = {tenant: max(0.0, part - _grown(self._busy, begin, tenant)) for tenant, part in self._parts.items()}
        total = sum(missing.values())
        if total:  # else none was named yet
            for tenant, part in missing.items():
                self._busy[tenant] = self._busy.get(tenant, 0.0) + self._rest * part / total
            self._rest = 0.0


def _grown(now: Mapping[int, float], before: Mapping[int, float], tenant: int) -> float:
    return now.get(tenant, 0.0) - before.get(tenant, 0.0)


def _engine_parts(begin: _Moment, now: _Moment, tenants: Collection[int]) -> dict[int, float]:
    """For which part of the time its contexts may have been on the engine; 1 where there is no trace."""
    traced, asked = max(0, now.traced_ns - begin.traced_ns), max(1, now.asked_ns - begin.asked_ns)
    unknown = max(0, now.untraced_ns - begin.untraced_ns)
    if abs(asked - traced) > _TRACE_NS or not traced:
        traced, unknown = asked, unknown + max(0, asked - traced)
    sizes = {tenant: _grown(now.engine, begin.engine, tenant) + unknown for tenant in tenants}
    return {tenant: min(1.0, size / traced) for tenant, size in sizes.items()}


def _bounded(wanted: dict[int, float], most: Mapping[int, float], weights: Mapping[int, float]) -> dict[int, float]:
    """What each wants, but no more than its most while others can have the rest, by their weights."""
    got = {tenant: min(size, most[tenant]) for tenant, size in wanted.items()}
    left = sum(wanted.values()) - sum(got.values())
    while left >= 1:
        room = {tenant: weight for tenant, weight in weights.items() if weight and got[tenant] < most[tenant]}
        if not room:
            break  # switching is busy time, too
        total = sum(room.values())
        for tenant, weight in room.items():
            got[tenant] = min(most[tenant], got[tenant] + left * weight / total)
        left = sum(wanted.values()) - sum(got.values())
    scale = sum(wanted.values()) / (sum(got.values()) or 1)
    return {tenant: size * scale for tenant, size in got.items()}
