"""The agent: puts guard, sockets, keeper and parts together, and runs until it is told to end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import socket
import time

from nvc.agent import peer
from nvc.agent.control import ControlSocket
from nvc.agent.journal import Journal
from nvc.agent.keeper import NEW, OWN
from nvc.agent.keeping import Keeping
from nvc.agent.listener import ListenerSocket
from nvc.agent.notify import Systemd
from nvc.agent.scheduler import ScheduledShare
from nvc.agent.settings import load
from nvc.agent.stalls import Stalls, release_undead
from nvc.agent.state import records
from nvc.agent.tenants import Tenants
from nvc.agent.thaw import LOCK, thaw
from nvc.agent.verbs import Verbs
from nvc.base.errors import AgentError, InputError, NvcError, reason
from nvc.base.record import Record
from nvc.bindings.guard import Guard
from nvc.bindings.reasons import STUCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.agent.control import Handler
    from nvc.agent.part import Part
    from nvc.agent.settings import AgentSettings
    from nvc.agent.status import StatusTenant
    from nvc.agent.tenant import Tenant
    from nvc.model import Gpu

#: Seconds between two words to the keeper, two looks at tenants, two readings of events; for another agent to end;
#: until a keeper that could not be started is tried again.
BEAT, LOOK, EVENTS, OTHER, KEEPER = 0.15, 0.25, 0.25, 5.0, 0.1
_BACKLOG = 512
#: Seconds between two tries to let an agent go that was killed and does not end. Places of a pid in the lock's file.
_UNDEAD, _PID_DIGITS = 1.0, 10
#: Places in its table of descriptors from the beginning. The kernel doubles it when it is full, and waits for 8 ms and
#: more each time once there are threads (fs/file.c, expand_fdtable): in a tenant's call, or while no call is answered.
_DESCRIPTORS = 8192
_BLIND = (
    "execve tracking unavailable (perf_event_open): managed memory mapped before an execve is not accounted while the "
    "address space is shared"
)
_SIGHT = "start the agent with CAP_PERFMON, where perf_event_open is allowed, on a kernel with CONFIG_PERF_EVENTS"


class AgentOptions(Record):
    """Where things are. directory: the agent's. shares: the store. devices: the driver's nodes. config: its file."""

    directory: str = "/run/nvc/agent"
    shares: str = "/run/nvc/share"
    devices: str = "/dev"
    config: str = ""


class Agent:
    """One a directory. ``run`` does everything; the attributes are for its parts."""

    guard: Guard
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
        self._end = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        self._own_sockets = True
        self._keeper_problem = ""

    async def run(self, systemd: Systemd) -> None:
        """Until SIGTERM or SIGINT. Raises NvcError, OSError."""
        records.prepare(self.options.directory)
        lock = _lock(self.options.directory)
        _raise_descriptors(lock)
        self._own_sockets = not {name for name, _ in systemd.given} & set(OWN)
        try:
            with Guard(self.options.devices) as self.guard:
                self._keeping = Keeping(self.options.directory, systemd)
                try:
                    kept = self._keeping.get()
                except AgentError:  # it was about to end, because there was nothing to keep
                    self._keeping.again()
                    kept = self._keeping.get()
                # What the last one left frozen: its plan ended with it.
                thaw(self.options.directory, alone=False)
                sockets = {name: self._socket(name, kept.pop(name, -1)) for name in OWN}
                await self._serve(kept, sockets, systemd)
        finally:
            os.close(lock)

    async def _serve(self, kept: dict[str, int], sockets: dict[str, socket.socket], systemd: Systemd) -> None:
        loop = asyncio.get_running_loop()
        options = self.options
        self.tenants = Tenants(self.guard, self._keeping, self.journal, options.directory, options.shares, self.parts)
        before = {name: kept.pop(name) for name in tuple(kept) if name.startswith(NEW)}
        self.tenants.take_over(kept)
        self._stalls = Stalls(self.guard, self.journal)
        for part in self._wanted:
            await part.start(self)
            self.parts.append(part)
        handlers: dict[str, Handler] = dict(Verbs(self).handlers())
        for part in self.parts:
            handlers.update(part.handlers())
        listening = ListenerSocket(sockets["listen"], self.tenants.admit, self.journal, self._keeping, before)
        control = ControlSocket(sockets["control"], handlers, self.journal, lambda: peer.group_id(self.settings.group))
        loop.add_reader(self.guard.event_descriptor, self._events)
        loop.add_reader(self._keeping.fileno(), self._keeper_gone)
        for number, act in (
            (signal.SIGTERM, self._end.set),
            (signal.SIGINT, self._end.set),
            (signal.SIGHUP, self._hup),
        ):
            loop.add_signal_handler(number, act)
        coroutines = (listening.serve(), control.serve(), self._beat(systemd), self._look(), self._end.wait())
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        sees = {"sees_driver": self.guard.sees_driver, "sees_exec": self.guard.sees_exec}
        self.journal.write("ready", tenants=len(self.tenants), **sees, pid=os.getpid())
        if not self.guard.sees_exec:
            self.journal.write("warning", message=_BLIND, hint=_SIGHT)
        systemd.tell("READY=1", f"STATUS={len(self.tenants)} containers taken over")
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what ended it
        finally:
            systemd.tell("STOPPING=1")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._later is not None:
                self._later.cancel()
            loop.remove_reader(self.guard.event_descriptor)
            if self._keeping.fileno() >= 0:
                loop.remove_reader(self._keeping.fileno())
            await self._stop()

    async def _stop(self) -> None:
        for part in self.parts:
            await part.stop()
        left = len(self.tenants)
        self._stalls.end(tenant.number for tenant in self.tenants)
        # Everything frozen is thawed, in-flight calls are answered; later ones wait for the next agent.
        self.guard.close()
        self._keeping.leave()
        self.tenants.close()
        for name in OWN if self._own_sockets else ():
            try:
                os.unlink(f"{self.options.directory}/{name}")
            except OSError:
                pass
        self.journal.write("end", tenants=left)

    # What runs all the time.

    async def _beat(self, systemd: Systemd) -> None:
        while True:
            self._keeping.alive()
            systemd.flush()
            await asyncio.sleep(BEAT)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            self.journal.look()
            self.tenants.look()
            self._stalls.look()
            for part in self.parts:
                part.look()

    def _events(self) -> None:
        # The guard counts what is repeated meanwhile: a tenant that tries ten thousand times a second makes few lines.
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.guard.event_descriptor)
        self._later = loop.call_later(EVENTS, loop.add_reader, self.guard.event_descriptor, self._events)
        for event in self.guard.events():
            if event.reason == STUCK:
                self._stalls.stuck(event.tenant)
            tenant = self.tenants.by_number(event.tenant)
            self.journal.write(
                "denial",
                container=tenant.name if tenant is not None else "",
                tenant=event.tenant,
                reason=event.reason,
                number=f"{event.number:#x}",
                pid=event.pid,
                repeated=event.repeated,
                when=event.when_ns / 1e9,
            )

    def _keeper_gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._keeping.fileno())
        self.journal.write("keeper-gone")
        self._keeper_again()

    def _keeper_again(self) -> None:
        loop = asyncio.get_running_loop()
        if self._end.is_set():
            return
        try:
            self._keeping.again()
            self.tenants.keep_again()
            for name in OWN:
                self._keeping.put(name, self._sockets[name].fileno())
            self._keeping.alive()
        except NvcError as error:
            # As long as /run is full, for instance: told once, tried on.
            if str(error) != self._keeper_problem:
                self._keeper_problem = str(error)
                self.journal.write("warning", message=self._keeper_problem, hint=error.hint)
            loop.call_later(KEEPER, self._keeper_again)
            return
        self._keeper_problem = ""
        loop.add_reader(self._keeping.fileno(), self._keeper_gone)

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
            self._set_mode("control", control)
        except OSError as error:
            raise AgentError(f"{control}: {reason(error)}", hint=records.advice(error)) from None
        for part in self.parts:
            part.reload()
        self.journal.write("reload")

    # For the status.

    def policies(self) -> dict[str, str]:
        """UUID of a GPU -> its policy, where it is not the usual one."""
        return {uuid: policy for part in self.parts for uuid, policy in part.policies().items()}

    def shares(self, tenant: Tenant, gpu: int) -> ScheduledShare:
        """What it is to have and has of a GPU's time; 0 without scheduling."""
        found = (part.shares(tenant, gpu) for part in self.parts)
        return next((share for share in found if share is not None), ScheduledShare(0.0, 0.0))

    def attached(self) -> list[StatusTenant]:
        """Tenants that are scheduled without the guard."""
        return [tenant for part in self.parts for tenant in part.attached()]

    _sockets: dict[str, socket.socket]
    _keeping: Keeping
    _stalls: Stalls

    def _socket(self, name: str, descriptor: int) -> socket.socket:
        """A listening socket: the kept one when it is still the one that has the name, else a new one."""
        path = f"{self.options.directory}/{name}"
        made = None
        if descriptor >= 0:
            made = socket.socket(fileno=descriptor)
            if made.getsockname() != path or not os.path.exists(path):
                made.close()
                made = None
        if made is None:
            made = _bind(path)
        self._set_mode(name, path)
        self._keeping.put(name, made.fileno())
        self.__dict__.setdefault("_sockets", {})[name] = made
        return made

    def _set_mode(self, name: str, path: str) -> None:
        group = peer.group_id(self.settings.group) if name == "control" else -1
        if group >= 0:
            os.chown(path, -1, group)
        os.chmod(path, 0o660 if group >= 0 else 0o600)


