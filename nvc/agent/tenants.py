"""Containers under the guard: from the listener that a runtime sends to the last process's end.

A container's limits are those of its entry in the store (nvc.share.store), which the hook made before the container's
first process installed its filter: runc and crun both run prestart, createRuntime and createContainer hooks earlier.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time

from nvc.agent.registrations import Registrations
from nvc.agent.state import channels, inflight, ledger
from nvc.agent.state import records as tenant_files
from nvc.agent.state.records import TenantRecord
from nvc.agent.tenant import Tenant
from nvc.agent.waiting import Waiting
from nvc.base.errors import AgentError, ContainerError, InputError, NvcError, reason
from nvc.linux.restart import restart
from nvc.share import limits as limits_file
from nvc.share import store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nvc.agent.container_state import ContainerProcess
    from nvc.agent.journal import Journal
    from nvc.agent.keeping import Keeping
    from nvc.agent.part import Part
    from nvc.bindings.guard import Guard
    from nvc.share.entry import Entry
    from nvc.share.limits import Limits

#: Seconds that a container's entry may come after its listener: a hook of the engine's own may be slow.
ENTRY_SECONDS = 3.0
#: Of a container at a time (TENANT_LISTENERS of native/guard/tenant.h).
LISTENERS = 64


class Tenants:
    """All of them, by number. For the agent's one thread."""

    def __init__(
        self, guard: Guard, keeping: Keeping, journal: Journal, directory: str, shares: str, parts: list[Part]
    ) -> None:
        """directory: the agent's; shares: the store's. Raises AgentError."""
        self._guard = guard
        self._keeping = keeping
        self._journal = journal
        self._directory = directory
        self._shares = shares
        self._parts = parts
        self.registrations = Registrations(directory)
        for problem in self.registrations.problems:
            journal.write("warning", message=problem)
        self._by_number: dict[int, Tenant] = {}
        self._next = 1

    def __iter__(self) -> Iterator[Tenant]:
        return iter(tuple(self._by_number.values()))

    def __len__(self) -> int:
        return len(self._by_number)

    def by_number(self, number: int) -> Tenant | None:
        return self._by_number.get(number)

    def find(self, word: str) -> Tenant:
        """The tenant that ``word`` names: a key or id, the beginning of one, a pid. Raises InputError."""
        exact = [one for one in self if word in (one.record.key, one.record.container)]
        by_pid = [one for one in self if word.isascii() and word.isdigit() and one.record.pid == int(word[:10])]
        found = exact or by_pid or [one for one in self if word and one.name.startswith(word)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(one.name[:16] for one in (found or list(self))[:8])
        if found:
            raise InputError(f"container {word!r} is not the only one", hint=f"it could be {names}")
        raise InputError(
            f"no container {word[:80]!r} under the guard",
            hint=f"there are: {names}" if names else "no container here is guarded",
        )

    # Coming.

    async def admit(self, process: ContainerProcess, listener: int, connection: str = "") -> None:
        """A runtime sent a listener, which is ours now. Raises nothing: a container that cannot be guarded is ended.

        connection: what the keeper calls the one that it came on, which need not be kept any more once the listener is.
        """
        pinned = _pin(process.pid)  # before anything is waited for: its number can come to mean another one
        try:
            try:
                self.registrations.arrived(process)
                entry = await self._entry(process)
                with entry:
                    tenant = self._register(entry, process)
                    self._listen(tenant, tenant.next_name(), listener, connection)
            except OSError as error:
                raise AgentError(f"container {process.container}: {error.strerror or error}") from error
        except NvcError as error:
            os.close(listener)  # its calls of the driver fail from now on, ENOSYS
            self._refuse(process, pinned, error)
            return
        except BaseException:
            os.close(listener)
            raise
        finally:
            if pinned >= 0:
                os.close(pinned)
        self._journal.write(
            "listener",
            container=tenant.name,
            tenant=tenant.number,
            pid=process.pid,
            status=process.status,
            listeners=len(tenant.listeners),
        )

    async def _entry(self, process: ContainerProcess) -> Entry:
        """Its entry in the store, as soon as there is one. Raises ContainerError."""
        until = time.monotonic() + ENTRY_SECONDS
        while True:
            found = await asyncio.to_thread(self._look, process)
            if found is not None:
                return found
            if time.monotonic() > until:
                raise ContainerError(
                    f"container {process.container} has no share: {self._shares}/{process.container} is missing",
                    hint="its nvc-hook makes it at prestart; a seccomp profile with a listener alone is not enough",
                )
            await asyncio.sleep(0.05)

    def _look(self, process: ContainerProcess) -> Entry | None:
        wanted = None
        for entry in store.entries(self._shares)[0]:
            record = entry.record
            # The pid too: what an earlier container of this name left must not count.
            named = process.container in (record.key, record.container)
            same = record.pid == process.first if process.first and record.pid else named
            if wanted is None and same and entry.is_alive():
                wanted = entry
            else:
                entry.close()
        return wanted

    def _register(self, entry: Entry, process: ContainerProcess) -> Tenant:
        """The container's tenant, made if it is new. Raises NvcError, OSError."""
        record = entry.record
        first = process.first or record.pid
        started = store.start_time(first)
        for tenant in self:
            if tenant.record.key == record.key:
                if (tenant.record.pid, tenant.record.start_time) == (first, started):
                    return tenant
                self._end(tenant)  # an earlier container of this name
        since = round(time.time(), 3)
        made = TenantRecord(self._next, record.key, record.container, first, started, since)
        self._next += 1
        tenant = Tenant(made, _limits(entry))
        for part in self._parts:
            part.check(tenant.limits)
        tenant_files.save(self._directory, made)
        try:
            self._add(tenant)
        except BaseException:
            tenant_files.remove(self._directory, made.number)
            raise
        return tenant

    def _add(self, tenant: Tenant, listeners: Sequence[int] | None = None, waiting: Waiting | None = None) -> None:
        """listeners: those of a tenant that is taken over. waiting: threads that wait since before that."""
        try:
            self._guard.add(tenant.number, limits_file.encode(tenant.limits), len(tenant.limits.gpus))
        except OSError as error:
            raise _not_added(tenant, error) from error
        try:
            answered, problem = ledger.keep(self._guard, self._directory, tenant.number, listeners)
            if problem:
                self._journal.write("warning", message=problem, container=tenant.name)
            if waiting is not None:
                pids = [pid for pid, _ in self._guard.processes(tenant.number)]
                restart(waiting.of([tenant.record.pid, *pids]))
            if answered or (listeners is not None and inflight.answer(self._directory, tenant.number, listeners)):
                self._journal.write("answered", tenant=tenant.number, container=tenant.record.container)
            noted = inflight.open_file(self._directory, tenant.number)
            try:
                self._guard.inflight(tenant.number, noted)
            finally:
                os.close(noted)
            listed = channels.open_file(self._directory, tenant.number)
            try:
                self._guard.channels(tenant.number, listed)
            finally:
                os.close(listed)
        except BaseException:
            self._guard.remove(tenant.number)
            raise
        self._by_number[tenant.number] = tenant
        self._journal.write(
            "tenant", container=tenant.name, tenant=tenant.number, pid=tenant.record.pid, gpus=_words(tenant.limits)
        )
        for part in self._parts:
            part.added(tenant)

    def _listen(self, tenant: Tenant, name: str, listener: int, connection: str) -> None:
        """Raises ContainerError, OSError; a tenant without any listener ends by itself."""
        try:
            self._keeping.put(name, listener, connection)
        except AgentError as error:
            # It went away: another one is started at once, and gets every listener that is here then (keep_again).
            self._journal.write("warning", message=str(error), container=tenant.name)
        try:
            self._guard.listen(tenant.number, listener)
        except BaseException as error:
            self._keeping.drop(name)
            if isinstance(error, OSError) and error.errno == errno.EMFILE and len(tenant.listeners) >= LISTENERS:
                raise ContainerError(
                    f"container {tenant.name}: {LISTENERS} processes that were put into it are there, and it can have "
                    "no more",
                    hint="execute this one when some have ended",
                ) from error
            raise
        tenant.listeners[name] = listener

    def _refuse(self, process: ContainerProcess, pinned: int, error: NvcError) -> None:
        """Say why, and end the process: without its listener it would run with a GPU that answers nothing."""
        ended = _kill(process.pid, pinned)
        self._journal.write(
            "refused",
            container=process.container,
            pid=process.pid,
            ended=ended,
            message=str(error),
            hint=error.hint,
        )

    # Taking over.

    def take_over(self, kept: dict[str, int]) -> None:
        """The tenants of an agent that ended, with the listeners that were kept: name -> descriptor, ours now.

        Raises AgentError when their files cannot be written: their calls wait for an agent that can.
        """
        records, problems = tenant_files.load(self._directory)
        for problem in problems:
            self._journal.write("warning", message=problem)
        by_number = {record.number: record for record in records}
        self._next = max(by_number, default=0) + 1
        entries = {entry.record.key: entry for entry in store.entries(self._shares)[0]}
        waiting = Waiting() if kept else None
        try:
            for name, listener in sorted(kept.items()):
                word = name.partition("-")[0]
                record = by_number.get(int(word)) if word.isdigit() else None
                entry = entries.get(record.key) if record is not None else None
                try:
                    if record is None or entry is None:
                        raise ContainerError(f"the tenant of the listener {name} is unknown")
                    tenant = self._by_number.get(record.number)
                    if tenant is None:
                        tenant = Tenant(record, _limits(entry))
                        listeners = [one for other, one in kept.items() if other.partition("-")[0] == word]
                        self._add(tenant, listeners, waiting)
                    self._guard.listen(tenant.number, listener)
                    tenant.listeners[name] = listener
                except AgentError:
                    raise
                except (NvcError, OSError) as error:
                    self._journal.write("warning", message=f"taking over {name}: {error}")
                    os.close(listener)
                    self._keeping.drop(name)
        finally:
            for entry in entries.values():
                entry.close()
        for number in by_number.keys() - self._by_number.keys():
            tenant_files.remove(self._directory, number)

    def keep_again(self) -> None:
        """Give every listener to another keeper. Raises AgentError."""
        for tenant in self:
            for name, listener in tenant.listeners.items():
                self._keeping.put(name, listener)

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
            self._guard.update(tenant.number, limits_file.encode(found))
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False  # the next look is soon
            raise ContainerError(f"container {tenant.name}: its limits are not taken: {reason(error)}") from error
        tenant.limits = found
        self._journal.write("limits", container=tenant.name, tenant=tenant.number, gpus=_words(found))
        for part in self._parts:
            part.changed(tenant)
        return True

    def _read(self, tenant: Tenant) -> Limits:
        path = f"{self._shares}/{tenant.record.key}/{store.LIMITS}"
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return limits_file.read(descriptor)
        finally:
            os.close(descriptor)

    def look(self) -> None:
        """What is due periodically: processes and tenants that are gone, limits files that were changed."""
        for tenant in self:
            try:
                if self._guard.gone(tenant.number):
                    self._end(tenant)
                    continue
                # Of processes that were put into a container: guard and keeper have let go of theirs by themselves.
                for name in tenant.hung_up():
                    os.close(tenant.listeners.pop(name))
                self.refresh(tenant)
            except (NvcError, OSError) as error:
                if store.start_time(tenant.record.pid) == tenant.record.start_time:
                    self._journal.write("warning", message=str(error), container=tenant.name)

    # Going.

    def _end(self, tenant: Tenant) -> None:
        del self._by_number[tenant.number]
        try:
            status = self._guard.status(tenant.number)
            counted: dict[str, object] = {"notifications": status.notifications, "denials": dict(status.reasons)}
        except OSError:
            counted = {}
        self._guard.remove(tenant.number)
        for name, listener in tenant.listeners.items():
            self._keeping.drop(name)
            os.close(listener)
        tenant_files.remove(self._directory, tenant.number)
        self._journal.write("gone", container=tenant.name, tenant=tenant.number, **counted)
        for part in self._parts:
            part.gone(tenant)

    def close(self) -> None:
        """The agent ends: its own copies of listeners go, the keeper's stay."""
        for tenant in self:
            for listener in tenant.listeners.values():
                os.close(listener)
        self._by_number.clear()


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
    return ContainerError(f"container {tenant.name}: {error.strerror or error}")


def _words(limits: Limits) -> list[str]:
    from nvc.share.policy import as_gpu_share
    from nvc.share.spec import format_gpu

    return [f"{gpu.uuid} {format_gpu(as_gpu_share(gpu))}" for gpu in limits.gpus]


def _pin(pid: int) -> int:
    """A pidfd, which the caller closes; -1: there is no such process."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _kill(pid: int, pinned: int) -> bool:
    """End a process that has a filter; False when there is none."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # a newline in the name is escaped there
            filtered = any(line.split() == [b"Seccomp:", b"2"] for line in file)
        if filtered:
            signal.pidfd_send_signal(pinned, signal.SIGKILL)
        return filtered
    except OSError:
        return False
