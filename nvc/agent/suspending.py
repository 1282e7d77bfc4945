"""The agent's part that takes a tenant's memory off its GPU and brings it back: ``share suspend`` and ``resume``.

CUDA's own checkpoint functions do it, called from outside (nvc.agent.checkpointer): all processes of the tenant are
locked, then each copies its GPU memory to the host and frees it. The guard sees the frees and, later, the allocations:
its ledger follows without a message, and what a process says of itself is not relied upon. A tenant that is suspended
is paused as well: what starts in it meanwhile waits for the GPU.

The tenant's record says that a change has begun before the first process is touched, and that it has ended after the
last one. An agent that finds a change without its end makes the tenant run again: all processes have what they had.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time

from nvc.agent import checkpointer
from nvc.agent.checkpointer import Checkpointers, Refused
from nvc.agent.part import Part
from nvc.agent.state import records
from nvc.agent.state.records import Suspension
from nvc.base.errors import AgentError, ContainerError, InputError, NvcError
from nvc.base.record import Record
from nvc.bindings.checkpoint import CHECKPOINTED, FAILED, FIRST_DRIVER, LOCKED, OUT_OF_MEMORY
from nvc.linux.process import is_ending, process_name, thread_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from nvc.agent.agent import Agent
    from nvc.agent.control import Handler
    from nvc.agent.peer import Peer
    from nvc.agent.tenant import Tenant
    from nvc.share.limits import Limits

#: The first branch that suspends a process with several GPUs.
SEVERAL_GPUS = 590
#: Seconds for work that has begun, unless the caller says another number, and at most.
LOCK_S, LOCK_MOST_S, WAIT_MOST_S = 10.0, 600.0, 3600.0
#: Seconds between two looks for free memory; in which the ledger follows the last FREE.
_FREE_LOOK_S, _LEDGER_S = 0.2, 2.0
#: Processes that begin to use the GPU while others are suspended are suspended as well, so often.
_ROUNDS = 3
_AGAIN = "see docs/user/suspend.md, When a container cannot be suspended"


class Suspended(Record):
    """memory: bytes for each GPU. processes: how many. threads: (pid, thread) of CUDA's in them."""

    memory: tuple[int, ...]
    processes: int
    seconds: float
    threads: frozenset[tuple[int, int]]