def _bind(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    old = os.umask(0o177)
    try:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        made.bind(path)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise AgentError(f"{path}: {reason(error)}", hint=records.advice(error)) from None
    finally:
        os.umask(old)
    return made


def _lock(directory: str) -> int:
    """Be the only agent. Raises InputError when another one does not end, AgentError."""
    try:
        descriptor = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise AgentError(f"{directory}/{LOCK}: {reason(error)}", hint=records.advice(error)) from None
    until, again = time.monotonic() + OTHER, 0.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(descriptor, f"{os.getpid():<{_PID_DIGITS}}\n".encode(), 0)
            return descriptor
        except BlockingIOError:
            now, holder = time.monotonic(), _holder(descriptor)
            if now > until:
                os.close(descriptor)
                hint = f"process {holder or '?'} holds {directory}/{LOCK}"
                raise InputError("an agent runs already", hint=hint) from None
            # Killed, and kept in the kernel by a container's file system.
            if now > again and release_undead(holder, directory):
                again = now + _UNDEAD
        time.sleep(0.02)


def _holder(lock: int) -> int:
    """The pid that the lock's holder wrote into it; 0: none is there yet."""
    text = os.pread(lock, _PID_DIGITS, 0).strip()
    return int(text) if text.isdigit() else 0


def _raise_descriptors(own: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.close(fcntl.fcntl(own, fcntl.F_DUPFD_CLOEXEC, min(most, _DESCRIPTORS) - 1))
