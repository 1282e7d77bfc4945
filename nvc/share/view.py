"""What people see of the shares: one row per container and GPU, from limits and region."""

from __future__ import annotations

from nvc.base.record import Record
from nvc.bindings.reasons import REASONS
from nvc.share.model import CAP_WHOLE, DEFAULT_WEIGHT, ResolvedGpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvc.share.limits import Limits
    from nvc.share.region import Region, RegionHeader, RegionSlot

UNKNOWN_DRIVER = "driver unknown: only memory is held, where programs call CUDA"


class ShareProcess(Record):
    """A process on a GPU. pid: in its container; host_pid: on this host, 0 where it was not looked up or found."""

    pid: int
    host_pid: int
    name: str
    memory: int


class ShareRow(Record):
    """A container's share of a GPU, with what the container itself lowered. used, limit: bytes; limit 0: none.

    own: the settings that the container lowered itself. frozen_ns: how long caps kept it off the GPU, the process that
    waited longest. target, achieved: parts of the GPU's time, None where no agent schedules it; is_measured: achieved
    is of the driver's samples, otherwise an estimate. notes: what deserves attention. groups: compute groups. managed:
    bytes of managed memory, of used. suspended: bytes that `share suspend` moved to the host. guard: the version of the
    supervisor that enforces it, "" where the agent does not say one. name: by the engine. latency, bound: of a service,
    microseconds that it may wait, and that it does at most now; service: of ``nvc.guard.service.STATES``. request,
    most: of a range of memory, in which limit is what is in force; 0: it has none. idle: seconds, 0: none.
    """

    container: str
    key: str
    gpu: str
    used: int
    limit: int
    cap: int
    weight: int
    priority: str
    oversubscribe: bool
    paused: bool
    frozen_ns: int
    processes: tuple[ShareProcess, ...] = ()
    own: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    groups: int = 0
    managed: int = 0
    guard: str = ""
    name: str = ""
    target: float | None = None
    achieved: float | None = None
    is_measured: bool = False
    suspended: int = 0
    latency: int = 0
    bound: int = 0
    service: str = ""
    request: int = 0
    most: int = 0
    idle: int = 0


def lowered(gpu: ResolvedGpu, header: RegionHeader, index: int) -> tuple[ResolvedGpu, tuple[str, ...]]:
    """What holds, and which settings the container lowered; it can lower only."""
    memory, cap, weight = header.memory[index], header.cap[index], header.weight[index]
    own = []
    if memory and (not gpu.memory or memory < gpu.memory):
        gpu = gpu.replace(memory=memory)
        own.append("mem")
    if cap and cap < gpu.cap:
        gpu = gpu.replace(cap=cap)
        own.append("cap")
    if weight and weight < (gpu.weight or DEFAULT_WEIGHT):
        gpu = gpu.replace(weight=weight)
        own.append("weight")
    return gpu, tuple(own)


def rows(
    container: str, key: str, limits: Limits, region: Region | None, host_pids: Mapping[int, int]
) -> tuple[ShareRow, ...]:
    """region: None where it could not be read. host_pids: by slot (``nvc.share.processes``)."""
    notes = _notes(limits, region)
    found = []
    for index, granted in enumerate(limits.gpus):
        gpu, own = lowered(granted, region.header, index) if region is not None else (granted, ())
        slots = region.slots if region is not None else ()
        on_it = [slot for slot in slots if slot.memory[index] or slot.groups[index]]
        processes = _processes(on_it, index, host_pids)
        found.append(
            ShareRow(
                container,
                key,
                gpu.uuid,
                sum(process.memory for process in processes),
                gpu.memory,
                gpu.cap,
                gpu.weight,
                gpu.priority,
                gpu.oversubscribe,
                limits.paused,
                max((slot.frozen_ns[index] for slot in on_it), default=0),
                processes,
                own,
                notes,
                sum(slot.groups[index] for slot in on_it),
                sum(slot.managed[index] for slot in on_it),
                latency=gpu.latency,
                request=gpu.request,
                most=gpu.most,
                idle=gpu.idle,
            )
        )
    return tuple(found)


def _processes(slots: list[RegionSlot], index: int, host_pids: Mapping[int, int]) -> tuple[ShareProcess, ...]:
    """Each once: a process has two slots where it has both of our libraries."""
    found: dict[tuple[int, int, int], ShareProcess] = {}
    for slot in slots:
        identity = slot.pid_namespace, slot.pid, slot.start_time
        known = found.get(identity, ShareProcess(slot.pid, 0, slot.name, 0))
        found[identity] = known.replace(
            host_pid=known.host_pid or host_pids.get(slot.index, 0), memory=known.memory + slot.memory[index]
        )
    return tuple(found.values())


def _notes(limits: Limits, region: Region | None) -> tuple[str, ...]:
    if region is None:
        return ("its region cannot be read",)
    notes = []
    if region.header.unknown_driver:
        notes.append(UNKNOWN_DRIVER)
    for number, (count, last) in enumerate(region.header.notes):
        if count and 0 < number < len(REASONS):
            notes.append(f"{REASONS[number]}: {count} (last {last:#x})")
    if region.damaged:
        notes.append(f"{region.damaged} damaged slots")
    own_threads = all(slot.threads_cap for slot in region.slots if slot.channels)
    if not own_threads and any(gpu.cap < CAP_WHOLE for gpu in limits.gpus):
        notes.append("cap: not taken up by every process yet")
    return tuple(notes)
