"""What Prometheus reads of the agent: a row for each metric, and its samples from the agent's status.

A row says name, kind, unit, labels and help; docs/user/metrics.md has the same rows, and the dashboard in
packaging/grafana uses no other names (tests compare). Times are seconds, sizes bytes, parts are ratios of 1. Labels
are a container's name and a GPU's UUID, never a pid: a container that goes takes its series along, and at most TENANTS
have any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.agent.status import AgentStatus, StatusTenant, TenantGpu
from nvc.base.record import Record
from nvc.bindings.reasons import REASONS
from nvc.share.model import CAP_WHOLE, DEFAULT_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Sample = tuple[tuple[str, ...], float]

#: How many tenants have series: those that came first. ``nvc_metrics_tenants_left_out`` counts the others.
TENANTS = 2048
#: A count of things, which has no unit in its name.
COUNT = ""
#: A reason that this version does not know: the number of series must not grow with what an agent says.
OTHER = "other"
_NANOSECOND = 1e-9
_MICROSECOND = 1e-6


class Row(Record):
    """A metric. kind: "gauge" or "counter", whose name ends with _total. unit: what its name ends with, or COUNT."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str
    samples: Callable[[AgentStatus], Iterable[Sample]]


def names(status: AgentStatus) -> dict[int, str]:
    """Tenant's number -> the value of its label ``container``, no two alike."""
    found: dict[int, str] = {}
    taken: set[str] = set()
    for tenant in status.tenants:
        name = tenant.container or f"pid-{tenant.pid}"
        if name in taken:
            name = f"{name}#{tenant.id}"
        taken.add(name)
        found[tenant.id] = name
    return found


def bounded(status: AgentStatus) -> AgentStatus:
    """A status with no more than TENANTS tenants."""
    if len(status.tenants) <= TENANTS:
        return status
    return status.replace(tenants=tuple(sorted(status.tenants, key=lambda tenant: tenant.id)[:TENANTS]))


def limit(status: AgentStatus, gpu: TenantGpu) -> int:
    """A tenant's limit in bytes; without one the GPU's memory, 0 where that is not known."""
    return gpu.limit or next((one.memory for one in status.gpus if one.uuid == gpu.uuid), 0)


def cap(gpu: TenantGpu) -> float:
    """The part of the GPU's time that a tenant may have at most; 1 without a cap."""
    return gpu.cap / CAP_WHOLE if 0 < gpu.cap < CAP_WHOLE else 1.0


def denials(tenant: StatusTenant) -> dict[str, int]:
    """Reason -> how often, with the reasons that are not known as one.

    A guard's tenant has all reasons, at 0 if need be: a rate needs a number before the first denial.
    """
    found = dict.fromkeys(REASONS[1:], 0) if tenant.kind == "guard" else {}
    for word, count in tenant.denials.items():
        if word == REASONS[0]:
            continue
        known = word if word in REASONS else OTHER
        found[known] = found.get(known, 0) + count
    return found


def _each_gpu(value: Callable[[TenantGpu], float]) -> Callable[[AgentStatus], Iterator[Sample]]:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        named = names(status)
        for tenant in status.tenants:
            for gpu in tenant.gpus:
                yield (named[tenant.id], gpu.uuid), value(gpu)

    return samples


def _each_tenant(value: Callable[[StatusTenant], float]) -> Callable[[AgentStatus], Iterator[Sample]]:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        named = names(status)
        for tenant in status.tenants:
            yield (named[tenant.id],), value(tenant)

    return samples


def _limits(status: AgentStatus) -> Iterator[Sample]:
    named = names(status)
    for tenant in status.tenants:
        for gpu in tenant.gpus:
            if size := limit(status, gpu):
                yield (named[tenant.id], gpu.uuid), size


def _caps_in_force(status: AgentStatus) -> Iterator[Sample]:
    named = names(status)
    for tenant in status.tenants:
        for gpu in tenant.gpus:
            if 0 < gpu.cap < CAP_WHOLE:
                yield (named[tenant.id], gpu.uuid), float(gpu.cap_in_force)


def _unaccounted(status: AgentStatus) -> Iterator[Sample]:
    named, by = names(status), {gpu.uuid: gpu.unaccounted_by for gpu in status.gpus}
    for tenant in status.tenants:
        for gpu in tenant.gpus:
            yield (named[tenant.id], gpu.uuid), float(bool(tenant.container) and by.get(gpu.uuid) == tenant.container)


def _infos(status: AgentStatus) -> Iterator[Sample]:
    named = names(status)
    for tenant in status.tenants:
        for gpu in tenant.gpus:
            yield (named[tenant.id], gpu.uuid, tenant.kind, gpu.priority), 1


