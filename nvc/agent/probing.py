"""The agent's part about what the driver reports: the node's prober, memory and computed time of tenants, balances."""

from __future__ import annotations

import asyncio
import contextlib
import time

from nvc.agent.balance import Balance, Finding, Sight
from nvc.agent.computed import ComputedTime, is_in_step
from nvc.agent.owners import Owners
from nvc.agent.part import Part
from nvc.agent.settings import FREEZE, STOP_ADMISSION
from nvc.agent.waiting import Turn
from nvc.base.errors import ContainerError, NvcError
from nvc.guard.scheduling import SWITCH_US
from nvc.share import change
from nvc.share.limits import NODE_UVM
from nvc.share.model import CAP_WHOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nvc.agent.agent import Agent
    from nvc.agent.tenant import Tenant
    from nvc.guard.pages import TenantStatus
    from nvc.guard.prober import Prober
    from nvc.guard.publications import Reader
    from nvc.guard.usage import GpuUsage
    from nvc.share.limits import Limits

#: Seconds that the first container of a node waits for the prober's first answer, and between two looks at it.
_FIRST_S, _LOOK_S = 2.0, 0.005
#: No more of the agent's time than this goes into balancing: with hundreds of tenants it is done less often.
EFFORT = 0.01
#: Seconds between two balances of a GPU while what the driver says, and what its tenants publish, stays the same.
IDLE_S = 4.0