class Suspending(Part):
    """One change at a time for each tenant."""

    _agent: Agent

    def __init__(self) -> None:
        self._changing: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, agent: Agent) -> None:
        self._agent = agent
        for tenant in agent.tenants:
            if tenant.record.suspended is not None and tenant.record.suspended.is_changing:
                task = asyncio.ensure_future(self._recover(tenant))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def handlers(self) -> Mapping[str, Handler]:
        return {"suspend": self._suspend}

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check_change(self, tenant: Tenant, limits: Limits) -> None:
        suspended = tenant.record.suspended
        for gpu, held in zip(limits.gpus, suspended.memory if suspended is not None else (), strict=False):
            if gpu.memory and (gpu.most or gpu.memory) < held:
                raise ContainerError(
                    f"container {tenant.name} is suspended with {held >> 20} MiB of GPU {gpu.uuid}: less memory would "
                    "keep it from coming back",
                    hint=f"resume it first: nvc-py share resume {tenant.name[:12]}",
                )

    # Suspend.

    async def _suspend(self, request: dict[str, Any], caller: Peer) -> dict[str, Any]:
        """Reply: memory: bytes for each GPU, processes: how many, seconds."""
        tenant = self._agent.tenants.find(request["container"])
        timeout = request.get("timeout", LOCK_S)
        if not 0 < timeout <= LOCK_MOST_S:
            raise InputError(f"timeout is not a number of seconds up to {LOCK_MOST_S:g}")
        done = await self.suspend(tenant, timeout, pid=caller.pid)
        memory, processes, seconds = list(done.memory), done.processes, done.seconds
        return {"container": tenant.name, "memory": memory, "processes": processes, "seconds": seconds}

    async def suspend(self, tenant: Tenant, timeout: float, *, cause: str = "", **why: object) -> Suspended:
        """timeout: seconds for its work. cause: of ``Suspension``. why: for the log. Raises NvcError: it runs on."""
        if tenant.record.suspended is not None:
            raise ContainerError(f"container {tenant.name} is suspended already")
        if tenant.limits.paused:
            hint = f"nvc-py share resume {tenant.name[:12]}, then suspend it"
            raise ContainerError(f"container {tenant.name} is paused, and its work cannot end", hint=hint)
        _check_driver(tenant.limits)
        with self._alone(tenant):
            begun = time.monotonic()
            before = self._charged(tenant)
            async with Checkpointers(self._lock(tenant)) as calls:
                processes = _Tenant(self._agent, tenant, calls)
                await processes.states()  # where that cannot be, nothing is begun
                self._record(tenant, Suspension(before, round(time.time(), 3), is_changing=True))
                try:
                    count = await processes.suspend(timeout, sum(before))
                    threads = await processes.restore_threads() if cause == records.IDLE else frozenset()
                    await self._settle(tenant)
                    await self._agent.pause(tenant, paused=True)
                except asyncio.CancelledError:  # this agent ends: the next one waits for the call, and takes it back
                    raise
                except BaseException:
                    await asyncio.shield(self._undo(tenant))
                    raise
            left = self._charged(tenant)
            memory = tuple(max(0, was - now) for was, now in zip(before, left, strict=True))
            self._record(tenant, Suspension(memory, round(time.time(), 3), cause=cause))
            seconds = round(time.monotonic() - begun, 3)
        self._agent.journal.write(
            "suspend", container=tenant.name, bytes=sum(memory), processes=count, seconds=seconds, **why
        )
        return Suspended(memory, count, seconds, threads)

    async def _undo(self, tenant: Tenant) -> None:
        """What was begun is taken back. Raises nothing: what is left of it, the next ``resume`` takes back."""
        try:
            await self._run_again(tenant)
            self._record(tenant, None)
        except NvcError as error:
            self._agent.journal.write("warning", container=tenant.name, message=str(error), hint=error.hint)

    # Resume.

    async def resuming(self, tenant: Tenant, wait: float) -> None:
        suspended = tenant.record.suspended
        if suspended is None:
            return
        if not 0 <= wait <= WAIT_MOST_S:
            raise InputError(f"wait is not a number of seconds up to {WAIT_MOST_S:g}")
        with self._alone(tenant):
            begun = time.monotonic()
            while True:
                await self._room(tenant, suspended, begun + wait)
                self._record(tenant, suspended.replace(is_changing=True))
                try:
                    await self._run_again(tenant, suspended)
                    break
                except _NoRoom:  # the driver's numbers are some tenths of a second old
                    if time.monotonic() >= begun + wait:
                        need = self._missing(tenant, suspended)
                        need = need or f"{sum(suspended.memory) >> 20} MiB, which its GPU does not have now"
                        raise _lack(tenant, need) from None
                await asyncio.sleep(_FREE_LOOK_S)
            self._record(tenant, None)
            seconds = round(time.monotonic() - begun, 3)
        self._agent.journal.write("resume", container=tenant.name, bytes=sum(suspended.memory), seconds=seconds)

    async def _recover(self, tenant: Tenant) -> None:
        """The agent before this one ended in the middle. Raises nothing."""
        with contextlib.suppress(ContainerError), self._alone(tenant):
            try:
                await checkpointer.ended(self._lock(tenant), LOCK_MOST_S)
                await self._run_again(tenant)
                self._record(tenant, None)
                message = "a suspend or resume was interrupted: it runs"
                self._agent.journal.write("resume", container=tenant.name, message=message)
            except NvcError as error:
                hint = f"nvc-py share resume {tenant.name[:12]} tries it again"
                self._agent.journal.write("warning", container=tenant.name, message=str(error), hint=hint)

    async def _run_again(self, tenant: Tenant, suspended: Suspension | None = None) -> None:
        """Every process has its memory and goes on. suspended: go back to it where that cannot be. Raises NvcError."""
        await self._agent.pause(tenant, paused=False)
        async with Checkpointers(self._lock(tenant)) as calls:
            processes = _Tenant(self._agent, tenant, calls)
            size = sum(suspended.memory if suspended is not None else self._charged(tenant))
            try:
                await processes.restore(size)
            except NvcError:
                if suspended is not None:
                    await processes.back(size)
                    await self._agent.pause(tenant, paused=True)
                    self._record(tenant, suspended.replace(is_changing=False))
                raise
            await processes.unlock()

    async def _room(self, tenant: Tenant, suspended: Suspension, until: float) -> None:
        """Wait for room on its GPUs, as far as the driver's numbers say. Raises ContainerError where there is none."""
        while suspended.is_changing is False:
            missing = self._missing(tenant, suspended)
            for part in self._agent.parts if not missing else ():
                missing = missing or await part.returning(tenant, suspended.memory)
            if not missing:
                return
            if time.monotonic() >= until:
                raise _lack(tenant, missing)
            await asyncio.sleep(_FREE_LOOK_S)

    def _missing(self, tenant: Tenant, suspended: Suspension) -> str:
        """What it needs and does not find; "": it would fit."""
        usage = self._agent.supervisors.usage().gpus
        for gpu, size in zip(tenant.limits.gpus, suspended.memory, strict=False):
            free = usage[gpu.uuid].total - usage[gpu.uuid].used if gpu.uuid in usage else size
            if size > free:
                return f"{size >> 20} MiB of GPU {gpu.uuid}, of which {max(0, free) >> 20} MiB are free"
        return ""

    # Both.

    @contextlib.contextmanager
    def _alone(self, tenant: Tenant) -> Any:
        if tenant.number in self._changing:
            raise ContainerError(f"container {tenant.name} is being suspended or resumed")
        self._changing.add(tenant.number)
        try:
            yield
        finally:
            self._changing.discard(tenant.number)

    def _lock(self, tenant: Tenant) -> str:
        return f"{self._agent.options.directory}/checkpoint-{tenant.number}"

    def gone(self, tenant: Tenant) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._lock(tenant))

    def _record(self, tenant: Tenant, suspended: Suspension | None) -> None:
        """Raises AgentError; nothing for a tenant that has ended."""
        if self._agent.tenants.by_number(tenant.number) is not tenant:
            return
        record = tenant.record.replace(suspended=suspended)
        records.save(self._agent.options.directory, record)
        tenant.record = record

    def _charged(self, tenant: Tenant) -> tuple[int, ...]:
        """What it is charged for, not what was published a while ago. Raises ContainerError."""
        try:
            _publish(self._agent, tenant)
            status = self._agent.supervisors.status(tenant.number)
        except OSError as error:
            raise ContainerError(f"container {tenant.name} has ended") from error
        return tuple(gpu.memory for gpu in status.gpus[: len(tenant.limits.gpus)])

    async def _settle(self, tenant: Tenant) -> None:
        """Until the ledger has seen the frees. What a process keeps in spite of its checkpoint is no reason to wait."""
        before = self._charged(tenant)
        until = time.monotonic() + _LEDGER_S
        while time.monotonic() < until:
            await asyncio.sleep(0.05)
            now = self._charged(tenant)
            if now == before:
                return
            before = now


