"""The reply to ``status``: what the agent knows of GPUs and tenants, as values; and how a client gets all of it."""

from __future__ import annotations

from nvc.base.errors import AgentError
from nvc.base.progress import waiting
from nvc.base.record import DecodeError, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nvc.share.protocol import Client


class StatusGpu(Record):
    """A GPU. memory: bytes in all. policy: the name of its scheduling policy (nvc.guard.scheduling).

    unaccounted: bytes in use that no tenant is charged for and that are reported for no process of none.
    is_unbalanced: that is more than may be, for more than a second. unaccounted_by: the container that has it; "": not
    known. xids: number of an Xid event -> how often, since the agent's start, of processes of no tenant.
    energy: joules, by its counter while it had tenants since the agent's start; None: not known.
    """

    uuid: str
    minor: int
    memory: int
    policy: str
    unaccounted: int = 0
    is_unbalanced: bool = False
    unaccounted_by: str = ""
    xids: dict[str, int] = {}
    energy: float | None = None


class TenantGpu(Record):
    """What a tenant may use of one GPU, and what it uses.

    limit, memory, managed, driver_usage: bytes; limit 0: as much as there is; managed is part of memory; driver_usage:
    what the driver said last, 0 when it was not asked. cap: 1/1000, 0: none. weight: 0: the usual one.
    target_ratio, achieved_ratio: parts of the GPU's time, 0 to 1; 0 without scheduling. groups: compute groups.
    slice_us: their timeslice, 0: libcuda's own. frozen_ns: while it had groups, since the tenant came. cap_in_force:
    whether its cap is in force, or it is paused; of no meaning without a cap. is_measured: achieved_ratio is of the
    driver's samples of the last seconds; otherwise an estimate by the schedule. computed_ns: by such samples, since
    the agent's start. Of a service: latency_us, what it may wait; bound_us, what it waits at most now, 0 without
    groups; service, how it is served ("": not at all; nvc.guard.service.STATES). xids: number of an Xid event -> how
    often, since the agent's start. energy: joules of the GPU for what it computed, since the agent's start; None: not
    known. Of a range: request, what is guaranteed, most, what limit can become; 0: it has none.
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
    is_measured: bool = False
    computed_ns: int = 0
    latency_us: int = 0
    bound_us: int = 0
    service: str = ""
    xids: dict[str, int] = {}
    energy: float | None = None
    request: int = 0
    most: int = 0


class TenantProcess(Record):
    """A process that called the driver. memory: bytes for each of the tenant's GPUs, as the driver said last."""

    pid: int
    memory: tuple[int, ...]


class StatusContainer(Record):
    """A container of a tenant.

    name: its id, or its key where none is known. pid: its first process, 0: not known. engine_name:
    "NAMESPACE/POD/CONTAINER" by the engine, "": not known.
    """

    name: str
    pid: int
    engine_name: str = ""


class StatusTenant(Record):
    """A container under the guard, those of a group, or processes that are scheduled only (kind "attach").

    id: the agent's number. container: its name, "group:NAME" for a group. pid: its first process, 0: not known.
    containers: one, or those of a group; none with kind "attach".
    since: seconds, CLOCK_REALTIME. denials: word -> how often. handling_ns: the guard's time, all calls together.
    build: the version of its supervisor; "": not known. name: the engine's, of a tenant of one
    container; "": not known. suspended: bytes for each GPU that are on the host; empty: it is not suspended.
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
    build: str = ""
    containers: tuple[StatusContainer, ...] = ()
    name: str = ""
    suspended: tuple[int, ...] = ()


class AgentStatus(Record):
    """version: of the agent. policy: that of GPUs that have none of their own. log_lost: lines, since it began.

    tenants: by id, ascending. is_cut: of a page: there are tenants with greater ids.
    """

    version: str
    policy: str
    gpus: tuple[StatusGpu, ...]
    tenants: tuple[StatusTenant, ...]
    log_lost: int = 0
    is_cut: bool = False


#: Beyond every tenant's id: a page of no tenant.
NO_TENANT = 1 << 62


def ask(client: Client, *, after: int = 0, container: str = "") -> AgentStatus:
    """The agent's status, all of its pages. Raises AgentError, or the NvcError that the agent answered with.

    after: only tenants with greater ids; NO_TENANT: none. container: only the tenant of this one, by its whole id or
    key. Each tenant is as it was when its page was made: one that comes meanwhile is there, or not.
    """
    found: list[StatusTenant] = []
    client.send("status", after=after or None, container=container or None)
    while True:
        with waiting("the agent has not answered yet"):
            data = client.receive()
        last = _last(data) if data.get("is_cut") is True else None
        if last is not None:
            if last <= after:
                raise AgentError("the agent's status comes in pages without an end", hint="restart nvc-agent")
            after = last
            # The agent makes the next page while this one is decoded.
            client.send("status", after=after, container=container or None)
        try:
            page = AgentStatus.from_data(data)
        except DecodeError as error:
            client.close()  # an answer may be on its way
            raise AgentError(f"the agent is of another version: {error}", hint="restart nvc-agent") from None
        found += page.tenants
        if last is None:
            return page.replace(tenants=tuple(found))


def _last(page: Mapping[str, Any]) -> int:
    """The greatest id of a page that is cut; 0: it has none, or something that is none."""
    tenants = page.get("tenants")
    last = tenants[-1].get("id") if isinstance(tenants, list) and tenants and isinstance(tenants[-1], dict) else 0
    return last if isinstance(last, int) else 0
