"""Processes that are not guarded, scheduled together with tenants that are: verbs attach and detach.

The scheduler sees one thing: tenants by number. Numbers with the bit ATTACHED are processes that were attached, each
container's or each process's own; their slices are written here, their phases kept by the same thread of the guard's.
"""

from __future__ import annotations

import asyncio
import time

from nvc.agent.status import StatusTenant, TenantGpu, TenantProcess
from nvc.base.errors import ContainerError, InputError, NvcError
from nvc.base.record import Record
from nvc.bindings.guard import ATTACHED, GpuStatus, TenantStatus
from nvc.guard import attach, attached
from nvc.linux import syscalls
from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import CAP_WHOLE, PROBES, ResolvedGpu
from nvc.share.spec import parse_gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any

    from nvc.agent.scheduler import Scheduler
    from nvc.bindings.guard import Guard
    from nvc.guard.attached import AttachedProcess


class AttachedTenant(Record):
    """What belongs together: a container's processes, or one. name: the container's, or "pid P"."""

    number: int
    name: str
    since: float
    gpu: ResolvedGpu
    processes: tuple[AttachedProcess, ...]


class Attachments:
    """The guard as the scheduler wants it, with attached processes beside its tenants. For one thread."""

    def __init__(
        self, guard: Guard, devices: str = "/dev", shares: str = store.DIRECTORY, directory: str = attached.DIRECTORY
    ) -> None:
        """devices: where the driver's nodes are. shares: the store of the shim's regions. directory: for records."""
        self._guard = guard
        self._devices, self._shares, self._directory = devices, shares, directory
        self._tenants: dict[int, AttachedTenant] = {}
        self._slices: dict[int, int] = {}
        self._next = ATTACHED

    # For the scheduler.

    def status(self, tenant: int) -> TenantStatus:
        """Raises OSError."""
        if not tenant & ATTACHED:
            return self._guard.status(tenant)
        alive, frozen, frozen_ns = self._guard.attached(tenant)
        known = self._tenants[tenant]
        groups = sum(len(process.groups) for process in known.processes if attach.is_alive(process))
        gpu = GpuStatus(0, 0, 0, groups, self._slices.get(tenant, 0), frozen, frozen_ns)
        return TenantStatus((gpu,), 0, 0, 0, 0, (), 0, alive, 0)

    def slice(self, tenant: int, gpu: int, microseconds: int) -> None:
        """0: what they had. Raises OSError."""
        if not tenant & ATTACHED:
            self._guard.slice(tenant, gpu, microseconds)
            return
        self._slices[tenant] = microseconds
        for process in self._tenants[tenant].processes:
            try:
                attach.reweigh(process, microseconds)
            except (OSError, ContainerError) as error:
                if attach.is_alive(process):
                    raise OSError(f"process {process.pid}: {error}") from error

    def plan(self, uuid: bytes, period: int, phases: Sequence[tuple[int, int, int, int]], valid: int) -> None:
        """Raises OSError."""
        self._guard.plan(uuid, period, phases, valid)

    def renew(self, valid: int) -> bool:
        return self._guard.renew(valid)

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
        for old in [one.number for one in self._tenants.values() if one.name == name]:
            self._forget(scheduler, old, restore=False)
        self._next += 1
        number = self._next
        kept = tuple(attached.save(process.replace(capped=percent < CAP_WHOLE), self._directory) for process in found)
        gpu = ResolvedGpu(uuids.pop(), -1, cap=percent, weight=weight)
        self._tenants[number] = AttachedTenant(number, name, round(time.time(), 3), gpu, kept)
        try:
            for process in kept:
                self._add(number, process)
        except BaseException:
            self._forget(scheduler, number, restore=True)
            raise
        scheduler.tenant(number, Limits((gpu,)))
        scheduler.update()
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
            left = [each for each in self._pids(pid, container) if attach.restore(each, self._directory)]
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
            if not any(attach.is_alive(process) for process in known.processes):
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
        """In a thread: descriptors of others are copied. Raises NvcError, OSError."""
        pids = self._pids(pid, container)
        for each in pids:
            if each in guarded:
                raise InputError(f"process {each} is of a container with a share", hint="nvc-py share set changes that")
        found, problems = [], []
        for each in pids:
            try:
                found.append(attach.find(each, self._devices, self._shares, probes=probes))
            except NvcError as error:
                problems.append(error)
        if not found:
            raise problems[0]
        return found

    def _add(self, number: int, process: AttachedProcess) -> None:
        channels = sorted(
            (one.descriptor, one.client, one.subdevice, one.channel) for one in process.channels if one.subdevice
        )
        with syscalls.pidfd_open(process.pid) as pidfd:
            if not attach.is_alive(process):
                raise ContainerError(f"process {process.pid} ended")
            node = process.device, process.inode
            self._guard.attach(number, pidfd.fileno(), node, [(*one[1:], one[0]) for one in channels])

    def _forget(self, scheduler: Scheduler, number: int, *, restore: bool) -> None:
        known = self._tenants[number]
        scheduler.forget(number)
        scheduler.update()  # out of the plan before its channels are forgotten
        try:
            self._guard.detach(number)
        except OSError:
            pass  # it was never added
        for process in known.processes:
            if restore:
                try:
                    attach.reweigh(process, 0)
                except (OSError, ContainerError):
                    pass  # it ended
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
            status = TenantStatus((GpuStatus(0, 0, 0, 0, 0, False, 0),), 0, 0, 0, 0, (), 0, 0, 0)
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
