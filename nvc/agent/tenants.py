"""Containers under the guard: from the listener that a runtime sends to the last process's end.

A container's limits are those of its entry in the store (nvc.share.store), which the hook made before the container's
first process installed its filter: runc and crun both run prestart, createRuntime and createContainer hooks earlier.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time

from nvc.agent import arriving, ending
from nvc.agent.groups import Groups, words
from nvc.agent.registrations import Registrations
from nvc.agent.state import records as tenant_files
from nvc.agent.state.records import Member, TenantRecord
from nvc.agent.tenant import Tenant
from nvc.agent.unmanaged import UnmanagedTenants
from nvc.base.errors import AgentError, ContainerError, InputError, NvcError, reason
from nvc.guard.channel import DONE, REFUSED, START
from nvc.share import limits as limits_file
from nvc.share import store
from nvc.share.limits import with_shares

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nvc.agent.container_state import ContainerProcess
    from nvc.agent.journal import Journal
    from nvc.agent.part import Part
    from nvc.guard.channel import Connection
    from nvc.guard.supervisors import Supervisors
    from nvc.share.entry import Entry
    from nvc.share.limits import Limits

#: What connecting to a monitor that is gone gives.
_GONE = (errno.ENOENT, errno.ECONNREFUSED, errno.EPIPE, errno.ECONNRESET)
#: Of a tenant at a time (MONITOR_LISTENERS of native/supervisor/monitor.h).
LISTENERS = 256


class Tenants:
    """All of them, by number. For the agent's one thread."""

    def __init__(
        self, supervisors: Supervisors, journal: Journal, directory: str, shares: str, parts: list[Part]
    ) -> None:
        """directory: the agent's; shares: the store's. Raises AgentError."""
        self._supervisors = supervisors
        self._journal = journal
        self._directory = directory
        self._shares = shares
        self._parts = parts
        self.registrations = Registrations(directory)
        for problem in self.registrations.problems:
            journal.write("warning", message=problem)
        self._groups = Groups(supervisors, journal, directory)
        self.unmanaged = UnmanagedTenants(supervisors, journal, directory)
        self._by_number: dict[int, Tenant] = {}
        #: Key or id -> numbers of tenants of one container; numbers of groups.
        self._named: dict[str, set[int]] = {}
        self._grouped: set[int] = set()
        self._next = 1

    def __iter__(self) -> Iterator[Tenant]:
        return iter(tuple(self._by_number.values()))

    def __len__(self) -> int:
        return len(self._by_number)

    def by_number(self, number: int) -> Tenant | None:
        return self._by_number.get(number)

    def numbers(self) -> Iterable[int]:
        """Of all of them."""
        return tuple(self._by_number)

    def named(self, word: str) -> set[int]:
        """The numbers of those that have a container of this key or id."""
        found = {number for number in self._grouped if _has(self._by_number[number], lambda of: word in _words(of))}
        return found | self._named.get(word, set())

    def find(self, word: str) -> Tenant:
        """The tenant that ``word`` names: a key or id, the beginning of one, a pid. Raises InputError."""
        exact = [self._by_number[number] for number in self.named(word)]
        exact = exact or [one for one in self if word == one.name]
        number = int(word[:10]) if word.isascii() and word.isdigit() else 0
        by_pid = [one for one in self if number and _has(one, lambda of: of.pid == number)]
        found = exact or by_pid or [one for one in self if word and _has(one, lambda of: of.name.startswith(word))]
        if len(found) == 1:
            return found[0]
        if self.unmanaged.has(word):
            raise InputError(f"container {word!r} has a guard of another protocol", hint="start it again to change it")
        names = ", ".join(one.name[:16] for one in (found or list(self))[:8])
        if found:
            raise InputError(f"container {word!r} is not the only one", hint=f"it could be {names}")
        raise InputError(
            f"no container {word[:80]!r} under the guard",
            hint=f"there are: {names}" if names else "no container here is guarded",
        )

    # Coming.

    async def admit(self, process: ContainerProcess, listener: int, connection: Connection) -> int:
        """An acceptor asks for a container whose listener it holds; ``listener`` is a copy, ours.

        Returns START: the connection's other end is the tenant's monitor now; DONE: a monitor that is there has it;
        REFUSED: the container cannot be guarded, and is ended. Raises nothing.
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
                    tenant = self._find(member)
                    group = self._group(entry.record.group) if tenant is None else None
                    if tenant is not None:
                        await asyncio.to_thread(self._listen, tenant, member, listener)
                    elif group is not None:
                        await self._groups.join(group, entry, member, listener)
                    else:
                        self._register(entry, member, connection)
                        return START
                    return DONE
            except OSError as error:
                why = f"container {process.container}: {error.strerror or error}"
                raise AgentError(why, hint=tenant_files.shortage(error)) from error
        except NvcError as error:
            self._refuse(process, pinned, error)
            return REFUSED
        finally:
            os.close(listener)
            if pinned >= 0:
                os.close(pinned)

    def _find(self, member: Member) -> Tenant | None:
        """The container's tenant; an earlier container of its name is over."""
        for tenant in self:
            for known in tenant.record.members:
                if known.is_same(member):
                    return tenant
                if known.key == member.key and len(tenant.record.members) == 1 and not tenant.busy:
                    self._end(tenant)
        return None

    def _group(self, name: str) -> Tenant | None:
        """The tenant of a group; one that is over, though it was not looked at since, is none."""
        for tenant in self:
            if name and tenant.record.group == name:
                if tenant.busy or not self._supervisors.gone(tenant.number):
                    return tenant
                self._end(tenant)
        return None

    def _register(self, entry: Entry, member: Member, connection: Connection) -> None:
        """A new tenant; its monitor is at the other end of the connection. Raises NvcError, OSError."""
        limits, group, since = _limits(entry), entry.record.group, round(time.time(), 3)
        granted = words(limits) if group else ()
        made = TenantRecord(self._next, **member.as_data(), since=since, group=group, granted=granted)
        self._next += 1
        tenant = Tenant(made, limits)
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
                (made.pid, made.start_time),
            )
        except OSError as error:
            tenant_files.remove(self._directory, made.number)
            raise _not_added(tenant, error) from error
        except BaseException:
            tenant_files.remove(self._directory, made.number)
            raise
        self._added(tenant)

    def _added(self, tenant: Tenant) -> None:
        self._by_number[tenant.number] = tenant
        if tenant.record.group:
            self._grouped.add(tenant.number)
        else:
            for word in _words(tenant.members[0]):
                self._named.setdefault(word, set()).add(tenant.number)
        for one in tenant.members:
            gpus = list(words(tenant.limits))
            self._journal.write("tenant", container=one.name, tenant=tenant.number, pid=one.pid, gpus=gpus)
        for part in self._parts:
            part.added(tenant)

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

    def _refuse(self, process: ContainerProcess, pinned: int, error: NvcError) -> None:
        """Say why, and end the process: without its listener it would run with a GPU that answers nothing."""
        ended = ending.end_filtered(process.pid, pinned)
        self._journal.write(
            "refused",
            container=process.container,
            pid=process.pid,
            ended=ended,
            message=str(error),
            hint=error.hint,
        )

    # Taking over.

    def take_over(self) -> None:
        """Find the tenants of the agent before this one again. Raises AgentError when their files cannot be read."""
        records, problems = tenant_files.load(self._directory)
        for problem in problems:
            self._journal.write("warning", message=problem)
        self._next = tenant_files.highest(self._directory) + 1
        for record in records:
            try:
                self._added(Tenant(record, limits_file.decode(self._supervisors.find_again(record.number))))
            except (OSError, NvcError, ValueError) as error:
                if not isinstance(error, OSError) or error.errno not in _GONE:
                    self.unmanaged.add(record, str(error))
                elif os.path.exists(f"{tenant_files.path(self._directory, record.number)}/plan"):
                    self._lost(record, str(error))
                else:
                    # The agent before this one ended before it began: its acceptor asks again.
                    tenant_files.remove(self._directory, record.number)
        for record in tenant_files.unread(self._directory, [one.number for one in records]):
            self.unmanaged.add(record, "its record cannot be read")

    def _lost(self, record: TenantRecord, why: str, *, always: bool = False) -> None:
        """Neither monitor nor supervisor is left: a container that still runs must not run on unguarded.

        always: write it down, also where nothing was left to be ended.
        """
        ended = ending.end(self._directory, record)
        tenant_files.remove(self._directory, record.number)
        if ended or always:
            self._journal.write(
                "supervisor-died",
                container=record.name,
                tenant=record.number,
                message=why,
                ended=ended,
            )

    # Changing.

    def refresh(self, tenant: Tenant) -> bool:
        """Put the limits file into force; False: not yet, the driver makes a call for the tenant. Raises NvcError."""
        try:
            found = self._read(tenant)
        except (OSError, ValueError) as error:
            raise ContainerError(f"{self._shares}/{tenant.record.key}: {error}") from None
        if found == tenant.limits:
            return True
        try:
            self._supervisors.update(tenant.number, limits_file.encode(found))
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False  # the next look is soon
            raise ContainerError(f"container {tenant.name}: its limits are not taken: {reason(error)}") from error
        tenant.limits = found
        self._journal.write("limits", container=tenant.name, tenant=tenant.number, gpus=list(words(found)))
        for part in self._parts:
            part.changed(tenant)
        return True

    def _read(self, tenant: Tenant) -> Limits:
        """From the first of its containers that lives: the files of those are changed together."""
        path = f"{self._shares}/{tenant.living.key}/{store.LIMITS}"
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return (
                with_shares(tenant.limits, limits_file.read(descriptor))
                if tenant.record.group
                else limits_file.read(descriptor)
            )
        finally:
            os.close(descriptor)

    def look(self) -> None:
        """What is due periodically: processes and tenants that are gone, limits files that were changed."""
        self.look_for_lost()
        for tenant in self:
            if tenant.busy:
                continue
            try:
                if self._supervisors.gone(tenant.number):
                    self._end(tenant)
                else:
                    self._groups.look(tenant)
                    self.refresh(tenant)
            except (NvcError, OSError) as error:
                if store.start_time(tenant.record.pid) == tenant.record.start_time:
                    self._journal.write("warning", message=str(error), container=tenant.name)

    # Going.

    def look_for_lost(self) -> None:
        """End the containers whose monitor is gone. Raises nothing."""
        self.unmanaged.look()
        for tenant in self:
            if self._supervisors.is_lost(tenant.number):
                self._forget(tenant)
                self._lost(tenant.record, "its monitor or its supervisor died", always=True)

    def _end(self, tenant: Tenant) -> None:
        try:
            status = self._supervisors.status(tenant.number)
            counted: dict[str, object] = {"notifications": status.notifications, "denials": dict(status.reasons)}
            self._supervisors.remove(tenant.number)
        except OSError:
            counted = {}
        self._forget(tenant)
        tenant_files.remove(self._directory, tenant.number)
        self._journal.write("gone", container=tenant.name, tenant=tenant.number, **counted)

    def _forget(self, tenant: Tenant) -> None:
        del self._by_number[tenant.number]
        self._grouped.discard(tenant.number)
        for word in _words(tenant.members[0]):
            left = self._named.get(word, set())
            left.discard(tenant.number)
            if not left:
                self._named.pop(word, None)
        try:
            self._supervisors.forget(tenant.number)
        except KeyError:
            pass  # it was removed
        for part in self._parts:
            part.gone(tenant)

    def close(self) -> int:
        """The agent ends; tenants and their supervisors go on, but for those of which nothing is left. How many do."""
        for tenant in self:
            try:
                self._supervisors.refresh(tenant.number)
                if self._supervisors.gone(tenant.number):
                    self._end(tenant)
            except OSError:
                continue
        left = len(self)
        self.unmanaged.close()
        self._by_number.clear()
        return left


def _limits(entry: Entry) -> Limits:
    try:
        return entry.limits()
    except (OSError, ValueError) as error:
        raise ContainerError(f"{entry.path}/{store.LIMITS}: {error}") from None


def _not_added(tenant: Tenant, error: OSError) -> NvcError:
    if error.errno == errno.EOPNOTSUPP:
        return ContainerError(
            f"container {tenant.name}: driver {tenant.limits.driver} is not known to the guard",
            hint="start it without one (nvc.guard=off), or see docs/internals/adding-a-driver-version.md",
        )
    return ContainerError(f"container {tenant.name}: {error.strerror or error}", hint=tenant_files.shortage(error))


def _has(tenant: Tenant, is_meant: Callable[[Member], bool]) -> bool:
    return any(is_meant(one) for one in tenant.members)


def _words(member: Member) -> set[str]:
    """What a container is found by."""
    return {member.key, member.container} - {""}


def _member(entry: Entry, process: ContainerProcess) -> Member:
    first = process.first or entry.record.pid
    return Member(entry.record.key, entry.record.container, first, store.start_time(first), entry.record.name)
