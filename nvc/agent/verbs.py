"""Verbs of the control socket that are about tenants and the agent itself; other parts bring their own."""

from __future__ import annotations

import asyncio

from nvc.agent import report
from nvc.base.errors import AgentError
from nvc.share import change, policyfile, store
from nvc.share.fits import Question
from nvc.share.policy import as_gpu_share
from nvc.share.spec import format_gpu, parse_gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nvc.agent.agent import Agent
    from nvc.agent.control import Handler
    from nvc.agent.peer import Peer
    from nvc.share.limits import Limits


class Verbs:
    """status, set, pause, resume, reload, register, bind, fits."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "status": self._status,
            "set": self._set,
            "pause": self._pause,
            "resume": self._resume,
            "reload": self._reload,
            "register": self._register,
            "bind": self._bind,
            "fits": self._fits,
        }

    async def _status(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        return report.page(self._agent, request.get("after", 0), request.get("container", ""))

    async def _set(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        """Reply: gpus: [UUID and spec], of those that changed."""
        agent = self._agent
        wanted = parse_gpu(request["spec"])
        policy = policyfile.load(agent.options.config)
        tenant = agent.tenants.find(request["container"])

        def act(entry: store.Entry) -> tuple[Limits, list[int]]:
            return change.apply(
                entry,
                policy,
                wanted,
                request.get("gpu", ""),
                lambda: agent.inventory,
                force=request.get("force", False),
                check=lambda after: agent.check_change(tenant, after),
                known=agent.promised.known,
            )

        try:
            after, chosen = await asyncio.to_thread(agent.locked, tenant, act)
        finally:
            await agent.put_in_force(tenant)  # the file may be written where ``act`` failed
        agent.journal.write("set", container=tenant.name, spec=request["spec"], pid=caller.pid)
        return {
            "container": tenant.name,
            "gpus": [[after.gpus[place].uuid, format_gpu(as_gpu_share(after.gpus[place]))] for place in chosen],
        }

    async def _pause(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        return await self._paused(request, caller, paused=True)

    async def _resume(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        tenant = self._agent.tenants.find(request["container"])
        for part in self._agent.parts:
            await part.resuming(tenant, request.get("wait", 0.0))
        return await self._paused(request, caller, paused=False)

    async def _paused(self, request: dict[str, Any], caller: Peer, *, paused: bool) -> dict[str, Any]:
        tenant = self._agent.tenants.find(request["container"])
        await self._agent.pause(tenant, paused=paused)
        self._agent.journal.write("pause" if paused else "resume", container=tenant.name, pid=caller.pid)
        return {"container": tenant.name}

    async def _reload(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        self._agent.reload()
        return {}

    async def _register(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        bundle = request["bundle"], request["device"], request["inode"]
        runtime = request.get("runtime", caller.pid)
        self._agent.tenants.registrations.add(request["container"], *bundle, runtime, request.get("started", 0))
        self._agent.journal.write("register", container=request["container"], bundle=request["bundle"], pid=runtime)
        return {}

    async def _bind(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        """Reply: registered: whether there is a registration; only where the pid alone was given."""
        registrations = self._agent.tenants.registrations
        if "container" not in request:
            return {"registered": registrations.bind_process(request["pid"]) is not None}
        bundle = request.get("device", 0), request.get("inode", 0)
        registrations.bind(request["container"], *bundle, request["pid"])
        return {"registered": True}

    async def _fits(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        """Reply: fits: True; otherwise an error says why not, or why that is not known."""
        try:
            question = Question.from_data({name: value for name, value in request.items() if name != "verb"})
        except ValueError as error:
            raise AgentError(f"fits: {error}") from None
        await self._agent.promised.check(question)
        return {"fits": True}
