"""Tenants that are there: found, taken over, changed, and let go when they are over."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from contextlib import suppress

from nvc.agent import ending
from nvc.agent.ended import EndedShares
from nvc.agent.groups import Groups, words
from nvc.agent.limits_files import LimitsFiles
from nvc.agent.registrations import Registrations
from nvc.agent.state import records as tenant_files
from nvc.agent.tenant import Index, Tenant
from nvc.agent.unmanaged import UnmanagedTenants
from nvc.agent.waiting import Threads, Turn, readable, threads
from nvc.base.errors import ContainerError, InputError, NvcError, reason
from nvc.guard.channel import SECONDS
from nvc.share import limits as limits_file
from nvc.share import store
from nvc.share.limits import with_shares

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nvc.agent.journal import Journal
    from nvc.agent.part import Part
    from nvc.agent.state.records import TenantRecord
    from nvc.guard.held import HeldTenant
    from nvc.guard.supervisors import Supervisors
    from nvc.share.limits import Limits

#: What connecting to a monitor that is gone gives.
_GONE = (errno.ENOENT, errno.ECONNREFUSED, errno.EPIPE, errno.ECONNRESET)
#: What does not hold when a guard cannot see something, in the order of ``Counters.state``: message and hint.
_UNSEEN = (
    (
        "a guard cannot query the driver: memory of a process that ended is not charged where another process has it",
        "see the kernel's log (NVRM), then start the container again",
    ),
    (
        "the kernel reports no execve: managed memory that was mapped before one is not charged while another process "
        "shares the address space",
        "allow the agent perf_event_open (CAP_PERFMON; a kernel with CONFIG_PERF_EVENTS), then start containers again",
    ),
)


class Registry:
    """All of them, by number. For the agent's one thread."""

    def __init__(
        self,
        supervisors: Supervisors,
        journal: Journal,
        directory: str,
        shares: str,
        parts: list[Part],
        graphics: Callable[[], bool] = lambda: False,
    ) -> None:
        """directory: the agent's; shares: the store's; graphics: of its settings. Raises AgentError."""
        self._supervisors = supervisors
        self._journal = journal
        self._directory = directory
        self._shares = shares
        self._parts = parts
        self._graphics = graphics
        self.registrations = Registrations(directory)
        for problem in self.registrations.problems:
            journal.write("warning", message=problem)
        self._threads = Threads()
        self._ended = EndedShares(shares)
        self._groups = Groups(supervisors, self._threads, journal, directory, self._ended)
        self.unmanaged = UnmanagedTenants(supervisors, journal, directory)
        self._by_number: dict[int, Tenant] = {}
        self._index = Index()
        self._files = LimitsFiles(shares)
        #: Numbers of those whose counters are to be looked at.
        self._due: set[int] = set()
        #: Messages of _UNSEEN that were written.
        self._warned: set[str] = set()
        #: Ends of tenants whose monitors have not answered; and what removes their files.
        self._ends: set[asyncio.Task[None]] = set()
        self._removing = threads(1, "nvc-end")
        #: Of all ends together: hundreds of monitors that answer at once would keep the loop from others.
        self._ending, self._turn = asyncio.Lock(), Turn()
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
        return self._index.named(word)

    def find(self, word: str) -> Tenant:
        """The tenant that ``word`` names: a key or id, the beginning of one, a pid. Raises InputError."""
        exact = [self._by_number[number] for number in self.named(word)]
        exact = exact or [one for one in self if word == one.name]
        number = int(word[:10]) if word.isascii() and word.isdigit() else 0
        found = exact or [one for one in self if number and any(of.pid == number for of in one.members)]
        found = found or [one for one in self if word and any(of.name.startswith(word) for of in one.members)]
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

    def _added(self, tenant: Tenant) -> None:
        self._by_number[tenant.number] = tenant
        self._index.add(tenant)
        self._due.add(tenant.number)
        self._files.add(tenant)
        for one in tenant.members:
            gpus = list(words(tenant.limits))
            self._journal.write("tenant", container=one.name, tenant=tenant.number, pid=one.pid, gpus=gpus)
        for part in self._parts:
            part.added(tenant)

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
                    tenant_files.remove(self._directory, record)
        for record in tenant_files.unread(self._directory, [one.number for one in records]):
            self.unmanaged.add(record, "its record cannot be read")

    def _lost(self, record: TenantRecord, why: str, *, always: bool = False) -> None:
        """Neither monitor nor supervisor is left: a container that still runs must not run on unguarded.

        always: write it down, also where nothing was left to be ended.
        """
        ended = ending.end(self._directory, record)
        tenant_files.remove(self._directory, record)
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
        if found is None or found == tenant.limits:
            return True
        tenant.is_planned = False
        try:
            self._supervisors.update(tenant.number, limits_file.encode(found))
            tenant.is_planned = True
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False  # the next look is soon
            raise ContainerError(f"container {tenant.name}: its limits are not taken: {reason(error)}") from error
        before, tenant.limits = tenant.limits, found
        if words(found) != words(before) or found.paused != before.paused:  # a range's limit moves all the time
            self._journal.write("limits", container=tenant.name, tenant=tenant.number, gpus=list(words(found)))
        for part in self._parts:
            part.changed(tenant)
        return True

    def _read(self, tenant: Tenant) -> Limits | None:
        """None: what is in force, which most files say that are looked at: of tenants that have just come."""
        descriptor = os.open(tenant.limits_path(self._shares), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            content = limits_file.copy(descriptor)
        finally:
            os.close(descriptor)
        if tenant.record.group:
            return with_shares(tenant.limits, limits_file.decode(content))
        if tenant.is_planned and limits_file.says_same(content, self._supervisors.limits(tenant.number)):
            return None
        return limits_file.decode(content).replace(graphics=tenant.limits.graphics)

    async def look(self, changed: Iterable[int]) -> None:
        """What is due periodically: tenants that are gone, limits files that were changed.

        changed: numbers of tenants whose counters were published since the last time.
        """
        self.unmanaged.look()
        self._ended.look()
        self._due.update(changed)
        over, turn = [], Turn()
        for number in tuple(self._due):
            tenant = self._by_number.get(number)
            if tenant is not None and tenant.busy:
                continue
            self._due.discard(number)
            try:
                if tenant is not None:
                    is_gone, *sees = self._supervisors.state(number)
                    self._warn_unseen(sees)
                    if is_gone:
                        over.append(tenant)
            except OSError:
                self._due.add(number)  # with the next look
            await turn.pause()
        for tenant in over:
            self._begin_end(tenant)
            await turn.pause()
        for tenant in tuple(self._index.groups.values()):
            self._groups.look(tenant)
        for number in self._files.take():
            tenant = self._by_number.get(number)
            if tenant is None:
                continue
            try:
                if tenant.busy or not self.refresh(tenant):
                    self._files.again(tenant)
            except (NvcError, OSError) as error:
                self._files.again(tenant)
                self._problem(tenant, error)
            await turn.pause()

    def _warn_unseen(self, sees: Iterable[bool]) -> None:
        """Once for all tenants."""
        for (message, hint), is_seen in zip(_UNSEEN, sees, strict=True):
            if not is_seen and message not in self._warned:
                self._warned.add(message)
                self._journal.write("warning", message=message, hint=hint)

    def _problem(self, tenant: Tenant, error: Exception) -> None:
        if store.start_time(tenant.record.pid) == tenant.record.start_time:
            self._journal.write("warning", message=str(error), container=tenant.name)

    # Going.

    def end_lost(self, numbers: Iterable[int]) -> None:
        """End the containers of these tenants, whose monitor is gone, and of such unmanaged ones. Raises nothing."""
        self.unmanaged.look()
        for number in numbers:
            tenant = self._by_number.get(number)
            if tenant is not None:
                self._forget(tenant)
                self._lost(tenant.record, "its monitor or its supervisor died", always=True)

    def _begin_end(self, tenant: Tenant) -> asyncio.Task[None] | None:
        """It is over, and none of the agent's any more. The rest takes as long as its monitor; None: it has begun."""
        if self._by_number.get(tenant.number) is not tenant:
            return None
        last = self._supervisors.take(tenant.number)
        self._forget(tenant)
        task = asyncio.get_running_loop().create_task(self._rest_of_end(tenant, last))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)
        return task

    async def _end(self, tenant: Tenant) -> None:
        """``_begin_end``, until nothing of it is left."""
        task = self._begin_end(tenant)
        if task is not None:
            await asyncio.shield(task)

    async def _rest_of_end(self, tenant: Tenant, last: HeldTenant) -> None:
        """Hundreds may end at once, and one whose monitor answers late keeps no other one waiting."""
        counted: dict[str, object] = {}
        with suppress(OSError):  # its monitor is gone, too, or does not answer
            try:
                async with self._ending:
                    status = last.counters.status()
                    last.begin_end()
                    await self._turn.pause()
                async with asyncio.timeout(SECONDS):
                    await readable(last.connection)
                await self._ending.acquire()
            except BaseException:
                last.close()
                raise
            try:
                last.end()  # what it answers is there
                await self._turn.pause()
            finally:
                self._ending.release()
            counted = {"notifications": status.notifications, "denials": dict(status.reasons)}
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._removing, tenant_files.remove, self._directory, tenant.record)
        self._journal.write("gone", container=tenant.name, tenant=tenant.number, **counted)

    async def ended(self) -> None:
        """When the ends that have begun are over."""
        while self._ends:
            await asyncio.wait(set(self._ends))

    def _forget(self, tenant: Tenant) -> None:
        del self._by_number[tenant.number]
        self._ended.add(tenant.members)
        self._index.remove(tenant)
        self._due.discard(tenant.number)
        self._files.drop(tenant)
        self._supervisors.forget(tenant.number)
        for part in self._parts:
            part.gone(tenant)

    async def close(self) -> int:
        """The agent ends; tenants and their supervisors go on, but for those of which nothing is left. How many do."""
        until = time.monotonic() + SECONDS
        for tenant in self:
            try:
                if time.monotonic() < until:  # else as published last: not SECONDS for each monitor that hangs
                    self._supervisors.refresh(tenant.number)
                if self._supervisors.gone(tenant.number):
                    self._begin_end(tenant)
            except OSError as error:
                if error.errno in _GONE:  # not seen before the end: the prober would go on for what it had
                    self.end_lost([tenant.number])
        await self.ended()
        self._removing.shutdown()
        self._threads.close()
        left = len(self)
        self.unmanaged.close()
        self._files.close()
        self._by_number.clear()
        return left
