"""The agent's status: from what supervisors publish and the scheduler knows to one value."""

from __future__ import annotations

import asyncio
import time

from nvc import __version__
from nvc.agent.status import AgentStatus, StatusContainer, StatusGpu, StatusTenant, TenantGpu, TenantProcess
from nvc.share.model import CAP_WHOLE
from nvc.share.protocol import Encoded
from rpc.codec import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from nvc.agent.agent import Agent
    from nvc.agent.balance import Finding
    from nvc.agent.scheduled import ScheduledShare
    from nvc.agent.state.records import TenantRecord
    from nvc.agent.tenant import Tenant
    from nvc.guard.pages import TenantStatus
    from nvc.share.limits import Limits


#: Seconds that the agent may be kept from everything else by a status, and bytes of the tenants of a page: far below
#: ``nvc.share.protocol.LIMIT``, for what a page has beside them. One tenant of 8 GPUs and 512 processes has 80 KB.
PART_SECONDS, PAGE_BYTES = 0.01, 256 << 10


def page(agent: Agent, after: int, container: str = "") -> dict[str, Any]:
    """A page of the status, encoded: tenants with ids beyond ``after``, as many as fit, one at least.

    container: only its tenant.
    """
    until = time.monotonic() + PART_SECONDS
    found: list[bytes] = []
    size, is_cut = 0, False
    for row in _rows(agent, after, container):
        if found and (size > PAGE_BYTES or time.monotonic() > until):
            is_cut = True
            break
        found.append(row.encoded())
        size += len(found[-1])
    return {**_node(agent).as_data(), "tenants": Encoded(b"[%b]" % b",".join(found)), "is_cut": is_cut}


async def whole(agent: Agent) -> AgentStatus:
    """Everything. Others have their turn in between, so tenants are as they were up to a second apart."""
    found = []
    until = time.monotonic() + PART_SECONDS
    for row in _rows(agent):
        found.append(row.tenant)
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + PART_SECONDS
    return _node(agent).replace(tenants=tuple(found))


class Row:
    """A tenant as it was reported last, and ``of`` what: it is not made again while that is the same."""

    def __init__(self, tenant: StatusTenant, of: tuple[object, ...] = ()) -> None:
        self.tenant, self.of = tenant, of
        self._encoded = b""

    def encoded(self) -> bytes:
        """As JSON."""
        if not self._encoded:
            self._encoded = dumps(self.tenant.as_data())
        return self._encoded


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
            _named(agent.xids(0, gpu.uuid)),
            agent.gpu_energy(gpu.uuid),
        )
        for gpu in agent.inventory
    )
    return AgentStatus(__version__, agent.settings.policy, gpus, (), agent.journal.lost)


def _rows(agent: Agent, after: int = 0, container: str = "") -> Iterator[Row]:
    """By number, each as it is when it is asked for; those that have gone by then are left out."""
    tenants = agent.tenants
    unmanaged = {
        one.id: one
        for one in tenants.unmanaged.status()
        if one.id > after and (not container or any(container == of.name for of in one.containers))
    }
    for number in sorted({*(tenants.named(container) if container else tenants.numbers()), *unmanaged}):
        if number in unmanaged:
            yield Row(unmanaged[number])
            continue
        tenant = tenants.by_number(number) if number > after else None
        if tenant is not None:
            try:
                yield _row(agent, tenant)
            except OSError:
                continue
    if not container:
        # Their numbers are beyond all others (nvc.guard.supervisors.ATTACHED).
        yield from map(Row, sorted((one for one in agent.attached() if one.id > after), key=lambda one: one.id))


def _named(xids: Mapping[int, int]) -> dict[str, int]:
    return {str(number): count for number, count in sorted(xids.items())}


def _balance(agent: Agent, finding: Finding | None) -> tuple[int, bool, str]:
    """Of a GPU: bytes, whether that is said, and the container that it is of."""
    if finding is None:
        return 0, False, ""
    tenant = agent.tenants.by_number(finding.tenant)
    name = tenant.name if tenant is not None and finding.is_said else ""
    return max(0, finding.unaccounted), finding.is_said, name


def _row(agent: Agent, tenant: Tenant) -> Row:
    """Raises OSError when the guard knows it no more."""
    number, record, limits = tenant.number, tenant.record, tenant.limits
    stamp = agent.supervisors.stamp(number)  # first: what is published meanwhile is in the next row
    shares = [agent.shares(tenant, index) for index in range(len(limits.gpus))]
    reported = [agent.reported(tenant, gpu.uuid) for gpu in limits.gpus]
    computed = [agent.computed(tenant, gpu.uuid) for gpu in limits.gpus]
    xids = [_named(agent.xids(number, gpu.uuid)) for gpu in limits.gpus]
    energy = [agent.energy(tenant, gpu.uuid) for gpu in limits.gpus]
    inputs = stamp, record, limits, shares, reported, computed, xids, energy
    if tenant.row is None or tenant.row.of != inputs:
        published = *agent.supervisors.published(number), agent.supervisors.build(number)
        found = of(record, limits, *published, shares, reported, computed, xids, energy)
        # The time that it is frozen for goes on.
        tenant.row = Row(found, () if any(gpu.frozen for gpu in found.gpus) else inputs)
    return tenant.row


def of(
    record: TenantRecord,
    limits: Limits,
    found: TenantStatus,
    pids: tuple[tuple[int, tuple[int, ...]], ...],
    build: str,
    shares: Sequence[ScheduledShare] = (),
    reported: Sequence[int] = (),
    computed: Sequence[tuple[float | None, int]] = (),
    xids: Sequence[dict[str, int]] = (),
    energy: Sequence[float | None] = (),
) -> StatusTenant:
    """A tenant by what its supervisor publishes. pids: with bytes a GPU.

    shares, reported (bytes, by the prober), computed (``Agent.computed``), xids, energy: a GPU each, or none.
    """
    gpus = []
    for index, (limit, used) in enumerate(zip(limits.gpus, found.gpus, strict=False)):
        share = shares[index] if shares else None
        part, computed_ns = computed[index] if computed else (None, 0)
        estimate = share.achieved if share else 0.0
        gpus.append(
            TenantGpu(  # by position: hundreds of tenants have thousands of them
                limit.uuid,
                limit.memory,
                used.memory,
                used.managed,
                max(used.driver_usage, reported[index] if reported else 0),
                0 if limit.cap >= CAP_WHOLE else limit.cap,
                limit.weight,
                limit.priority,
                share.target if share else 0.0,
                estimate if part is None else part,
                used.groups,
                used.slice,
                used.frozen,
                used.frozen_ns,
                share is None or share.cap_in_force or limits.paused,
                part is not None,
                computed_ns,
                limit.latency,
                share.bound_us if share else 0,
                share.service if share else "",
                xids[index] if xids else {},
                energy[index] if energy else None,
                limit.request,
                limit.most,
            )
        )
    return StatusTenant(
        record.number,
        record.name,
        record.pid,
        "guard",
        record.since,
        tuple(gpus),
        tuple([TenantProcess(pid, memory) for pid, memory in pids]),
        dict(found.reasons),
        found.notifications,
        found.handling_ns,
        limits.paused,
        build,
        tuple([StatusContainer(one.name, one.pid, one.engine_name) for one in record.members]),
        record.engine_name if not record.others else "",
        record.suspended.memory if record.suspended is not None else (),
    )
