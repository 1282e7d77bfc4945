"""Containers under the guard: from the listener that a runtime sends to the last process's end.

A container's limits are those of its entry in the store (nvc.share.store), which the hook made before the container's
first process installed its filter: runc and crun both run prestart, createRuntime and createContainer hooks earlier.
"""

from __future__ import annotations

import errno
import os
import time
from functools import partial

from nvc.agent import arriving, ending
from nvc.agent.groups import words
from nvc.agent.registry import Registry
from nvc.agent.state import records as tenant_files
from nvc.agent.state.records import Member, TenantRecord
from nvc.agent.tenant import Tenant
from nvc.base.errors import AgentError, ContainerError, NvcError
from nvc.guard.channel import DONE, REFUSED, START
from nvc.share import limits as limits_file
from nvc.share import store
from nvc.share.spec import have_common

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.container_state import ContainerProcess
    from nvc.guard.channel import Connection
    from nvc.share.entry import Entry
    from nvc.share.limits import Limits

#: Of a tenant at a time (MONITOR_LISTENERS of native/supervisor/monitor.h).
LISTENERS = 256
#: What an acceptor, or a monitor, gives that has ended with its container; and one that does not find its process.
_ENDED = (errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ESRCH)


class Tenants(Registry):
    """Those that are there, and those that come."""

    async def admit(self, process: ContainerProcess, listener: int, connection: Connection) -> int:
        """An acceptor asks for a container whose listener it holds; ``listener`` is a copy, ours.

        Returns START: the connection's other end is the tenant's monitor now; DONE: a monitor that is there has it;
        REFUSED: the container cannot be guarded, and is ended, or has ended. Raises nothing.
        """
        pinned = ending.pin(process.pid)  # before anything is waited for: its number can come to mean another one
        try:
            try:
                self.registrations.arrived(process)
                with await arriving.entry(process, self._shares) as entry:
                    for part in self._parts:
                        await part.arriving()
                    member = _member(entry, process)
                    self.unmanaged.check(member, entry.record.group)
                    limits = None
                    if not self._is_known(member, entry.record.group):
                        # Once: what is written from now on is taken up by the next look.
                        limits = entry.checked_limits(hint="")
                        for part in self._parts:
                            await part.making_room(member.key, limits)
                    tenant = await self._find(member)
                    group = await self._group(entry.record.group) if tenant is None else None
                    if tenant is not None:
                        await self._threads.run(tenant, partial(self._listen, tenant, member, listener))
                    elif group is not None:
                        await self._groups.join(group, entry, member, listener)
                    else:
                        self._register(entry, limits or entry.checked_limits(hint=""), member, connection)
                        return START
                    return DONE
            except OSError as error:
                why = f"container {process.container}: {error.strerror or error}"
                raise AgentError(why, hint=tenant_files.shortage(error)) from error
        except NvcError as error:
            await self._refuse(process, pinned, listener, error)
            return REFUSED
        finally:
            os.close(listener)
            if pinned >= 0:
                os.close(pinned)

    def _is_known(self, member: Member, group: str) -> bool:
        """Whether there is a tenant that it is of, or may be: then it is promised nothing more."""
        own = (self._by_number[number] for number in self.named(member.key))
        known = any(one.is_same(member) for tenant in own for one in tenant.members)
        return known or any(have_common(group, tenant.record.group) for tenant in self._index.groups.values())

    async def _find(self, member: Member) -> Tenant | None:
        """The container's tenant; an earlier container of its name is over."""
        for number in self.named(member.key):
            tenant = self._by_number[number]
            for known in tenant.members:
                if known.is_same(member):
                    return tenant
                if known.key == member.key and len(tenant.members) == 1 and not tenant.busy:
                    await self._end(tenant)
                    return await self._find(member)  # another listener of this container may have come meanwhile
        return None

    async def _group(self, name: str) -> Tenant | None:
        """The tenant of a group; one that is over, though it was not looked at since, is none.

        Raises ContainerError for a group that has only a part in common: each tenant would have that one's quota.
        """
        for tenant in tuple(self._index.groups.values()):
            if have_common(name, tenant.record.group):
                if tenant.busy or not self._supervisors.gone(tenant.number):
                    if tenant.record.group == name:
                        return tenant
                    raise ContainerError(
                        f"group {name}: its quota is in part that of {tenant.name}, whose containers have others",
                        hint="give all containers that use one claim the same claims, or end those first",
                    )
                await self._end(tenant)
                return await self._group(name)  # another container of the group may have come meanwhile
        return None

    def _register(self, entry: Entry, limits: Limits, member: Member, connection: Connection) -> None:
        """A new tenant; its monitor is at the other end of the connection. Raises NvcError, OSError."""
        group, since = entry.record.group, round(time.time(), 3)
        granted = words(limits) if group else ()
        made = TenantRecord(self._next, **member.as_data(), since=since, group=group, granted=granted)
        self._next += 1
        tenant = Tenant(made, limits.replace(graphics=self._graphics()))
        for part in self._parts:
            part.check(tenant.limits)
        tenant_files.save(self._directory, made)
        try:
            tenant_files.link(
                self._directory, made.number, made.container
            )  # first: the container may execute something at once
            self._supervisors.add(
                made.number,
                limits_file.encode(tenant.limits),
                len(tenant.limits.gpus),
                connection,
                first=(made.pid, made.start_time),
            )
        except OSError as error:
            tenant_files.remove(self._directory, made)
            raise _not_added(tenant, error) from error
        except BaseException:
            tenant_files.remove(self._directory, made)
            raise
        self._added(tenant)

    def _listen(self, tenant: Tenant, member: Member, listener: int) -> None:
        """Raises ContainerError, OSError."""
        try:
            if tenant.record.group:  # the agent before this one may have ended before the monitor knew the container
                self._supervisors.join(tenant.number, (member.pid, member.start_time), listener)
            else:
                self._supervisors.listen(tenant.number, listener)
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise ContainerError(
                    f"container {tenant.name}: {LISTENERS} processes that were put into it are there, and it can have "
                    "no more",
                    hint="execute this one when some have ended",
                ) from error
            raise

    async def _refuse(self, process: ContainerProcess, pinned: int, listener: int, error: NvcError) -> None:
        """Say why, and end the process: without its listener it would run with a GPU that answers nothing.

        One that ended by itself, with all that it started, was not refused.
        """
        may_be_over = _says_ended(process, error)
        # Before SIGKILL: one that is in the middle of its end has its filter no more.
        is_over = may_be_over and ending.has_no_process(listener)
        ended = ending.end_filtered(process.pid, pinned)
        if is_over or (may_be_over and not ended and await ending.has_hung_up(listener)):
            return
        self._journal.write(
            "refused",
            container=process.container,
            pid=process.pid,
            ended=ended,
            message=str(error),
            hint=error.hint,
        )


def _says_ended(process: ContainerProcess, error: NvcError) -> bool:
    """Whether the error may be for no other reason than that its container has ended."""
    if process.status == "running" and process.first and store.start_time(process.first) < 0:
        return True
    cause = error.__cause__
    return isinstance(error, ending.EndedError) or (isinstance(cause, OSError) and cause.errno in _ENDED)


def _not_added(tenant: Tenant, error: OSError) -> NvcError:
    if error.errno == errno.EOPNOTSUPP:
        return ContainerError(
            f"container {tenant.name}: driver {tenant.limits.driver} is not known to the guard",
            hint="start it without one (nvc.guard=off), or see docs/internals/adding-a-driver-version.md",
        )
    return ContainerError(f"container {tenant.name}: {error.strerror or error}", hint=tenant_files.shortage(error))


def _member(entry: Entry, process: ContainerProcess) -> Member:
    record = entry.record
    first = process.first or record.pid
    started = record.start_time if first and first == record.pid else store.start_time(first)
    return Member(record.key, record.container, first, started, record.name)
