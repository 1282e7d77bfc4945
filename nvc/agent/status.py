"""The reply to ``status``: what the agent knows of GPUs and tenants, as values."""

from __future__ import annotations

from nvc.base.record import Record


class StatusGpu(Record):
    """A GPU. memory: bytes in all. policy: the name of its scheduling policy (nvc.guard.scheduling)."""

    uuid: str
    minor: int
    memory: int
    policy: str


class TenantGpu(Record):
    """What a tenant may use of one GPU, and what it uses.

    limit, memory, managed, driver_usage: bytes; limit 0: as much as there is; managed is part of memory; driver_usage:
    what the driver said last, 0 when it was not asked. cap: 1/1000, 0: none. weight: 0: the usual one.
    target_ratio, achieved_ratio: parts of the GPU's time, 0 to 1; 0 without scheduling. groups: compute groups.
    slice_us: their timeslice, 0: libcuda's own. frozen_ns: since the tenant came. cap_in_force: whether its
    cap is in force, or it is paused; of no meaning without a cap.
    """

    uuid: str
    limit: int
    memory: int
    managed: int
    driver_usage: int
    cap: int
    weight: int
    priority: str
    target_ratio: float
    achieved_ratio: float
    groups: int
    slice_us: int
    frozen: bool
    frozen_ns: int
    cap_in_force: bool = True


class TenantProcess(Record):
    """A process that called the driver. memory: bytes for each of the tenant's GPUs, as the driver said last."""

    pid: int
    memory: tuple[int, ...]


class StatusTenant(Record):
    """A container under the guard, or processes that are scheduled only (kind "attach").

    id: the agent's number. container: its id, or its key where none is known. pid: its first process, 0: not known.
    since: seconds, CLOCK_REALTIME. denials: word -> how often. handling_ns: the guard's time, all calls together.
    """

    id: int
    container: str
    pid: int
    kind: str
    since: float
    gpus: tuple[TenantGpu, ...]
    processes: tuple[TenantProcess, ...]
    denials: dict[str, int]
    notifications: int
    handling_ns: int
    paused: bool


class AgentStatus(Record):
    """version: of the agent. policy: that of GPUs that have none of their own. log_lost: lines, since it began."""

    version: str
    policy: str
    gpus: tuple[StatusGpu, ...]
    tenants: tuple[StatusTenant, ...]
    log_lost: int = 0
