"""What a metric is, and the samples of tenants: from the agent's status to labels and values. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.agent.status import AgentStatus, StatusTenant, TenantGpu
from nvc.base.record import Record
from nvc.bindings.reasons import REASONS
from nvc.share.model import CAP_WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Sample = tuple[tuple[str, ...], float]

#: How many tenants have series: those that came first. ``nvc_metrics_tenants_left_out`` counts the others.
TENANTS = 2048
#: A count of things, which has no unit in its name.
COUNT = ""
#: A reason that this version does not know: the number of series must not grow with what an agent says.
OTHER = "other"


class Row(Record):
    """A metric. kind: "gauge" or "counter", whose name ends with _total. unit: what its name ends with, or COUNT."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str
    samples: Callable[[AgentStatus], Iterable[Sample]]


def labelled(status: AgentStatus) -> AgentStatus:
    """With no more than TENANTS tenants, and ``container`` of each as the label of that name: no two alike."""
    found: dict[str, StatusTenant] = {}
    for tenant in sorted(status.tenants, key=lambda tenant: tenant.id)[:TENANTS]:
        name = tenant.container or f"pid-{tenant.pid}"
        if name in found:
            name = f"{name}#{tenant.id}"
        found[name] = tenant if name == tenant.container else tenant.replace(container=name)
    return status.replace(tenants=tuple(found.values()))


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


def each_gpu(value: Callable[[TenantGpu], float | None]) -> Callable[[AgentStatus], Iterator[Sample]]:
    """value: None: of this GPU there is no sample."""

    def samples(status: AgentStatus) -> Iterator[Sample]:
        for tenant in status.tenants:
            for gpu in tenant.gpus:
                if (found := value(gpu)) is not None:
                    yield (tenant.container, gpu.uuid), found

    return samples


def each_tenant(value: Callable[[StatusTenant], float]) -> Callable[[AgentStatus], Iterator[Sample]]:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        for tenant in status.tenants:
            yield (tenant.container,), value(tenant)

    return samples


def limits(status: AgentStatus) -> Iterator[Sample]:
    for tenant in status.tenants:
        for gpu in tenant.gpus:
            if size := limit(status, gpu):
                yield (tenant.container, gpu.uuid), size


def gpu_xids(status: AgentStatus) -> Iterator[Sample]:
    for gpu in status.gpus:
        for number, count in gpu.xids.items():
            yield (gpu.uuid, number), count


def xids(status: AgentStatus) -> Iterator[Sample]:
    for tenant in status.tenants:
        for gpu in tenant.gpus:
            for number, count in gpu.xids.items():
                yield (tenant.container, gpu.uuid, number), count


def unaccounted(status: AgentStatus) -> Iterator[Sample]:
    by = {gpu.uuid: gpu.unaccounted_by for gpu in status.gpus}
    for tenant in status.tenants:
        for gpu in tenant.gpus:
            yield (tenant.container, gpu.uuid), float(by.get(gpu.uuid) == tenant.container)


def infos(status: AgentStatus) -> Iterator[Sample]:
    for tenant in status.tenants:
        for gpu in tenant.gpus:
            yield (tenant.container, gpu.uuid, tenant.kind, gpu.priority), 1


def named(status: AgentStatus) -> Iterator[Sample]:
    for tenant in status.tenants:
        for name in dict.fromkeys((tenant.name, *(one.engine_name for one in tenant.containers))):
            if name:  # of a group: one for each container
                yield (tenant.container, *engine_names(name)), 1


def engine_names(name: str) -> tuple[str, str, str]:
    """Namespace, pod and container by the engine, "" for what is not known. name: as in ``StatusContainer``."""
    namespace, pod, container = (*name.split("/"), "", "", "")[:3]
    return namespace, pod, container


def denial_counts(status: AgentStatus) -> Iterator[Sample]:
    for tenant in status.tenants:
        for reason, count in sorted(denials(tenant).items()):
            yield (tenant.container, reason), count


def kinds(status: AgentStatus) -> Iterator[Sample]:
    for kind in ("guard", "attach"):
        yield (kind,), sum(tenant.kind == kind for tenant in status.tenants)