class Probing(Part):
    """From the first tenant on. Without a prober supervisors ask the driver themselves, and nothing is balanced."""

    _agent: Agent
    _prober: Prober
    _owners: Owners
    _news: Reader
    _problem = ""
    #: Whether the driver has answered since the first tenant came.
    _is_known = False
    #: When there may be another balance.
    _again = 0.0

    def __init__(self) -> None:
        self._balances: dict[str, Balance] = {}
        self._findings: dict[str, Finding] = {}
        self._asked: dict[str, GpuUsage] = {}
        #: UUID -> when it was balanced last, by time.monotonic(); GPUs of which something else has changed since.
        self._balanced: dict[str, float] = {}
        self._changed: set[str] = set()
        #: Tenant -> what its supervisor published last, and pids of its processes.
        self._published: dict[int, tuple[TenantStatus, tuple[int, ...]]] = {}
        #: UUID -> the tenant that was said last, 0: none is known; nothing was said where it is missing.
        self._said: dict[str, int] = {}
        #: GPUs on which a service is: each answer says what it does.
        self._serving: set[str] = set()
        #: Tenant -> UUID -> bytes that the driver reports of the tenant's processes.
        self._reported: dict[int, dict[str, int]] = {}
        #: UUID -> computed time.
        self._computed: dict[str, ComputedTime] = {}
        self._pausing: set[asyncio.Task[None]] = set()
        self._balancing: asyncio.Task[None] | None = None

    async def start(self, agent: Agent) -> None:
        self._agent = agent
        self._prober = agent.supervisors.prober()
        self._owners = Owners(agent.options.directory, agent.settings.first_uid)
        self._news = agent.supervisors.publications.reader()
        for tenant in agent.tenants:
            self.added(tenant)

    async def arriving(self) -> None:
        """What a GPU has in use without tenants is to be known before the first one has any of it."""
        until = time.monotonic() + _FIRST_S
        self._prober.need()
        while not self._problem and time.monotonic() < until:
            if self._is_known and len(self._agent.tenants):
                return  # a driver that answers late delays no further container
            with contextlib.suppress(OSError):
                if self._agent.supervisors.usage().gpus:
                    self._is_known = True
                    return
            await asyncio.sleep(_LOOK_S)
            self.look()

    def check(self, limits: Limits) -> None:
        if self._agent.settings.unaccounted != STOP_ADMISSION:
            return
        for gpu in limits.gpus:
            finding = self._findings.get(gpu.uuid)
            if finding is not None and finding.is_said:
                raise ContainerError(
                    f"GPU {gpu.uuid}: {finding.unaccounted >> 20} MiB are in use that no container is charged for",
                    hint='see `nvc-py top`; [agent] unaccounted = "warn" in config.toml admits it all the same',
                )

    def added(self, tenant: Tenant) -> None:
        self._prober.tenant(tenant.number, [gpu.uuid for gpu in tenant.limits.gpus])

    def changed(self, tenant: Tenant) -> None:
        self._changed.update(gpu.uuid for gpu in tenant.limits.gpus)

    def gone(self, tenant: Tenant) -> None:
        self.changed(tenant)
        self._published.pop(tenant.number, None)
        self._prober.gone(tenant.number)
        self._owners.gone(tenant.number)
        for computed in self._computed.values():
            computed.gone(tenant.number)
        self._reported.pop(tenant.number, None)

    def _tend(self) -> None:
        problem = self._prober.look()
        if problem and problem != self._problem:
            self._agent.journal.write("prober", message=problem)
        self._problem = problem or self._problem

    def look(self) -> None:
        self._tend()
        for number in self._news.take():
            self._published.pop(number, None)
            tenant = self._agent.tenants.by_number(number)
            if tenant is not None:
                self.changed(tenant)
        with contextlib.suppress(OSError):
            usage = self._agent.supervisors.usage()
            for uuid in [uuid for uuid in self._findings if uuid not in usage.gpus]:
                del self._findings[uuid]
            for uuid, computed in self._computed.items():
                if uuid not in usage.gpus:
                    computed.lost()
            if self._balancing is not None and self._balancing.done():
                balanced, self._balancing = self._balancing, None
                balanced.result()  # raises what ended it
            begun = time.monotonic()
            is_time = begun >= self._again and self._balancing is None
            new = [gpu for gpu in usage.gpus.values() if is_time and self._is_due(gpu, begun)]
            if new:
                self._balancing = asyncio.ensure_future(self._balance_all(new, begun))

    async def _balance_all(self, gpus: Iterable[GpuUsage], begun: float) -> None:
        """Of hundreds of tenants it takes tens of milliseconds: others have their turn meanwhile."""
        turn = Turn()
        for gpu in gpus:
            self._balanced[gpu.uuid] = begun
            self._changed.discard(gpu.uuid)
            await self._balance(gpu, turn)
        self._name()
        await turn.pause(at_once=True)
        # Of its own time: on a busy machine what others take does not keep it from balancing.
        self._again = max(self._again, begun + turn.used / EFFORT)

    async def stop(self) -> None:
        if self._balancing is not None:
            self._balancing.cancel()
            await asyncio.gather(self._balancing, return_exceptions=True)
        self._prober.close()

    # For the status.

    def reported(self, tenant: Tenant, uuid: str) -> int:
        return self._reported.get(tenant.number, {}).get(uuid, 0)

    def computed(self, tenant: Tenant, uuid: str) -> tuple[float | None, int]:
        found = self._computed.get(uuid)
        return (found.part(tenant.number), found.busy_ns(tenant.number)) if found is not None else (None, 0)

    def findings(self) -> Mapping[str, Finding]:
        return self._findings

    def _is_due(self, gpu: GpuUsage, now: float) -> bool:
        """Whether an answer of the driver's is another one, or says the same again after IDLE_S."""
        before, finding = self._asked.get(gpu.uuid), self._findings.get(gpu.uuid)
        if before is None or finding is None or gpu.asked_ns == before.asked_ns:
            return before is None or gpu.asked_ns != before.asked_ns
        # While nothing computes, the context that did last is on the engine still.
        trace = {"traced_ns": gpu.traced_ns, "untraced_ns": gpu.untraced_ns, "traced": gpu.traced}
        same = before.replace(asked_ns=gpu.asked_ns, sampled_ns=gpu.sampled_ns, **trace) == gpu
        is_quiet = same and gpu.uuid not in self._changed and not finding.lasts_ns and gpu.uuid not in self._serving
        return not is_quiet or now - self._balanced.get(gpu.uuid, 0.0) >= IDLE_S

    def _of(self, number: int) -> tuple[TenantStatus, tuple[int, ...]]:
        """What a tenant's supervisor published last: status, and pids of processes. Raises OSError."""
        found = self._published.get(number)
        if found is None:
            status, processes = self._agent.supervisors.published(number)
            found = status, tuple(pid for pid, _ in processes)
            if not any(gpu.frozen for gpu in status.gpus):  # the time that it is goes on
                self._published[number] = found
        return found

    async def _balance(self, gpu: GpuUsage, turn: Turn) -> None:
        """Compare, now that there is another answer of the driver's. Tenants may go meanwhile."""
        self._asked[gpu.uuid] = gpu
        named, ended = dict[int, int](), dict[int, int]()
        before = tuple(self._agent.tenants)
        for tenant in before:
            if self._is_there(tenant):
                is_known = self._owners.knows(tenant)
                with contextlib.suppress(OSError):
                    if _has(tenant, gpu.uuid):
                        said = dict.fromkeys(self._of(tenant.number)[1], tenant.number)
                        (ended if is_known else named).update(said)
                await turn.pause()
        pids = {*(pid for pid, own in gpu.processes.items() if own), *gpu.computed, *gpu.traced}
        steps = self._owners.steps(pids, filter(self._is_there, before), named, ended)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                owners: dict[int, int] = end.value
                break
            await turn.pause()
        # One that has come since has nothing in this answer.
        tenants = [one for one in before if self._is_there(one) and _has(one, gpu.uuid)]
        self._serving.discard(gpu.uuid)
        if any(share.latency for one in tenants for share in one.limits.gpus):
            self._serving.add(gpu.uuid)
        by_tenant: dict[int, dict[int, int]] = {}
        for pid, number in owners.items():
            by_tenant.setdefault(number, {})[pid] = gpu.processes[pid]
        sights, off = [], {}
        for tenant in tenants:
            own = by_tenant.get(tenant.number, {})
            self._reported.setdefault(tenant.number, {})[gpu.uuid] = sum(own.values())
            with contextlib.suppress(OSError):
                status = self._of(tenant.number)[0]
                sights.append(_sight(tenant, gpu, own, status))
                off[tenant.number] = status.gpus[_place(tenant, gpu.uuid)].frozen_ns
        outside = by_tenant.get(0, {})
        computing = {one.number for one in sights if one.groups} | ({0} if any(outside.values()) else set())
        periods = {one.number: self._agent.shares(one, _place(one, gpu.uuid)).period for one in tenants}
        in_step = any(map(is_in_step, {*periods.values()} - {0}))
        caps = {
            one.number: one.limits.gpus[_place(one, gpu.uuid)].cap / CAP_WHOLE - SWITCH_US / periods[one.number]
            for one in tenants
            if periods[one.number]
        }
        clients = self._owners.of_clients(gpu.uuid, owners)
        self._computed.setdefault(gpu.uuid, ComputedTime()).update(gpu, clients, computing, off, caps, in_step=in_step)
        known = self._computed[gpu.uuid]
        computed = {one.number: known.busy_ns(one.number) for one in tenants} if known.has_samples else None
        for part in self._agent.parts:
            part.sampled(gpu.uuid, gpu.asked_ns, computed)
        balance = self._balances.setdefault(gpu.uuid, Balance())
        self._findings[gpu.uuid] = finding = balance.update(gpu, sights, outside)
        self._tell(gpu.uuid, finding)

    def _is_there(self, tenant: Tenant) -> bool:
        return self._agent.tenants.by_number(tenant.number) is tenant

    def _name(self) -> None:
        """Of tenants on GPUs with memory that is not accounted for: processes that no list has; another answer soon."""
        uuids = {uuid for uuid, finding in self._findings.items() if finding.lasts_ns}
        tenants = [one for one in self._agent.tenants if any(gpu.uuid in uuids for gpu in one.limits.gpus)]
        self._prober.name({pid for tenant in tenants for pid in self._owners.pids(tenant)})

    def _tell(self, uuid: str, finding: Finding) -> None:
        if not finding.is_said:
            if not finding.lasts_ns:
                self._said.pop(uuid, None)
            return
        tenant = self._agent.tenants.by_number(finding.tenant)
        if self._said.get(uuid) != finding.tenant:
            self._said[uuid] = finding.tenant
            self._agent.journal.write(
                "unaccounted",
                gpu=uuid,
                bytes=finding.unaccounted,
                bound=finding.bound,
                container=tenant.name if tenant is not None else "",
                certain=finding.is_certain,
            )
        is_due = self._agent.settings.unaccounted == FREEZE and finding.is_acted_upon
        if is_due and tenant is not None and not tenant.limits.paused and not self._pausing:
            task = asyncio.ensure_future(self._pause(tenant))
            self._pausing.add(task)
            task.add_done_callback(self._pausing.discard)

    async def _pause(self, tenant: Tenant) -> None:
        """As ``share pause`` does: it stays so until ``share resume``."""
        try:
            await asyncio.to_thread(self._agent.locked, tenant, lambda entry: change.pause(entry, paused=True))
            self._agent.tenants.refresh(tenant)  # or the next look does
            self._agent.journal.write("pause", container=tenant.name, message="memory that is not accounted for")
        except NvcError as error:
            self._agent.journal.write("warning", message=str(error), hint=error.hint, container=tenant.name)


def _sight(tenant: Tenant, gpu: GpuUsage, own: dict[int, int], status: TenantStatus) -> Sight:
    index = _place(tenant, gpu.uuid)
    # A supervisor that its tenant has taken over can say that more is charged: up to the quota.
    charged = min(status.gpus[index].memory, tenant.limits.gpus[index].memory or gpu.total)
    has_uvm = any(node.kind == NODE_UVM for node in tenant.limits.nodes)
    return Sight(
        tenant.number, charged, own, status.notifications, status.continued, has_uvm, status.gpus[index].groups
    )


def _has(tenant: Tenant, uuid: str) -> bool:
    return any(share.uuid == uuid for share in tenant.limits.gpus)


def _place(tenant: Tenant, uuid: str) -> int:
    """Of a GPU among the tenant's, which has it."""
    return next(place for place, share in enumerate(tenant.limits.gpus) if share.uuid == uuid)
