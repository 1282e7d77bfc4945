"""The agent's parts as ``nvc.agent.part`` wants them: scheduler, metrics, pre-fork server."""

from __future__ import annotations

import asyncio
import os
import time

from nvc.agent import report
from nvc.agent.attached import Attachments
from nvc.agent.metrics import server
from nvc.agent.part import Part
from nvc.agent.scheduler import Scheduler
from nvc.agent.standby import Standby
from nvc.base.errors import AgentError, InputError, NvcError, reason
from nvc.guard.service import HINTS
from nvc.share.model import PROBES, PROBES_LIMIT, WEIGHT_LIMIT
from nvc.share.protocol import DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from nvc.agent.agent import Agent
    from nvc.agent.control import Handler
    from nvc.agent.peer import Peer
    from nvc.agent.scheduled import ScheduledShare
    from nvc.agent.status import StatusTenant
    from nvc.agent.tenant import Tenant
    from nvc.share.limits import Limits

#: Seconds that an agent's start waits for the address of metrics; between two tries to have it.
_METRICS_TIMEOUT_S, _METRICS_RETRY_S = 2.0, 5.0


class Scheduling(Part):
    """Timeslices and phases of the guard's tenants, and of attached processes; the verbs policy, attach, detach."""

    _agent: Agent
    _attachments: Attachments
    _scheduler: Scheduler
    _task: asyncio.Task[None]

    async def start(self, agent: Agent) -> None:
        self._agent = agent
        settings = agent.settings
        options = agent.options
        directory = f"{os.path.dirname(options.directory)}/attach"
        self._attachments = Attachments(agent.supervisors, options.devices, options.shares, directory)
        self._scheduler = Scheduler(
            self._attachments,
            policy=settings.policy,
            slots=settings.slots,
            period=settings.period_us,
            problem=lambda text: agent.journal.write("warning", message=text),
        )
        for tenant in agent.tenants:
            self._scheduler.tenant(tenant.number, tenant.limits)
        await self._scheduler.renew()
        self._task = asyncio.ensure_future(self._scheduler.run())

    def handlers(self) -> Mapping[str, Handler]:
        return {"policy": self._policy, "hint": self._hint, "attach": self._attach, "detach": self._detach}

    async def _hint(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        tenant = self._agent.tenants.find(request["container"])
        if request["word"] not in HINTS:
            raise InputError(f"hint {request['word']!r} is none", hint=f"hints: {', '.join(HINTS)}")
        if not any(gpu.latency for gpu in tenant.limits.gpus):
            raise InputError(
                f"container {tenant.name} is no service", hint="nvc-py share set CONTAINER priority=service,latency=1ms"
            )
        self._scheduler.hint(tenant.number, request["word"])
        await self._scheduler.renew()
        return {"container": tenant.name}

    async def _attach(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        pid, container = request.get("pid"), request.get("container")
        guarded = {
            known for tenant in self._agent.tenants for known, _ in self._agent.supervisors.processes(tenant.number)
        }
        if (pid is None) == (container is None):
            raise InputError("attach needs pid or container, and not both")
        weight, cap = request.get("weight", 0), request.get("cap", "")
        if not 0 <= weight <= WEIGHT_LIMIT:
            raise InputError(f"weight is not a number from 1 to {WEIGHT_LIMIT}")
        probes = request.get("probes", PROBES)
        if not 0 <= probes <= PROBES_LIMIT:
            raise InputError(f"probes is not a number from 0 to {PROBES_LIMIT}")
        try:
            done = await self._attachments.attach(self._scheduler, pid, container, weight, cap, probes, guarded)
        except OSError as error:
            raise AgentError(f"attach: {error.filename or error}: {reason(error)}") from error
        self._agent.journal.write("attach", pids=[one["pid"] for one in done], weight=weight, cap=cap, by=caller.pid)
        return {"processes": done}

    async def _detach(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        pid, container = request.get("pid"), request.get("container")
        if (pid is None) == (container is None):
            raise InputError("detach needs pid or container, and not both")
        try:
            pids = self._attachments.detach(self._scheduler, pid, container)
        except OSError as error:
            raise AgentError(f"detach: {error.filename or error}: {reason(error)}") from error
        self._agent.journal.write("detach", pids=pids, by=caller.pid)
        return {"pids": pids}

    def look(self) -> None:
        self._attachments.look(self._scheduler)

    def attached(self) -> Sequence[StatusTenant]:
        return self._attachments.report(self._scheduler)

    async def _policy(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        uuid = request.get("gpu", "")
        if uuid:
            found = [gpu.uuid for gpu in self._agent.inventory if gpu.uuid.lower().startswith(uuid.lower())]
            if len(found) != 1:
                names = ", ".join(gpu.uuid for gpu in self._agent.inventory)
                raise InputError(f"{uuid!r} is no GPU of this machine", hint=f"there are: {names or 'none'}")
            uuid = found[0]
        self._scheduler.check_policy(request["policy"], uuid)
        name = self._scheduler.set_policy(request["policy"], uuid)
        await self._scheduler.renew()
        self._agent.journal.write("policy", policy=name, gpu=uuid or "all", pid=caller.pid)
        return {"policy": name, "gpu": uuid}

    def check(self, limits: Limits) -> None:
        self._scheduler.check(limits)

    def check_change(self, tenant: Tenant, limits: Limits) -> None:
        self._scheduler.check(limits, tenant.number)

    def added(self, tenant: Tenant) -> None:
        self._scheduler.tenant(tenant.number, tenant.limits, is_new=True)

    def changed(self, tenant: Tenant) -> None:
        self._scheduler.tenant(tenant.number, tenant.limits)

    def sampled(self, uuid: str, now: int, computed: Mapping[int, int] | None) -> None:
        self._scheduler.sampled(uuid, now, computed)

    async def settled(self) -> None:
        await self._scheduler.renew()

    def gone(self, tenant: Tenant) -> None:
        self._scheduler.forget(tenant.number)

    def reload(self) -> None:
        settings = self._agent.settings
        self._scheduler.settings(slots=settings.slots, period=settings.period_us)
        self._scheduler.set_policy(settings.policy)

    async def stop(self) -> None:
        self._attachments.close(self._scheduler)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def policies(self) -> Mapping[str, str]:
        return {gpu.uuid: self._scheduler.policy(gpu.uuid) for gpu in self._agent.inventory}

    def shares(self, tenant: Tenant, gpu: int) -> ScheduledShare:
        return self._scheduler.share(tenant.number, gpu)


class Metrics(Part):
    """The address for Prometheus, if the settings name one. The agent goes on without: quotas are worth more.

    One that cannot be had (another has it, its network is not up yet) is logged and tried again.
    """

    _server: asyncio.Server | None = None
    _agent: Agent
    #: Address, and whether HAMi's names are served there too.
    _served: tuple[str, bool] = ("", False)
    _changing: asyncio.Task[None]
    #: What was logged last, "" when all is well; when it is tried again.
    _problem = ""
    _again = 0.0

    async def start(self, agent: Agent) -> None:
        self._agent = agent
        self._changing = asyncio.ensure_future(self._try(None))
        # A name may take long to resolve, and that is no reason to keep containers waiting.
        await asyncio.wait([self._changing], timeout=_METRICS_TIMEOUT_S)

    def reload(self) -> None:
        self._problem = ""  # the reload that asked is answered again
        self._changing = asyncio.ensure_future(self._try(self._changing))

    def look(self) -> None:
        if self._problem and self._changing.done() and time.monotonic() > self._again:
            self._changing = asyncio.ensure_future(self._try(None))

    async def _try(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        try:
            await self._change()
        except NvcError as error:
            self._again = time.monotonic() + _METRICS_RETRY_S
            if str(error) != self._problem:
                self._problem = str(error)
                hint = f"{error.hint}; the agent goes on without, and tries again"
                self._agent.journal.write("warning", message=self._problem, hint=hint)
            return
        if self._problem:
            self._problem = ""
            self._agent.journal.write("metrics", address=self._served[0])

    async def _change(self) -> None:
        """Raises NvcError; then the one before serves on, if it is at another address."""
        settings = self._agent.settings
        wanted = settings.metrics, settings.metrics_hami
        if wanted == self._served:
            return
        if wanted[0] == self._served[0]:
            self._close()
        made = None
        if settings.metrics:
            made = await server.serve(settings.metrics, lambda: report.whole(self._agent), hami=settings.metrics_hami)
        self._close()
        self._server, self._served = made, wanted

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server, self._served = None, ("", False)

    async def stop(self) -> None:
        self._changing.cancel()
        self._close()


class Prefork(Part):
    """The pre-fork server that does the work of a container's start for clients. inventory: the machine's file."""

    _standby: Standby

    def __init__(self, inventory: str) -> None:
        self._inventory = inventory

    async def start(self, agent: Agent) -> None:
        def tell(text: str) -> None:
            agent.journal.write("warning", message=text)

        self._standby = Standby(report=tell, inventory=self._inventory)
        if agent.options.directory != DIRECTORY:
            return  # clients know one place only
        try:
            await self._standby.start()
        except NvcError as error:
            tell(str(error))  # clients help themselves

    def reload(self) -> None:
        self._standby.reload()

    async def stop(self) -> None:
        await self._standby.stop()
