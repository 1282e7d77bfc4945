"""Processes that are not guarded, scheduled together with tenants that are: verbs attach and detach.

The scheduler sees one thing: tenants by number. Numbers with the bit ATTACHED are processes that were attached, each
container's or each process's own, with a supervisor that keeps their phases; their slices are written here.
"""

from __future__ import annotations

import asyncio
import threading
import time

from nvc.agent.status import StatusTenant, TenantGpu, TenantProcess
from nvc.base.errors import ContainerError, InputError, NvcError, reason
from nvc.base.record import DecodeError, Record
from nvc.guard import attach, attached
from nvc.guard.attached import AttachedProcess
from nvc.guard.pages import GpuStatus, TenantStatus
from nvc.guard.supervisors import ATTACHED
from nvc.linux import syscalls
from nvc.linux.fd import Fd
from nvc.share import bounded, limits, store
from nvc.share.limits import Limits
from nvc.share.model import CAP_WHOLE, PROBES, ResolvedGpu
from nvc.share.spec import parse_gpu
from rpc.codec import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from nvc.agent.scheduler import Scheduler
    from nvc.guard.supervisors import Supervisors


class AttachedTenant(Record):
    """What belongs together: a container's processes, or one. name: the container's, or "pid P"."""

    number: int
    name: str
    since: float
    gpu: ResolvedGpu
    processes: tuple[AttachedProcess, ...]


#: Of a process: its number of a descriptor -> our copy.
Held = dict[int, Fd]
#: Seconds that a process is looked at for, and bytes that are said of it.
_SECONDS, _LIMIT = 10.0, 1 << 20


