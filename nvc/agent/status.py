"""The reply to ``status``: what the agent knows of GPUs and tenants, as values."""

from __future__ import annotations

from nvc.record import Record


class StatusGpu(Record):
    """A GPU. memory: bytes in all. policy: the name of its scheduling policy (nvc.guard.schedule)."""

    uuid: str
    minor: int
    memory: int
    policy: str


class TenantGpu(Record):
    """What a tenant may use of one GPU, and what it uses.

    limit, memory, managed, truth: bytes; limit 0: as much as there is; managed is part of memory; truth is what the
    driver said last, 0 when it was not asked. cap: hundredths of a percent, 0: none. weight: 0: the usual one.
    share_wished, share_got: parts of the GPU's time, 0 to 1; 0 when nobody schedules. groups: compute groups.
    slice_us: their timeslice, 0: libcuda's own. frozen_ns: since the tenant came. cap_in_force: that its cap is kept,
    or it is paused; says nothing without a cap.
    """

    uuid: str
    limit: int
    memory: int
    managed: int
    truth: int
    cap: int
    weight: int
    priority: str
    share_wished: float
    share_got: float
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
