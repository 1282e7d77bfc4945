"""The agent's status: from what supervisors publish and the scheduler knows to one value."""

from __future__ import annotations

import asyncio
import time

from nvc import __version__
from nvc.agent.status import AgentStatus, StatusContainer, StatusGpu, StatusTenant, TenantGpu, TenantProcess
from nvc.share.model import CAP_WHOLE
from rpc.codec import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from nvc.agent.agent import Agent
    from nvc.agent.balance import Finding
    from nvc.agent.scheduler import ScheduledShare
    from nvc.agent.state.records import TenantRecord
    from nvc.agent.tenant import Tenant
    from nvc.guard.pages import TenantStatus
    from nvc.share.limits import Limits


#: Seconds that the agent may be kept from everything else by a status, and bytes of the tenants of a page: far below
#: ``nvc.guard.protocol.LIMIT``, for what a page has beside them. One tenant of 8 GPUs and 512 processes has 80 KB.
PART_SECONDS, PAGE_BYTES = 0.01, 256 << 10


def page(agent: Agent, after: int, container: str = "") -> dict[str, Any]:
    """A page of the status as data: tenants with ids beyond ``after``, as many as fit, one at least.

    container: only its tenant.
    """
    until = time.monotonic() + PART_SECONDS
    found: list[dict[str, Any]] = []
    size, is_cut = 0, False
    for tenant in _tenants(agent, after, container):
        if found and (size > PAGE_BYTES or time.monotonic() > until):
            is_cut = True
            break
        found.append(tenant.as_data())
        size += len(dumps(found[-1]))
    return {**_node(agent).as_data(), "tenants": found, "is_cut": is_cut}


async def whole(agent: Agent) -> AgentStatus:
    """Everything. Others have their turn in between, so tenants are as they were up to a second apart."""
    found = []
    until = time.monotonic() + PART_SECONDS
    for tenant in _tenants(agent):
        found.append(tenant)
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + PART_SECONDS
    return _node(agent).replace(tenants=tuple(found))


def _node(agent: Agent) -> AgentStatus:
    """Without tenants."""
    policies, findings = agent.policies(), agent.findings()
    gpus = tuple(
        StatusGpu(
            gpu.uuid,
            gpu.minor,
            gpu.memory,
            policies.get(gpu.uuid, agent.settings.policy),
            *_balance(agent, findings.get(gpu.uuid)),
        )
        for gpu in agent.inventory
    )
    return AgentStatus(__version__, agent.settings.policy, gpus, (), agent.journal.lost)


def _tenants(agent: Agent, after: int = 0, container: str = "") -> Iterator[StatusTenant]:
    """By number, each as it is when it is asked for; those that have gone by then are left out."""
    wanted = [
        tenant
        for tenant in agent.tenants
        if tenant.number > after
        and (not container or any(container in (one.key, one.container) for one in tenant.record.members))
    ]
    for tenant in sorted(wanted, key=lambda one: one.number):
        try:
            if agent.tenants.by_number(tenant.number) is tenant:
                yield _tenant(agent, tenant)
        except OSError:
            continue
    if not container:
        # Their numbers are beyond all others (nvc.guard.supervisors.ATTACHED).
        yield from sorted((one for one in agent.attached() if one.id > after), key=lambda one: one.id)


def _balance(agent: Agent, finding: Finding | None) -> tuple[int, bool, str]:
    """Of a GPU: bytes, whether that is said, and the container that it is of."""
    if finding is None:
        return 0, False, ""
    tenant = agent.tenants.by_number(finding.tenant)
    name = tenant.name if tenant is not None and finding.is_said else ""
    return max(0, finding.unaccounted), finding.is_said, name


def _tenant(agent: Agent, tenant: Tenant) -> StatusTenant:
    """Raises OSError when the guard knows it no more."""
    number = tenant.number
    published = agent.supervisors.status(number), agent.supervisors.processes(number), agent.supervisors.build(number)
    shares = [agent.shares(tenant, index) for index in range(len(tenant.limits.gpus))]
    reported = [agent.reported(tenant, gpu.uuid) for gpu in tenant.limits.gpus]
    computed = [agent.computed(tenant, gpu.uuid) for gpu in tenant.limits.gpus]
    return of(tenant.record, tenant.limits, *published, shares, reported, computed)


def of(
    record: TenantRecord,
    limits: Limits,
    found: TenantStatus,
    pids: tuple[tuple[int, tuple[int, ...]], ...],
    build: str,
    shares: Sequence[ScheduledShare] = (),
    reported: Sequence[int] = (),
    computed: Sequence[tuple[float | None, int]] = (),
) -> StatusTenant:
    """A tenant by what its supervisor publishes. pids: with bytes a GPU.

    shares, reported (bytes, by the prober), computed (``Agent.computed``): a GPU each, or none.
    """
    gpus = []
    for index, (limit, used) in enumerate(zip(limits.gpus, found.gpus, strict=False)):
        share = shares[index] if shares else None
        part, computed_ns = computed[index] if computed else (None, 0)
        estimate = share.achieved if share else 0.0
        gpus.append(
            TenantGpu(
                uuid=limit.uuid,
                limit=limit.memory,
                memory=used.memory,
                managed=used.managed,
                driver_usage=max(used.driver_usage, reported[index] if reported else 0),
                cap=0 if limit.cap >= CAP_WHOLE else limit.cap,
                weight=limit.weight,
                priority=limit.priority,
                target_ratio=share.target if share else 0.0,
                achieved_ratio=estimate if part is None else part,
                groups=used.groups,
                slice_us=used.slice,
                frozen=used.frozen,
                frozen_ns=used.frozen_ns,
                cap_in_force=share is None or share.cap_in_force or limits.paused,
                is_measured=part is not None,
                computed_ns=computed_ns,
            )
        )
    return StatusTenant(
        id=record.number,
        container=record.name,
        pid=record.pid,
        kind="guard",
        since=record.since,
        gpus=tuple(gpus),
        processes=tuple(TenantProcess(pid, memory) for pid, memory in pids),
        denials=dict(found.reasons),
        notifications=found.notifications,
        handling_ns=found.handling_ns,
        paused=limits.paused,
        build=build,
        containers=tuple(StatusContainer(one.name, one.pid, one.engine_name) for one in record.members),
        name=record.engine_name if not record.others else "",
    )
