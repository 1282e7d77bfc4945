"""The agent: puts supervisors, sockets and parts together, and runs until a signal ends it.

It is a manager: its end, however it comes, changes nothing for containers that run (docs/internals/supervisor.md).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import socket
import time

from nvc.agent import cgroups, connections, peer, users
from nvc.agent.admission import Acceptors, AdmissionSocket
from nvc.agent.control import ControlSocket
from nvc.agent.journal import Journal
from nvc.agent.notify import Systemd
from nvc.agent.promised import PromisedRequests
from nvc.agent.scheduled import NO_SHARE
from nvc.agent.settings import load
from nvc.agent.state import records
from nvc.agent.tenants import Tenants
from nvc.agent.verbs import Verbs
from nvc.agent.waiting import Published, Turn, prefer, threads
from nvc.base.errors import AgentError, InputError, NvcError, reason
from nvc.base.record import Record
from nvc.guard.supervisors import Supervisors
from nvc.linux.process import process_name
from nvc.share import change, store, unowned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    from nvc.agent.balance import Finding
    from nvc.agent.control import Handler
    from nvc.agent.part import Part
    from nvc.agent.scheduled import ScheduledShare
    from nvc.agent.settings import AgentSettings
    from nvc.agent.status import StatusTenant
    from nvc.agent.tenant import Tenant
    from nvc.model import Gpu
    from nvc.share.limits import Limits

    T = TypeVar("T")

#: Seconds between two looks at tenants and events; for another agent to end; between two lines to the service manager.
LOOK, OTHER, FLUSH = 0.25, 5.0, 0.15
#: Seconds after a tenant's end in which its processes end, and its cgroup can be removed.
ENDING = 5.0
#: Seconds for a change while the driver makes a call of the tenant: most take less than a millisecond, some hundreds.
IN_FORCE = 3.0
#: Seconds between two looks for entries of the store that no container has.
CLEAN = 60.0
#: Beside the loop, for files, locks and pages of metrics.
THREADS = 16
#: The file that the one agent of a directory holds a lock of. Places of its pid there.
LOCK, _PID_DIGITS = "lock", 10
#: The sockets that a service manager may open.
OWN = ("listen", "control")


class AgentOptions(Record):
    """Where things are. directory: the agent's. shares: the store. devices: the driver's nodes. config: its file."""

    directory: str = "/run/nvc/agent"
    shares: str = "/run/nvc/share"
    devices: str = "/dev"
    config: str = ""


class Agent:
    """One a directory. ``run`` does everything; the attributes are for its parts."""

    supervisors: Supervisors
    tenants: Tenants

    def __init__(
        self, options: AgentOptions, journal: Journal, inventory: Sequence[Gpu], parts: Sequence[Part] = ()
    ) -> None:
        """inventory: the machine's GPUs."""
        self.options = options
        self.journal = journal
        self.inventory = inventory
        self.settings: AgentSettings = load(options.config)
        self.parts: list[Part] = []
        self._wanted = list(parts)
        self.promised = PromisedRequests(options.shares)
        self._end = asyncio.Event()

    async def run(self, systemd: Systemd) -> None:
        """Until SIGTERM or SIGINT. Raises NvcError, OSError."""
        prefer()
        asyncio.get_running_loop().set_default_executor(threads(THREADS, "nvc-agent"))
        records.prepare(self.options.directory)
        lock, first = _lock(self.options.directory), self.settings.first_uid
        _raise_descriptors()
        given = _given(systemd)
        try:
            users.check(first)
            with Supervisors(self.options.devices, self.options.directory, first) as self.supervisors:
                await self._serve(systemd, given)
        finally:
            cgroups.remove(self.options.directory)
            os.close(lock)

    async def _serve(self, systemd: Systemd, given: dict[str, int]) -> None:
        loop = asyncio.get_running_loop()
        directory = self.options.directory
        control = self._control(given.get("control", -1))
        admitting = connections.bind(f"{directory}/admit", socket.SOCK_SEQPACKET)
        if problem := cgroups.prepare(directory):
            message = f"the memory of guards' processes has no limit but each process's: {problem}"
            self.journal.write("warning", message=message, hint="enable the memory controller of cgroups")
        self._acceptors = Acceptors(directory, self.journal, given.get("listen", -1))
        self.tenants = Tenants(
            self.supervisors, self.journal, directory, self.options.shares, self.parts, lambda: self.settings.graphics
        )
        self._published = Published(self.supervisors.publications)
        self.tenants.take_over()
        for part in self._wanted:
            await part.start(self)
            self.parts.append(part)
        handlers: dict[str, Handler] = dict(Verbs(self).handlers())
        for part in self.parts:
            handlers.update(part.handlers())
        serving = ControlSocket(control, handlers, self.journal, lambda: peer.group_id(self.settings.group))
        admissions = AdmissionSocket(admitting, self.tenants.admit, self.journal)
        self._acceptors.look()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        loop.add_signal_handler(signal.SIGHUP, self._hup)
        loop.add_reader(self.supervisors.ends.fileno(), self._monitor_gone)
        coroutines = (
            admissions.serve(),
            serving.serve(),
            self._flush(systemd),
            self._look(),
            self._clean(),
            self._end.wait(),
        )
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        self.journal.write("ready", tenants=len(self.tenants), pid=os.getpid())
        systemd.tell("READY=1", f"STATUS={len(self.tenants)} containers taken over")
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what ended it
        finally:
            systemd.tell("STOPPING=1")
            loop.remove_reader(self.supervisors.ends.fileno())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop(is_own="control" not in given)

    async def _stop(self, *, is_own: bool) -> None:
        left = await self.tenants.close()  # first: parts get those that are over
        for part in self.parts:
            await part.stop()
        self._acceptors.close()
        self.promised.close()
        for name in ("admit", "control") if is_own else ("admit",):
            try:
                os.unlink(f"{self.options.directory}/{name}")
            except OSError:
                pass
        self.journal.write("end", tenants=left)

    # What runs all the time.

    async def _flush(self, systemd: Systemd) -> None:
        while True:
            systemd.flush()
            await asyncio.sleep(FLUSH)

    async def _look(self) -> None:
        problem, news = "", self.supervisors.publications.reader()
        while True:
            await asyncio.sleep(LOOK)
            self.journal.look()
            self._monitor_gone()
            changed, turn = news.take(), Turn()
            for number in changed:
                self._events([number])
                await turn.pause()
            await self.tenants.look(changed)
            for part in self.parts:
                part.look()
            if time.monotonic() - self.supervisors.forgot_at < ENDING:
                cgroups.clean(self.options.directory)
            try:
                self._acceptors.look()
                problem = ""
            except NvcError as error:
                if str(error) != problem:
                    problem = str(error)
                    self.journal.write("warning", message=problem, hint=error.hint)

    async def _clean(self) -> None:
        """Entries of the store that no container has any more."""

        def keep() -> list[str]:
            """Read when the entries have been found: of those that came meanwhile, too."""
            return [one.key for record in records.known(self.options.directory) for one in record.members]

        def clean() -> list[str]:
            with self.promised.known():
                pass  # no start that asks waits until all of it was read
            store.clean(self.options.shares)
            return unowned.clean(keep, self.options.shares)

        while True:
            try:
                gone = await asyncio.to_thread(clean)
            except (NvcError, OSError) as error:
                self.journal.write("warning", message=f"{self.options.shares} is not cleaned: {error}")
                gone = []
            for key in gone:
                self.journal.write("cleaned", entry=f"{self.options.shares}/{key}")
            await asyncio.sleep(CLEAN)
            cgroups.clean(self.options.directory)

    def _monitor_gone(self) -> None:
        """At once, not at the next look: its supervisor may be gone as well, and its container would run on."""
        lost = self.supervisors.lost()
        self._events(lost)
        self.tenants.end_lost(lost)

    def _events(self, numbers: Iterable[int]) -> None:
        for event in self.supervisors.events(numbers):
            tenant = self.tenants.by_number(event.tenant)
            self.journal.write(
                "denial",
                container=tenant.name if tenant is not None else "",
                tenant=event.tenant,
                reason=event.reason,
                number=f"{event.number:#x}",
                pid=event.pid,
                program=process_name(event.pid),
                repeated=event.repeated,
                when=event.when_ns / 1e9,
            )

    def _hup(self) -> None:
        try:
            self.reload()
        except NvcError as error:
            self.journal.write("warning", message=str(error), hint=error.hint)

    def reload(self) -> None:
        """Read the configuration again; a broken one changes nothing. Raises InputError, AgentError."""
        self.settings = load(self.options.config)
        control = f"{self.options.directory}/control"
        try:
            self._set_mode(control)
        except OSError as error:
            raise AgentError(f"{control}: {reason(error)}", hint=records.advice(error)) from None
        for part in self.parts:
            part.reload()
        self.journal.write("reload")

    def check_change(self, tenant: Tenant, limits: Limits) -> None:
        """Whether a tenant can have these limits; in any thread. Raises ContainerError."""
        for part in self.parts:
            part.check_change(tenant, limits)

    def locked(self, tenant: Tenant, act: Callable[[store.Entry], T]) -> T:
        """What ``act`` does with the tenant's entry, under its lock. In a thread: another writer may have to end."""
        with (
            store.find(tenant.living.key, self.options.shares) as entry,
            change.Hold(entry, lambda: [one.key for one in tenant.members]) as held,
        ):
            return act(held)

    async def pause(self, tenant: Tenant, *, paused: bool) -> None:
        """Write it down, and put it into force. Raises NvcError."""
        try:
            await asyncio.to_thread(self.locked, tenant, lambda entry: change.pause(entry, paused=paused))
        finally:
            await self.put_in_force(tenant)

    async def put_in_force(self, tenant: Tenant) -> None:
        """Raises AgentError where the tenant's call of the driver takes too long, NvcError."""
        end = time.monotonic() + IN_FORCE
        while not self.tenants.refresh(tenant):
            if not await self._published.wait(tenant.number, end - time.monotonic()):
                raise AgentError(
                    f"container {tenant.name}: the driver has not ended a call of it in {IN_FORCE:g} s",
                    hint="the change is written, and in force when that call has ended",
                )
        for part in self.parts:
            await part.settled()

    # For the status: what ``nvc.agent.part.Part`` says of each, from whichever part knows it.

    def policies(self) -> dict[str, str]:
        return {uuid: policy for part in self.parts for uuid, policy in part.policies().items()}

    def shares(self, tenant: Tenant, gpu: int) -> ScheduledShare:
        """0 without scheduling."""
        for part in self.parts:
            share = part.shares(tenant, gpu)
            if share is not None:
                return share
        return NO_SHARE

    def reported(self, tenant: Tenant, uuid: str) -> int:
        return max((part.reported(tenant, uuid) for part in self.parts), default=0)

    def computed(self, tenant: Tenant, uuid: str) -> tuple[float | None, int]:
        found = [part.computed(tenant, uuid) for part in self.parts]
        return next((one for one in found if one[0] is not None), (None, max((one[1] for one in found), default=0)))

    def energy(self, tenant: Tenant, uuid: str) -> float | None:
        return next((found for part in self.parts if (found := part.energy(tenant, uuid)) is not None), None)

    def gpu_energy(self, uuid: str) -> float | None:
        return next((found for part in self.parts if (found := part.gpu_energy(uuid)) is not None), None)

    def xids(self, number: int, uuid: str) -> dict[int, int]:
        return {xid: count for part in self.parts for xid, count in part.xids(number, uuid).items()}

    def findings(self) -> dict[str, Finding]:
        return {uuid: finding for part in self.parts for uuid, finding in part.findings().items()}

    def attached(self) -> list[StatusTenant]:
        return [tenant for part in self.parts for tenant in part.attached()]

    _acceptors: Acceptors

    def _control(self, given: int) -> socket.socket:
        """The control socket: the service manager's, or a new one."""
        path = f"{self.options.directory}/control"
        # The name is never missing: to nvc-runtime that says that the node has no agent.
        made = socket.socket(fileno=given) if given >= 0 else connections.bind(path, instead=True)
        self._set_mode(path)
        return made

    def _set_mode(self, path: str) -> None:
        group = peer.group_id(self.settings.group)
        if group >= 0:
            os.chown(path, -1, group)
        os.chmod(path, 0o660 if group >= 0 else 0o600)


def _given(systemd: Systemd) -> dict[str, int]:
    """The sockets that the service manager opened, by name; others are closed."""
    found: dict[str, int] = {}
    for name, descriptor in systemd.given:
        if name in OWN and name not in found:
            found[name] = descriptor
        else:
            os.close(descriptor)
    systemd.given = []
    return found


def _lock(directory: str) -> int:
    """Be the only agent. Raises InputError when another one does not end, AgentError."""
    try:
        descriptor = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise AgentError(f"{directory}/{LOCK}: {reason(error)}", hint=records.advice(error)) from None
    until = time.monotonic() + OTHER
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(descriptor, f"{os.getpid():<{_PID_DIGITS}}\n".encode(), 0)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > until:
                hint = f"process {_holder(descriptor) or '?'} holds {directory}/{LOCK}"
                os.close(descriptor)
                raise InputError("an agent runs already", hint=hint) from None
        time.sleep(0.02)


def _holder(lock: int) -> int:
    """The pid that the lock's holder wrote into it; 0: none is there yet."""
    text = os.pread(lock, _PID_DIGITS, 0).strip()
    return int(text) if text.isdigit() else 0


def _raise_descriptors() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
