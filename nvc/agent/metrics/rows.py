"""What Prometheus reads of the agent: a row for each metric, and its samples from the agent's status.

A row says name, kind, unit, labels and help; docs/user/metrics.md has the same rows, and the dashboard in
packaging/grafana uses no other names (tests compare). Times are seconds, sizes bytes, parts are ratios of 1. Labels
are a container's name and a GPU's UUID, never a pid: a container that goes takes its series along, and at most TENANTS
have any.
"""

from __future__ import annotations

from nvc.agent.metrics.samples import (
    COUNT,
    TENANTS,
    Row,
    cap,
    caps_in_force,
    denial_counts,
    each_gpu,
    each_tenant,
    infos,
    kinds,
    limits,
    named,
    unaccounted,
)
from nvc.share.model import DEFAULT_WEIGHT

_NANOSECOND = 1e-9
_MICROSECOND = 1e-6
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
    Row("nvc_tenants", "gauge", COUNT, ("kind",), "Tenants: under the guard, or scheduled only (attach).", kinds),
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
        named,
    ),
    Row(
        "nvc_share_info",
        "gauge",
        COUNT,
        (*_GPU, "kind", "priority"),
        "A tenant's share of a GPU: its enforcer (guard, attach) and priority.",
        infos,
    ),
    Row(
        "nvc_share_memory_bytes",
        "gauge",
        "bytes",
        _GPU,
        "Memory charged to a tenant, managed memory included.",
        each_gpu(lambda gpu: gpu.memory),
    ),
    Row(
        "nvc_share_limit_bytes",
        "gauge",
        "bytes",
        _GPU,
        "Memory that a tenant may have; without a limit, what the GPU has.",
        limits,
    ),
    Row(
        "nvc_share_managed_bytes",
        "gauge",
        "bytes",
        _GPU,
        "Managed memory (cuMemAllocManaged) charged to a tenant.",
        each_gpu(lambda gpu: gpu.managed),
    ),
    Row(
        "nvc_share_driver_reported_bytes",
        "gauge",
        "bytes",
        _GPU,
        "Memory that a tenant's processes hold as the driver said last; 0 when it was not asked.",
        each_gpu(lambda gpu: gpu.driver_usage),
    ),
    Row(
        "nvc_share_unaccounted",
        "gauge",
        COUNT,
        _GPU,
        "1 while a tenant is named as the one that has memory of a GPU which is unaccounted for.",
        unaccounted,
    ),
    Row(
        "nvc_share_cap_ratio",
        "gauge",
        "ratio",
        _GPU,
        "Part of the GPU's time that a tenant may have at most; 1 without a cap.",
        each_gpu(cap),
    ),
    Row(
        "nvc_share_cap_in_force",
        "gauge",
        COUNT,
        _GPU,
        "1 while a tenant's cap is kept, 0 while it is not; of tenants with a cap only.",
        caps_in_force,
    ),
    Row(
        "nvc_share_weight",
        "gauge",
        COUNT,
        _GPU,
        f"Weight of a tenant beside the others; {DEFAULT_WEIGHT} is usual.",
        each_gpu(lambda gpu: gpu.weight or DEFAULT_WEIGHT),
    ),
    Row(
        "nvc_share_target_ratio",
        "gauge",
        "ratio",
        _GPU,
        "Part of the GPU's time that the scheduler intends for a tenant; 0 without scheduling.",
        each_gpu(lambda gpu: gpu.target_ratio),
    ),
    Row(
        "nvc_share_achieved_ratio",
        "gauge",
        "ratio",
        _GPU,
        "Estimate of the part of the GPU's time that a tenant with work got; 0 without scheduling.",
        each_gpu(lambda gpu: gpu.achieved_ratio),
    ),
    Row(
        "nvc_share_groups",
        "gauge",
        COUNT,
        _GPU,
        "Compute groups (CUDA contexts) of a tenant.",
        each_gpu(lambda gpu: gpu.groups),
    ),
    Row(
        "nvc_share_timeslice_seconds",
        "gauge",
        "seconds",
        _GPU,
        "Timeslice of each of a tenant's compute groups; 0 is libcuda's own.",
        each_gpu(lambda gpu: gpu.slice_us * _MICROSECOND),
    ),
    Row(
        "nvc_share_frozen",
        "gauge",
        COUNT,
        _GPU,
        "1 while a tenant's channels are off.",
        each_gpu(lambda gpu: float(gpu.frozen)),
    ),
    Row(
        "nvc_share_frozen_seconds_total",
        "counter",
        "seconds",
        _GPU,
        "Time that a tenant's channels were off, by its cap or a pause.",
        each_gpu(lambda gpu: gpu.frozen_ns * _NANOSECOND),
    ),
    Row(
        "nvc_share_paused",
        "gauge",
        COUNT,
        _TENANT,
        "1 while a tenant is paused.",
        each_tenant(lambda tenant: float(tenant.paused)),
    ),
    Row(
        "nvc_share_processes",
        "gauge",
        COUNT,
        _TENANT,
        "Processes of a tenant that called the driver.",
        each_tenant(lambda tenant: len(tenant.processes)),
    ),
    Row(
        "nvc_share_start_time_seconds",
        "gauge",
        "seconds",
        _TENANT,
        "When the agent learnt of a tenant, in seconds since 1970.",
        each_tenant(lambda tenant: tenant.since),
    ),
    Row(
        "nvc_guard_denials_total",
        "counter",
        COUNT,
        (*_TENANT, "reason"),
        "Calls of a tenant that were refused, or answered without being done.",
        denial_counts,
    ),
    Row(
        "nvc_guard_notifications_total",
        "counter",
        COUNT,
        _TENANT,
        "Calls of a tenant that the guard looked at.",
        each_tenant(lambda tenant: tenant.notifications),
    ),
    Row(
        "nvc_guard_handling_seconds_total",
        "counter",
        "seconds",
        _TENANT,
        "Time from receiving a tenant's calls to answering them.",
        each_tenant(lambda tenant: tenant.handling_ns * _NANOSECOND),
    ),
)
ROWS = (*NODE, *TENANT)
