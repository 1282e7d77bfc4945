"""What people see of GPUs and tenants, from whichever source there is: agent's status or shim's files. Pure."""

from __future__ import annotations

from nvc.base.record import Record
from nvc.guard import service
from nvc.share.entry import shown_name
from nvc.share.model import CAP_WHOLE, DEFAULT_WEIGHT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nvc.agent.status import AgentStatus, StatusTenant, TenantGpu
    from nvc.driver.facts import NvmlLoad
    from nvc.share.view import ShareRow

#: What enforces a share: the guard from outside, the preloaded library from inside, or the scheduler alone.
GUARD, LIBRARY, ATTACH = "guard", "library", "attach"
#: Of services that are not served in their latency now.
LONGER = {
    service.IDLE: "no work for a while: its next waits longer, unless it is announced (share hint)",
    service.OVER: "it computed more than its part: served by weight until it has not",
    service.CROWDED: "the others have too many contexts for its latency",
}
#: The note of a share whose cap is not in force.
NO_CAP = "its cap is not in force: the agent's log says why"


class SeenProcess(Record):
    """A process. pid: on this host, 0: not known. inner_pid: in its container, 0: not known. memory: bytes."""

    pid: int
    inner_pid: int
    name: str
    memory: int


class SeenShare(Record):
    """A container's share of one GPU.

    enforcer: GUARD, LIBRARY or ATTACH. memory, limit, managed, driver_usage: bytes; limit 0: none; driver_usage 0: the
    driver was not asked. cap: part of the GPU's time, 1.0: none. target, achieved: parts of it, None without a
    scheduler of the agent; is_measured: achieved is of the driver's samples, otherwise an estimate.
    frozen_ns: while it had compute groups, since the tenant came. frozen_part: of the time since the last look, None at
    the first.
    denials: reason -> how often; of the whole container. name: by its engine. suspended: bytes on the host.
    latency_us, bound_us: of a service, what it may wait, and what it waits at most now, 0: not known.
    """

    container: str
    enforcer: str
    memory: int
    limit: int
    managed: int
    driver_usage: int
    cap: float
    weight: int
    priority: str
    groups: int
    processes: tuple[SeenProcess, ...]
    denials: dict[str, int] = {}
    target: float | None = None
    achieved: float | None = None
    is_measured: bool = False
    slice_us: int = 0
    frozen: bool = False
    frozen_ns: int = 0
    frozen_part: float | None = None
    paused: bool = False
    notes: tuple[str, ...] = ()
    name: str = ""
    suspended: int = 0
    latency_us: int = 0
    bound_us: int = 0


class SeenGpu(Record):
    """A GPU. minor: -1: not known. memory: bytes, 0: not known. policy: "" without a scheduler of the agent.

    unaccounted: bytes that are in use and charged to no share, where that is more than may be. by: the container, "".
    notes: of processes of no share. utilization: part of the time in which a kernel ran, whichever process's. power,
    power_limit: watts. None: the driver does not report it.
    """

    uuid: str
    minor: int
    memory: int
    policy: str
    shares: tuple[SeenShare, ...]
    unaccounted: int = 0
    by: str = ""
    notes: tuple[str, ...] = ()
    utilization: float | None = None
    power: float | None = None
    power_limit: float | None = None

    @property
    def used(self) -> int:
        """Bytes that the shares have together."""
        return sum(share.memory for share in self.shares)


class Seen(Record):
    """All of it at one time. agent: its version, "" without one. when: seconds since 1970. problems: for people.

    silent: why an agent that is there gave no status ("does not answer"), "": it did, or there is none.
    """

    agent: str
    when: float
    gpus: tuple[SeenGpu, ...]
    problems: tuple[str, ...] = ()
    silent: str = ""


def collect(
    status: AgentStatus | None,
    rows: Iterable[ShareRow],
    when: float,
    *,
    inventory: Mapping[str, tuple[int, int]] | None = None,
    name: Callable[[int], str] = lambda pid: "",
    problems: tuple[str, ...] = (),
    silent: str = "",
) -> Seen:
    """One view of both sources: the shim's rows are for containers that the agent does not name.

    inventory: UUID -> (minor, bytes), for GPUs that the agent does not name. name: of a process on this host.
    """
    facts = {uuid: (minor, memory, "") for uuid, (minor, memory) in (inventory or {}).items()}
    shares: dict[str, list[SeenShare]] = {}
    named: set[str] = set()
    if status is not None:
        facts.update({gpu.uuid: (gpu.minor, gpu.memory, gpu.policy) for gpu in status.gpus})
        shares.update({gpu.uuid: [] for gpu in status.gpus})
        for tenant in status.tenants:
            named.update((tenant.container, *(one.name for one in tenant.containers)))
            for index, gpu in enumerate(tenant.gpus):
                shares.setdefault(gpu.uuid, []).append(_of_tenant(tenant, gpu, index, name))
    for row in rows:
        if not named & {row.container, row.key or row.container}:
            shares.setdefault(row.gpu, []).append(_of_row(row))
    beyond = (
        {gpu.uuid: (gpu.unaccounted, gpu.unaccounted_by) for gpu in status.gpus if gpu.is_unbalanced} if status else {}
    )
    notes = {gpu.uuid: xid_notes(gpu.xids) for gpu in status.gpus} if status else {}
    gpus = (
        SeenGpu(uuid, *facts.get(uuid, (-1, 0, "")), tuple(found), *beyond.get(uuid, (0, "")), notes.get(uuid, ()))
        for uuid, found in shares.items()
    )
    ordered = sorted(gpus, key=lambda gpu: (gpu.minor < 0, gpu.minor, gpu.uuid))
    return Seen(status.version if status is not None else "", when, tuple(ordered), problems, silent)