class Attachments:
    """Supervisors as the scheduler wants them, with attached processes beside guarded tenants. For one thread."""

    def __init__(
        self,
        supervisors: Supervisors,
        devices: str = "/dev",
        shares: str = store.DIRECTORY,
        directory: str = attached.DIRECTORY,
    ) -> None:
        """devices: where the driver's nodes are. shares: the store of the shim's regions. directory: for records."""
        self._supervisors = supervisors
        self._published = supervisors.publications.reader()
        self._devices, self._shares, self._directory = devices, shares, directory
        self._tenants: dict[int, AttachedTenant] = {}
        self._slices: dict[int, int] = {}
        #: By pid. A copy keeps the process's memory on the GPU: those of one that ended are closed at the next look.
        self._held: dict[int, Held] = {}
        self._next = ATTACHED

    # For the scheduler.

    def changed(self) -> set[int]:
        """Those that are to be read again; attached processes tell nothing of their groups."""
        return self._published.take() | self._tenants.keys()

    def status(self, tenant: int) -> TenantStatus:
        """Raises OSError."""
        if not tenant & ATTACHED:
            return self._supervisors.status(tenant)
        alive, frozen, frozen_ns = self._supervisors.attached(tenant)
        known = self._tenants[tenant]
        groups = sum(len(process.groups) for process in known.processes if attach.is_alive(process))
        gpu = GpuStatus(0, 0, 0, groups, self._slices.get(tenant, 0), frozen, frozen_ns)
        return TenantStatus((gpu,), 0, 0, 0, (), 0, alive, 0)

    def slice(self, tenant: int, gpu: int, microseconds: int) -> None:
        """0: what they had. Raises OSError."""
        if not tenant & ATTACHED:
            self._supervisors.slice(tenant, gpu, microseconds)
            return
        self._slices[tenant] = microseconds
        for process in self._tenants[tenant].processes:
            try:
                if process.pid in self._held:
                    attach.reweigh(process, microseconds, self._held[process.pid])
            except (OSError, ContainerError) as error:
                if attach.is_alive(process):
                    raise OSError(f"process {process.pid}: {error}") from error

    def phase(self, tenant: int, gpu: int, period: int, since: int, until: int) -> None:
        """Raises OSError."""
        self._supervisors.phase(tenant, gpu, period, since, until)

    # For the agent.

    async def attach(
        self,
        scheduler: Scheduler,
        pid: int | None,
        container: str | None,
        weight: int,
        cap: str,
        probes: int = PROBES,
        guarded: Collection[int] = (),
    ) -> list[dict[str, Any]]:
        """Find and schedule; what the command prints of each process. guarded: processes that must not be attached.

        Raises NvcError, OSError; then nothing is attached by this name.
        """
        begin = time.monotonic()
        percent = parse_gpu(f"cap={cap}").cap if cap else CAP_WHOLE
        found = await asyncio.to_thread(self._find, pid, container, probes, guarded)
        uuids = {process.uuid for process in found}
        if len(uuids) != 1 or "" in uuids:
            raise ContainerError(
                "the processes compute on several GPUs, or on one that cannot be told",
                hint="attach them by --pid, one after the other; or by --weight without the agent",
            )
        name = container or f"pid {pid}"
        (uuid,) = uuids
        before = next((one.number for one in self._tenants.values() if one.name == name), -1)
        scheduler.check(Limits((ResolvedGpu(uuid, -1, cap=percent),)), before)
        for old in [one.number for one in self._tenants.values() if one.name == name]:
            self._forget(scheduler, old, restore=False)
        self._next += 1
        number = self._next
        kept = tuple(attached.save(process.replace(capped=percent < CAP_WHOLE), self._directory) for process in found)
        gpu = ResolvedGpu(uuid, -1, cap=percent, weight=weight)
        self._tenants[number] = AttachedTenant(number, name, round(time.time(), 3), gpu, kept)
        try:
            first = kept[0].pid, kept[0].start_time
            self._supervisors.add(number, limits.encode(Limits((gpu,))), 1, first=first)
            for process in kept:
                await self._add(number, process)
        except BaseException:
            self._forget(scheduler, number, restore=True)
            raise
        scheduler.tenant(number, Limits((gpu,)))
        await scheduler.renew()
        took = round((time.monotonic() - begin) * 1000, 1)
        return [
            {
                "pid": process.pid,
                "groups": len(process.groups),
                "slice_us": self._slices.get(number, 0) or process.groups[0].slice,
                "source": process.source,
                "probes": process.probes,
                "milliseconds": took,
            }
            for process in kept
        ]

    def detach(self, scheduler: Scheduler, pid: int | None, container: str | None) -> list[int]:
        """Undo an attachment, also one of an earlier command; the processes' pids. Raises NvcError, OSError."""
        name = container or f"pid {pid}"
        found = [
            one
            for one in self._tenants.values()
            if one.name == name or (pid is not None and pid in [process.pid for process in one.processes])
        ]
        if not found:
            left = [each for each in self._pids(pid, container) if self._restore(each)]
            if not left:
                raise InputError(f"nothing is attached as {name}", hint="nvc-py top shows what is")
            return left
        pids = [process.pid for one in found for process in one.processes]
        for one in found:
            self._forget(scheduler, one.number, restore=True)
        return pids

    def look(self, scheduler: Scheduler) -> None:
        """Forget those that have ended."""
        for number, known in list(self._tenants.items()):
            ended = [process for process in known.processes if not attach.is_alive(process)]
            for process in ended:
                self._let_go(process.pid)
            if len(ended) == len(known.processes):
                self._forget(scheduler, number, restore=False)

    def report(self, scheduler: Scheduler) -> list[StatusTenant]:
        """For the agent's status."""
        return [self._report(scheduler, known) for known in self._tenants.values()]

    def close(self, scheduler: Scheduler) -> None:
        """The agent ends: nothing stays as the scheduler made it."""
        for number in list(self._tenants):
            self._forget(scheduler, number, restore=True)

    def _pids(self, pid: int | None, container: str | None) -> tuple[int, ...]:
        return (pid,) if pid is not None else attach.of_container(container or "", self._shares)

    def _find(
        self, pid: int | None, container: str | None, probes: int, guarded: Collection[int]
    ) -> list[AttachedProcess]:
        """In a thread; and each process by a child, for its descriptors are copied. Raises NvcError, OSError."""
        pids = self._pids(pid, container)
        for each in pids:
            if each in guarded:
                raise InputError(f"process {each} is of a container with a share", hint="nvc-py share set changes that")
        found, problems = [], []
        for each in pids:
            try:
                found.append(self._look_at(each, probes))
            except NvcError as error:
                problems.append(error)
        if not found:
            raise problems[0]
        return found

    def _look_at(self, pid: int, probes: int) -> AttachedProcess:
        def work() -> str:
            try:
                return dumps(attach.find(pid, self._devices, self._shares, probes=probes).as_data()).decode()
            except NvcError as error:
                return dumps({"error": error.message, "hint": error.hint}).decode()
            except OSError as error:
                return dumps({"error": f"process {pid}: {reason(error)}", "hint": ""}).decode()

        try:
            said = loads(bounded.run(work, _SECONDS, _LIMIT).encode())
            if not isinstance(said, dict):
                raise ValueError("it is no object")
            if "error" in said:
                raise ContainerError(str(said["error"]), hint=str(said["hint"]))
            return AttachedProcess.from_data(said)
        except TimeoutError:
            raise ContainerError(
                f"process {pid} cannot be looked at within {_SECONDS:g} s", hint="it blocks its readers: end it"
            ) from None
        except (DecodeError, ValueError) as error:
            raise ContainerError(f"process {pid} cannot be looked at: {error}") from None

    async def _add(self, number: int, process: AttachedProcess) -> None:
        self._let_go(process.pid)
        held = self._held[process.pid] = await asyncio.to_thread(self._copies, process)
        channels = sorted(
            (held[one.descriptor].fileno(), one.client, one.subdevice, one.channel)
            for one in process.channels
            if one.subdevice and one.descriptor in held
        )
        with syscalls.pidfd_open(process.pid) as pidfd:
            if not attach.is_alive(process):
                raise ContainerError(f"process {process.pid} ended")
            node = process.device, process.inode
            self._supervisors.attach(number, pidfd.fileno(), node, [(*one[1:], one[0]) for one in channels])

    def _copies(self, process: AttachedProcess) -> Held:
        return attach.copies(process)

    def _let_go(self, pid: int) -> None:
        """Close what is held of a process, in a thread: the driver may have much to give back."""
        held = self._held.pop(pid, None)
        if held:
            threading.Thread(target=_close, args=(held,), daemon=True).start()

    def _restore(self, pid: int) -> bool:
        """Take back what another agent did to a process; False: nothing. Raises ContainerError, OSError."""

        def work() -> str:
            try:
                return "restored" if attach.restore(pid, self._directory) else ""
            except (OSError, ContainerError) as error:
                return f"! {error}"

        said = bounded.run(work, _SECONDS)
        if said.startswith("!"):
            raise ContainerError(said[2:])
        return bool(said)

    def _forget(self, scheduler: Scheduler, number: int, *, restore: bool) -> None:
        known = self._tenants[number]
        scheduler.forget(number)
        try:
            self._supervisors.remove(number)
        except OSError:
            pass  # it was never added
        for process in known.processes:
            if restore and process.pid in self._held:
                try:
                    attach.reweigh(process, 0, self._held[process.pid])
                except (OSError, ContainerError):
                    pass  # it ended
            self._let_go(process.pid)
            if restore or not attach.is_alive(process):
                try:
                    attached.remove(process.pid, process.start_time, self._directory)
                except OSError:
                    pass  # /run is read-only; the next agent removes files without a process
        self._tenants.pop(number)
        self._slices.pop(number, None)

    def _report(self, scheduler: Scheduler, known: AttachedTenant) -> StatusTenant:
        try:
            status = self.status(known.number)
        except OSError:
            status = TenantStatus((GpuStatus(0, 0, 0, 0, 0, False, 0),), 0, 0, 0, (), 0, 0, 0)
        used, share = status.gpus[0], scheduler.share(known.number, 0)
        gpu = TenantGpu(
            uuid=known.gpu.uuid,
            limit=0,
            memory=0,
            managed=0,
            driver_usage=0,
            cap=0 if known.gpu.cap >= CAP_WHOLE else known.gpu.cap,
            weight=known.gpu.weight,
            priority=known.gpu.priority,
            target_ratio=share.target,
            achieved_ratio=share.achieved,
            groups=used.groups,
            slice_us=used.slice,
            frozen=used.frozen,
            frozen_ns=used.frozen_ns,
            cap_in_force=share.cap_in_force,
        )
        processes = tuple(TenantProcess(process.pid, (0,)) for process in known.processes)
        pid = known.processes[0].pid if len(known.processes) == 1 else 0
        return StatusTenant(
            known.number, known.name, pid, "attach", known.since, (gpu,), processes, {}, 0, 0, paused=False
        )


def _close(held: Held) -> None:
    for one in held.values():
        one.close()