def _named(status: AgentStatus) -> Iterator[Sample]:
    named = names(status)
    for tenant in status.tenants:
        for name in dict.fromkeys((tenant.name, *(one.engine_name for one in tenant.containers))):
            if name:  # of a group: one for each container
                yield (named[tenant.id], *engine_names(name)), 1


def engine_names(name: str) -> tuple[str, str, str]:
    """Namespace, pod and container by the engine, "" for what is not known. name: as in ``StatusContainer``."""
    namespace, pod, container = (*name.split("/"), "", "", "")[:3]
    return namespace, pod, container


def _denials(status: AgentStatus) -> Iterator[Sample]:
    named = names(status)
    for tenant in status.tenants:
        for reason, count in sorted(denials(tenant).items()):
            yield (named[tenant.id], reason), count


def _kinds(status: AgentStatus) -> Iterator[Sample]:
    for kind in ("guard", "attach"):
        yield (kind,), sum(tenant.kind == kind for tenant in status.tenants)


_GPU = ("container", "gpu")
_TENANT = ("container",)
#: What is said of the agent and its GPUs, of every tenant whether it has series or not.
NODE = (
    Row(
        "nvc_agent_info",
        "gauge",
        COUNT,
        ("version", "policy"),
        "The agent's version, and the scheduling policy of GPUs that have none of their own.",
        lambda status: [((status.version, status.policy), 1)],
    ),
    Row(
        "nvc_agent_log_lines_lost_total",
        "counter",
        COUNT,
        (),
        "Lines of the agent's log that could not be written, because standard error was not read or the disk was full.",
        lambda status: [((), status.log_lost)],
    ),
    Row("nvc_tenants", "gauge", COUNT, ("kind",), "Tenants: under the guard, or scheduled only (attach).", _kinds),
    Row(
        "nvc_metrics_tenants_left_out",
        "gauge",
        COUNT,
        (),
        f"Tenants without series, because {TENANTS} others came before.",
        lambda status: [((), max(0, len(status.tenants) - TENANTS))],
    ),
    Row(
        "nvc_gpu_info",
        "gauge",
        COUNT,
        ("gpu", "minor", "policy"),
        "A GPU: its UUID, N of /dev/nvidiaN, and its scheduling policy.",
        lambda status: [((gpu.uuid, str(gpu.minor), gpu.policy), 1) for gpu in status.gpus],
    ),
    Row(
        "nvc_gpu_memory_bytes",
        "gauge",
        "bytes",
        ("gpu",),
        "Memory that a GPU has.",
        lambda status: [((gpu.uuid,), gpu.memory) for gpu in status.gpus],
    ),
    Row(
        "nvc_gpu_unaccounted_bytes",
        "gauge",
        "bytes",
        ("gpu",),
        "Memory of a GPU in use that no tenant is charged for, and no process outside of tenants has.",
        lambda status: [((gpu.uuid,), gpu.unaccounted) for gpu in status.gpus],
    ),
    Row(
        "nvc_gpu_unbalanced",
        "gauge",
        COUNT,
        ("gpu",),
        "1 while more memory of a GPU is unaccounted for than may be.",
        lambda status: [((gpu.uuid,), float(gpu.is_unbalanced)) for gpu in status.gpus],
    ),
)
#: What is said of each tenant.
TENANT = (
    Row(
        "nvc_tenant_info",
        "gauge",
        COUNT,
        (*_TENANT, "namespace", "pod", "container_name"),
        "What the engine calls a tenant's container, where its annotations say it.",
        _named,
    ),
    Row(
        "nvc_share_info",
        "gauge",
        COUNT,
        (*_GPU, "kind", "priority"),
        "A tenant's share of a GPU: its enforcer (guard, attach) and priority.",
        _infos,
    ),
    Row(
        "nvc_share_memory_bytes",
        "gauge",
        "bytes",
        _GPU,
        "Memory charged to a tenant, managed memory included.",
        _each_gpu(lambda gpu: gpu.memory),
    ),
    Row(
        "nvc_share_limit_bytes",
        "gauge",
        "bytes",
        _GPU,
        "Memory that a tenant may have; without a limit, what the GPU has.",
        _limits,
    ),
    Row(
        "nvc_share_managed_bytes",
        "gauge",
        "bytes",
        _GPU,
        "Managed memory (cuMemAllocManaged) charged to a tenant.",
        _each_gpu(lambda gpu: gpu.managed),
    ),
    Row(
        "nvc_share_driver_reported_bytes",
        "gauge",
        "bytes",
        _GPU,
        "Memory that a tenant's processes hold as the driver said last; 0 when it was not asked.",
        _each_gpu(lambda gpu: gpu.driver_usage),
    ),
    Row(
        "nvc_share_unaccounted",
        "gauge",
        COUNT,
        _GPU,
        "1 while a tenant is named as the one that has memory of a GPU which is unaccounted for.",
        _unaccounted,
    ),
    Row(
        "nvc_share_cap_ratio",
        "gauge",
        "ratio",
        _GPU,
        "Part of the GPU's time that a tenant may have at most; 1 without a cap.",
        _each_gpu(cap),
    ),
    Row(
        "nvc_share_cap_in_force",
        "gauge",
        COUNT,
        _GPU,
        "1 while a tenant's cap is kept, 0 while it is not; of tenants with a cap only.",
        _caps_in_force,
    ),
    Row(
        "nvc_share_weight",
        "gauge",
        COUNT,
        _GPU,
        f"Weight of a tenant beside the others; {DEFAULT_WEIGHT} is usual.",
        _each_gpu(lambda gpu: gpu.weight or DEFAULT_WEIGHT),
    ),
    Row(
        "nvc_share_target_ratio",
        "gauge",
        "ratio",
        _GPU,
        "Part of the GPU's time that the scheduler intends for a tenant; 0 without scheduling.",
        _each_gpu(lambda gpu: gpu.target_ratio),
    ),
    Row(
        "nvc_share_achieved_ratio",
        "gauge",
        "ratio",
        _GPU,
        "Part of the GPU's time in which a tenant computed in the last ten seconds, or an estimate of it.",
        _each_gpu(lambda gpu: gpu.achieved_ratio),
    ),
    Row(
        "nvc_share_achieved_measured",
        "gauge",
        COUNT,
        _GPU,
        "1 while the achieved ratio is measured, by the driver's samples; 0 while it is an estimate by the schedule.",
        _each_gpu(lambda gpu: float(gpu.is_measured)),
    ),
    Row(
        "nvc_share_computed_seconds_total",
        "counter",
        "seconds",
        _GPU,
        "Time in which a tenant computed, by the driver's samples since the agent's start.",
        _each_gpu(lambda gpu: gpu.computed_ns * _NANOSECOND),
    ),
    Row(
        "nvc_share_groups",
        "gauge",
        COUNT,
        _GPU,
        "Compute groups (CUDA contexts) of a tenant.",
        _each_gpu(lambda gpu: gpu.groups),
    ),
    Row(
        "nvc_share_timeslice_seconds",
        "gauge",
        "seconds",
        _GPU,
        "Timeslice of each of a tenant's compute groups; 0 is libcuda's own.",
        _each_gpu(lambda gpu: gpu.slice_us * _MICROSECOND),
    ),
    Row(
        "nvc_share_frozen",
        "gauge",
        COUNT,
        _GPU,
        "1 while a tenant's channels are off.",
        _each_gpu(lambda gpu: float(gpu.frozen)),
    ),
    Row(
        "nvc_share_frozen_seconds_total",
        "counter",
        "seconds",
        _GPU,
        "Time that a tenant's channels were off while it had a compute group, by its cap or a pause.",
        _each_gpu(lambda gpu: gpu.frozen_ns * _NANOSECOND),
    ),
    Row(
        "nvc_share_paused",
        "gauge",
        COUNT,
        _TENANT,
        "1 while a tenant is paused.",
        _each_tenant(lambda tenant: float(tenant.paused)),
    ),
    Row(
        "nvc_share_processes",
        "gauge",
        COUNT,
        _TENANT,
        "Processes of a tenant that called the driver.",
        _each_tenant(lambda tenant: len(tenant.processes)),
    ),
    Row(
        "nvc_share_start_time_seconds",
        "gauge",
        "seconds",
        _TENANT,
        "When the agent learnt of a tenant, in seconds since 1970.",
        _each_tenant(lambda tenant: tenant.since),
    ),
    Row(
        "nvc_guard_denials_total",
        "counter",
        COUNT,
        (*_TENANT, "reason"),
        "Calls of a tenant that were refused, or answered without being done.",
        _denials,
    ),
    Row(
        "nvc_guard_notifications_total",
        "counter",
        COUNT,
        _TENANT,
        "Calls of a tenant that the guard looked at.",
        _each_tenant(lambda tenant: tenant.notifications),
    ),
    Row(
        "nvc_guard_handling_seconds_total",
        "counter",
        "seconds",
        _TENANT,
        "Time from receiving a tenant's calls to answering them.",
        _each_tenant(lambda tenant: tenant.handling_ns * _NANOSECOND),
    ),
)
ROWS = (*NODE, *TENANT)