def rated(now: Seen, before: Seen | None) -> Seen:
    """``now``, with how much of the time since ``before`` each share was frozen."""
    if before is None or now.when <= before.when:
        return now
    old = {(gpu.uuid, share.container, share.enforcer): share.frozen_ns for gpu in before.gpus for share in gpu.shares}
    passed = (now.when - before.when) * 1e9

    def rate(uuid: str, share: SeenShare) -> SeenShare:
        was = old.get((uuid, share.container, share.enforcer))
        # A process that ended takes its time along.
        if was is None or share.frozen_ns < was:
            return share
        return share.replace(frozen_part=min(1.0, (share.frozen_ns - was) / passed))

    return now.replace(
        gpus=tuple(gpu.replace(shares=tuple(rate(gpu.uuid, share) for share in gpu.shares)) for gpu in now.gpus)
    )


def gauged(seen: Seen, loads: Mapping[str, NvmlLoad]) -> Seen:
    """``seen``, with what NVML says of the GPUs."""

    def gauge(gpu: SeenGpu) -> SeenGpu:
        load = loads.get(gpu.uuid)
        if load is None:
            return gpu
        power, limit = _part(load.power, 1000), _part(load.power_limit, 1000)
        return gpu.replace(utilization=_part(load.utilization, 100), power=power, power_limit=limit)

    return seen.replace(gpus=tuple(map(gauge, seen.gpus))) if loads else seen


def _part(number: int, whole: int) -> float | None:
    return number / whole if number >= 0 else None


def _of_tenant(tenant: StatusTenant, gpu: TenantGpu, index: int, name: Callable[[int], str]) -> SeenShare:
    processes = tuple(
        SeenProcess(process.pid, 0, name(process.pid), process.memory[index] if index < len(process.memory) else 0)
        for process in tenant.processes
    )
    scheduled = gpu.target_ratio > 0
    return SeenShare(
        tenant.container or f"pid-{tenant.pid}",
        tenant.kind,
        gpu.memory,
        gpu.limit,
        gpu.managed,
        gpu.driver_usage,
        gpu.cap / CAP_WHOLE if 0 < gpu.cap < CAP_WHOLE else 1.0,
        gpu.weight or DEFAULT_WEIGHT,
        gpu.priority,
        gpu.groups,
        processes,
        dict(tenant.denials),
        gpu.target_ratio if scheduled else None,
        gpu.achieved_ratio if scheduled or gpu.is_measured else None,
        gpu.is_measured,
        gpu.slice_us,
        gpu.frozen,
        gpu.frozen_ns,
        paused=tenant.paused,
        notes=(
            *(() if gpu.cap_in_force or not 0 < gpu.cap < CAP_WHOLE else (NO_CAP,)),
            *service_notes(gpu.service),
            *xid_notes(gpu.xids),
        ),
        name=shown_name(tenant.name),
        suspended=tenant.suspended[index] if index < len(tenant.suspended) else 0,
        latency_us=gpu.latency_us,
        bound_us=gpu.bound_us,
    )


def xid_notes(xids: Mapping[str, int]) -> tuple[str, ...]:
    """Errors that the driver reported: number of an Xid event -> how often."""
    told = ", ".join(f"{number} ({count} times)" if count > 1 else number for number, count in xids.items())
    return (f"Xid {told}: errors that the driver reported",) if told else ()


def service_notes(state: str) -> tuple[str, ...]:
    """Why a service waits longer than its latency, if it does. state: of ``nvc.guard.service.STATES``, or ""."""
    return (LONGER[state],) if state in LONGER else ()


def _of_row(row: ShareRow) -> SeenShare:
    processes = tuple(
        SeenProcess(process.host_pid, process.pid, process.name, process.memory) for process in row.processes
    )
    return SeenShare(
        row.container,
        LIBRARY,
        row.used,
        row.limit,
        row.managed,
        0,
        row.cap / CAP_WHOLE,
        row.weight or DEFAULT_WEIGHT,
        row.priority,
        row.groups,
        processes,
        frozen_ns=row.frozen_ns,
        paused=row.paused,
        notes=(*row.notes, *(("oversubscribe",) if row.oversubscribe else ())),
        name=row.name,
    )
