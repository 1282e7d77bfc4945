"""Containers that are one tenant: their shares name the same group (``group=NAME``, from fixed settings alone).

The first container starts the tenant. Each further one joins it: one ledger, one quota, one weight, one set of guard
processes. The tenant is over with the last of them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from nvc.agent.state import records
from nvc.base.errors import ContainerError, NvcError
from nvc.share import change
from nvc.share.limits import with_shares
from nvc.share.policy import as_gpu_share
from nvc.share.spec import format_gpu
from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.agent.ended import EndedShares
    from nvc.agent.journal import Journal
    from nvc.agent.state.records import Member
    from nvc.agent.tenant import Tenant
    from nvc.agent.waiting import Threads
    from nvc.guard.supervisors import Supervisors
    from nvc.share.entry import Entry
    from nvc.share.limits import Limits

#: Of a group at a time (CONTAINERS_MOST of native/supervisor/containers.h).
CONTAINERS = 64


def words(limits: Limits) -> tuple[str, ...]:
    """The share of each GPU, for the log and to be compared."""
    return tuple(f"{gpu.uuid} {format_gpu(as_gpu_share(gpu))}" for gpu in limits.gpus)


class Groups:
    """Coming and going of a group's containers. For the agent's one thread."""

    def __init__(
        self, supervisors: Supervisors, threads: Threads, journal: Journal, directory: str, ended: EndedShares
    ) -> None:
        """directory: the agent's. ended: gets containers that have left."""
        self._supervisors = supervisors
        self._threads = threads
        self._journal = journal
        self._directory = directory
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()

    async def join(self, tenant: Tenant, entry: Entry, member: Member, listener: int) -> None:
        """A further container; the descriptor is duplicated. Its entry has the limits in force then.

        Raises ContainerError for a share of another kind, or for too many containers; AgentError, OSError.
        """
        self._check(tenant, entry, member)
        tenant.record = tenant.record.with_members((*tenant.record.members, member))
        tenant.busy += 1
        try:
            records.save(self._directory, tenant.record)
            records.link(self._directory, tenant.number, member.container)  # first: it may execute something at once
            await asyncio.to_thread(self._adopt, entry, tenant)
            first = member.pid, member.start_time
            await self._threads.run(tenant, lambda: self._supervisors.join(tenant.number, first, listener))
        except BaseException:
            self._forget(tenant, member)
            raise
        finally:
            tenant.busy -= 1
        gpus = list(words(tenant.limits))
        self._journal.write("tenant", container=member.name, tenant=tenant.number, pid=member.pid, gpus=gpus)

    def look(self, tenant: Tenant) -> None:
        """Containers that have ended leave, as long as another one is there."""
        ended = [one for one in tenant.record.members if start_time(one.pid) != one.start_time]
        if tenant.busy or not ended or len(tenant.record.members) < 2:
            return
        tenant.busy += 1
        task = asyncio.get_running_loop().create_task(self._leave(tenant, ended))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, tenant: Tenant, ended: Iterable[Member]) -> None:
        try:
            for one in ended:
                if len(tenant.record.members) == 1:
                    return
                first = one.pid, one.start_time
                with suppress(OSError, NvcError):  # EBUSY: processes of it are left. The next look is soon
                    await self._threads.run(tenant, partial(self._supervisors.leave, tenant.number, first))
                    self._forget(tenant, one)
                    self._journal.write("gone", container=one.name, tenant=tenant.number)
        finally:
            tenant.busy -= 1

    def _check(self, tenant: Tenant, entry: Entry, member: Member) -> None:
        if len(tenant.record.members) == CONTAINERS:
            raise ContainerError(
                f"container {member.name}: {tenant.name} has {CONTAINERS} containers, and can have no more",
                hint="start it when one of them has ended",
            )
        limits = entry.checked_limits(hint="")
        if sorted(words(limits)) != sorted(tenant.record.granted):
            raise ContainerError(
                f"container {member.name}: its share is {'; '.join(words(limits))}, and that of the other containers "
                f"of {tenant.name} is {'; '.join(tenant.record.granted)}",
                hint="containers of one group have the same share: say the same --share-fixed for all of them",
            )
        if not set(limits.nodes) <= set(tenant.limits.nodes):
            raise ContainerError(
                f"container {member.name}: it has device nodes that the first container of {tenant.name} has not",
                hint="give all containers of a group the same GPUs and driver capabilities",
            )

    def _adopt(self, entry: Entry, tenant: Tenant) -> None:
        """``nvc-py share set`` may have changed the group's share since. Raises NvcError, OSError.

        In a thread. What the files of the others say is newer than what is in force.
        """
        keys = {one.key for one in tenant.record.members} - {entry.record.key}
        with change.Hold(entry, lambda: keys) as first:
            try:
                limits = tenant.limits if first is entry else first.checked_limits(hint="")
                own = entry.checked_limits(hint="")
                now = with_shares(own, limits)
                if now != own:
                    entry.change(now)
            except ValueError as error:
                raise ContainerError(f"{entry.path}: {error}") from None

    def _forget(self, tenant: Tenant, member: Member) -> None:
        """Raises AgentError."""
        self._ended.add([member])
        left = tuple(one for one in tenant.record.members if one != member)
        tenant.record = tenant.record.with_members(left)
        if member.container not in {one.container for one in left}:  # one of its name has come since
            records.unlink(self._directory, tenant.number, member.container)
        records.save(self._directory, tenant.record)
