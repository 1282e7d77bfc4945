"""Scheduling a container's processes from the host, while they run: freeze, thaw, timeslices.

The process's own descriptor of the control node is copied (pidfd_getfd), looked at, used without the rights that the
process has not, and closed at once: a copy that stayed would keep the process's memory on the GPU after its end.
"""

from __future__ import annotations

import os
import stat
import time

from nvc.base.errors import ContainerError
from nvc.base.record import Record
from nvc.bindings import rmcontrol
from nvc.linux import syscalls
from nvc.share import bounded, processes, region
from nvc.share.limits import NODE_CONTROL
from nvc.share.model import DEFAULT_WEIGHT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvc.linux.fd import Fd
    from nvc.share.limits import Limits, LimitsNode
    from nvc.share.model import ResolvedGpu
    from nvc.share.region import RegionChannel, RegionSlot
    from nvc.share.store import Entry

#: libcuda's own timeslice, which weight 10 stands for, and what the hardware is given at least and at most.
OWN_SLICE, SHORTEST, LONGEST = 2048, 500, 65000
#: How often channels are started: once for us, once for the process itself, and once more.
_STARTS = 3


#: Seconds for one process, and for all of a container: a call on the driver takes a millisecond or two.
_PROCESS_TIMEOUT_S, _CONTAINER_TIMEOUT_S = 2.0, 10.0


class Outcome(Record):
    """What came of it. done: host pids whose channels were reached. problems: a line for each that failed."""

    done: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()


def timeslice(gpu: ResolvedGpu, groups: int) -> int:
    """Microseconds for each of a container's ``groups`` on a GPU; 0 leaves libcuda's own (as native/shim/weight.c)."""
    if groups <= 1 and gpu.priority == "normal" and not gpu.weight:
        return 0
    slice_ = (gpu.weight or DEFAULT_WEIGHT) * OWN_SLICE
    slice_ = slice_ * 10 if gpu.priority == "high" else slice_ // 2 if gpu.priority == "low" else slice_
    return min(max(slice_ // (10 * max(groups, 1)), SHORTEST), LONGEST)


def freeze(entry: Entry, limits: Limits, *, frozen: bool) -> Outcome:
    """Stop the compute channels of every process that does not do it itself (it has no cap thread), or start all.

    The driver counts: channels that were stopped twice must be started twice, and starting what runs does nothing. A
    process may have stopped what was stopped from here, so everything is started, and more than once.
    Raises FormatError, OSError.
    """

    def act(control: Fd, channels: list[RegionChannel]) -> int:
        groups: dict[tuple[int, int], list[int]] = {}
        for channel in channels:
            groups.setdefault((channel.client, channel.subdevice), []).append(channel.channel)
        for _ in range(1 if frozen else _STARTS):
            for (client, subdevice), handles in groups.items():
                status = rmcontrol.disable_channels(control, client, subdevice, handles, disabled=frozen)
                if status:
                    return status
        return 0

    return _each(entry, limits, act, (lambda slot: not slot.threads_cap) if frozen else lambda slot: True)


def reweigh(entry: Entry, limits: Limits) -> Outcome:
    """Give every process the timeslices that the limits mean. Raises FormatError, OSError."""
    descriptor = entry.open_region()
    try:
        slots = region.read(descriptor, len(limits.gpus)).slots
    finally:
        os.close(descriptor)
    slices = [
        timeslice(gpu, sum(slot.groups[index] for slot in slots)) or OWN_SLICE for index, gpu in enumerate(limits.gpus)
    ]

    def act(control: Fd, channels: list[RegionChannel]) -> int:
        for client, group, gpu in dict.fromkeys((one.client, one.group, one.gpu) for one in channels):
            if 0 <= gpu < len(slices):
                status = rmcontrol.set_timeslice(control, client, group, slices[gpu])
                if status:
                    return status
        return 0

    return _each(entry, limits, act, lambda slot: True)


def _each(
    entry: Entry,
    limits: Limits,
    act: Callable[[Fd, list[RegionChannel]], int],
    wanted: Callable[[RegionSlot], bool],
) -> Outcome:
    done: list[int] = []
    problems: list[str] = []
    nodes = [node for node in limits.nodes if node.kind == NODE_CONTROL]
    descriptor = entry.open_region()
    try:
        slots = [slot for slot in region.read(descriptor, len(limits.gpus)).slots if slot.channels and wanted(slot)]
        pids = processes.host_pids(descriptor, slots)
    finally:
        os.close(descriptor)
    end = time.monotonic() + _CONTAINER_TIMEOUT_S
    for slot in slots:
        pid = pids.get(slot.index)
        if pid is None:
            problems.append(f"process {slot.pid} ({slot.name}) of the container was not found on this host")
            continue
        problem = _bounded(lambda pid=pid, slot=slot: _problem(pid, slot, nodes, act), end)  # type: ignore[misc]
        if problem:
            problems.append(f"process {pid} ({slot.name}): {problem}")
        else:
            done.append(pid)
    return Outcome(tuple(done), tuple(problems))


def _bounded(work: Callable[[], str], end: float) -> str:
    """``work`` in a child: closing a copied descriptor may take for ever."""
    try:
        return bounded.run(work, min(max(end - time.monotonic(), 0), _PROCESS_TIMEOUT_S))
    except OSError as error:
        return str(error)


def _problem(
    pid: int, slot: RegionSlot, nodes: Iterable[LimitsNode], act: Callable[[Fd, list[RegionChannel]], int]
) -> str:
    """What went wrong with a process, "" for nothing."""
    try:
        status = _on_process(pid, slot, nodes, act)
    except (OSError, ContainerError) as error:
        return str(error)
    return f"the driver answered status {status:#x}" if status else ""


def _on_process(
    pid: int, slot: RegionSlot, nodes: Iterable[LimitsNode], act: Callable[[Fd, list[RegionChannel]], int]
) -> int:
    with syscalls.pidfd_open(pid) as process:
        if not processes.is_still(pid, slot):
            return 0  # it ended, and its number has another owner
        by_descriptor: dict[int, list[RegionChannel]] = {}
        for channel in slot.channels:
            by_descriptor.setdefault(channel.descriptor, []).append(channel)
        for number, channels in by_descriptor.items():
            if number < 0:
                raise ContainerError("its channels came without a descriptor")
            _look(pid, number, nodes)
            with syscalls.pidfd_getfd(process, number) as control:
                _check(number, syscalls.statx_cached(control), nodes)
                status = _act(act, control, channels)
            if status:
                return status
    return 0


def _look(pid: int, number: int, nodes: Iterable[LimitsNode]) -> None:
    """Copy nothing that is something else: looked at without asking its file system. Raises ContainerError, OSError."""
    _check(number, syscalls.statx_cached(f"/proc/{pid}/fd/{number}"), nodes)


def _check(number: int, found: tuple[int, tuple[int, int], int], nodes: Iterable[LimitsNode]) -> None:
    kind, file, device = found
    if not any(
        file == (node.device, node.inode) if node.inode else stat.S_ISCHR(kind) and device == node.device
        for node in nodes
    ):
        raise ContainerError(f"its descriptor {number} is not the driver's control node")


def _act(act: Callable[[Fd, list[RegionChannel]], int], control: Fd, channels: list[RegionChannel]) -> int:
    return rmcontrol.as_the_owner(lambda: act(control, channels))