def _lack(tenant: Tenant, need: str) -> ContainerError:
    return ContainerError(
        f"container {tenant.name} needs {need}",
        hint="resume it with --wait SECONDS, or suspend another: nvc-py share ls",
    )


class _NoRoom(ContainerError):
    """Its GPU has no memory for it now."""


class _Tenant:
    """A tenant's processes during a change. Raises ContainerError, AgentError."""

    def __init__(self, agent: Agent, tenant: Tenant, calls: Checkpointers) -> None:
        self._agent, self._tenant, self._calls = agent, tenant, calls
        self._restored: list[int] = []

    async def suspend(self, timeout: float, size: int) -> int:
        """All of them; how many there are."""
        done: set[int] = set()
        for _ in range(_ROUNDS):
            states = {pid: state for pid, state in (await self.states()).items() if pid not in done}
            if not states:
                if done:
                    return len(done)
                problem = f"container {self._tenant.name}: none of its processes has memory that CUDA can move"
                raise ContainerError(problem, hint="pause keeps it off the GPU")
            for pid in states:
                await self._act(pid, "its work does not end", self._calls.lock, timeout)
            for pid in states:
                if await self._act(pid, "its memory cannot be moved", self._calls.checkpoint, size):
                    done.add(pid)
        raise ContainerError(
            f"container {self._tenant.name}: processes keep beginning to use the GPU", hint="suspend it a little later"
        )

    async def restore_threads(self) -> frozenset[tuple[int, int]]:
        """(pid, thread) by the numbers of this host. What a process claims concerns that process alone."""
        found = set[tuple[int, int]]()
        for pid, _ in self._pids():
            with contextlib.suppress(Refused, AgentError, OSError, LookupError):
                found.add((pid, thread_id(pid, await self._calls.restore_thread(pid))))
        return frozenset(found)

    async def restore(self, size: int) -> None:
        for pid, state in (await self.states()).items():
            if state == FAILED:
                raise ContainerError(
                    f"{self._name(pid)}: CUDA cannot bring its memory back", hint="end the container; see dmesg"
                )
            if state == CHECKPOINTED:
                await self._act(pid, "its memory does not come back", self._calls.restore, size)
                self._restored.append(pid)

    async def back(self, size: int) -> None:
        """What ``restore`` brought back goes again. Raises nothing."""
        for pid in self._restored:
            with contextlib.suppress(NvcError, Refused):
                await self._calls.checkpoint(pid, size)

    async def unlock(self) -> None:
        for pid, state in (await self.states()).items():
            if state == LOCKED:
                await self._act(pid, "it stays locked", self._calls.unlock)

    async def states(self) -> dict[int, int]:
        """Pid -> state, of processes that use CUDA. Raises ContainerError for one that holds memory without."""
        found: dict[int, int] = {}
        for pid, memory in self._pids():
            try:
                found[pid] = await self._calls.state(pid)
            except Refused as error:
                if any(memory) and not is_ending(pid):  # what it has goes with it
                    raise ContainerError(
                        f"{self._name(pid)} has {sum(memory) >> 20} MiB of GPU memory that CUDA cannot move: {error}",
                        hint=_AGAIN,
                    ) from None
        return found

    def _pids(self) -> Sequence[tuple[int, tuple[int, ...]]]:
        try:
            _publish(self._agent, self._tenant)
            return self._agent.supervisors.processes(self._tenant.number)
        except OSError as error:
            raise ContainerError(f"container {self._tenant.name} has ended") from error

    async def _act(self, pid: int, problem: str, call: Any, *arguments: float) -> bool:
        """False for a process that has ended: others were waited for, and its number may be another container's."""
        if pid not in dict(self._pids()):
            return False
        try:
            await call(pid, *arguments)
        except Refused as error:
            kind = _NoRoom if error.value == OUT_OF_MEMORY else ContainerError
            raise kind(f"{self._name(pid)}: {problem}: {error}", hint=_AGAIN) from None
        return True

    def _name(self, pid: int) -> str:
        return f"container {self._tenant.name}: process {pid} ({process_name(pid) or 'ended'})"


def _publish(agent: Agent, tenant: Tenant) -> None:
    """Counters of now, unless the driver makes a call for the tenant. Raises OSError."""
    try:
        agent.supervisors.refresh(tenant.number)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise


def _check_driver(limits: Limits) -> None:
    """Raises ContainerError where the driver cannot do it."""
    release = int(limits.driver.partition(".")[0]) if limits.driver.partition(".")[0].isdigit() else 0
    if release < FIRST_DRIVER:
        raise ContainerError(
            f"driver {limits.driver or 'of an unknown version'} cannot suspend a process",
            hint=f"driver {FIRST_DRIVER} and newer can",
        )
    if len(limits.gpus) > 1 and release < SEVERAL_GPUS:
        raise ContainerError(
            f"driver {limits.driver} cannot suspend a process with {len(limits.gpus)} GPUs",
            hint=f"driver {SEVERAL_GPUS} and newer can",
        )
