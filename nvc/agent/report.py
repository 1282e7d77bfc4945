"""The agent's status: from what supervisors publish and the scheduler knows to one value."""

from __future__ import annotations

from nvc import __version__
from nvc.agent.status import AgentStatus, StatusGpu, StatusTenant, TenantGpu, TenantProcess
from nvc.share.model import CAP_WHOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.agent import Agent
    from nvc.agent.tenant import Tenant


def status(agent: Agent) -> AgentStatus:
    """Everything, now. Tenants that go away meanwhile are left out."""
    policies = agent.policies()
    gpus = tuple(
        StatusGpu(gpu.uuid, gpu.minor, gpu.memory, policies.get(gpu.uuid, agent.settings.policy))
        for gpu in agent.inventory
    )
    tenants = []
    for tenant in agent.tenants:
        try:
            tenants.append(_tenant(agent, tenant))
        except OSError:
            continue
    tenants += agent.attached()
    return AgentStatus(__version__, agent.settings.policy, gpus, tuple(tenants), agent.journal.lost)


def _tenant(agent: Agent, tenant: Tenant) -> StatusTenant:
    """Raises OSError when the guard knows it no more."""
    found = agent.supervisors.status(tenant.number)
    processes = tuple(TenantProcess(pid, memory) for pid, memory in agent.supervisors.processes(tenant.number))
    gpus = []
    for index, (limit, used) in enumerate(zip(tenant.limits.gpus, found.gpus, strict=False)):
        share = agent.shares(tenant, index)
        gpus.append(
            TenantGpu(
                uuid=limit.uuid,
                limit=limit.memory,
                memory=used.memory,
                managed=used.managed,
                driver_usage=used.driver_usage,
                cap=0 if limit.cap >= CAP_WHOLE else limit.cap,
                weight=limit.weight,
                priority=limit.priority,
                target_ratio=share.target,
                achieved_ratio=share.achieved,
                groups=used.groups,
                slice_us=used.slice,
                frozen=used.frozen,
                frozen_ns=used.frozen_ns,
                cap_in_force=share.cap_in_force or tenant.limits.paused,
            )
        )
    return StatusTenant(
        id=tenant.number,
        container=tenant.name,
        pid=tenant.record.pid,
        kind="guard",
        since=tenant.record.since,
        gpus=tuple(gpus),
        processes=processes,
        denials=dict(found.reasons),
        notifications=found.notifications,
        handling_ns=found.handling_ns,
        paused=tenant.limits.paused,
    )
