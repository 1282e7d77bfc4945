"""Channel groups of processes that run already, found and scheduled from outside.

Where the handles come from: the shim's region, which has them all; else they are tried. libcuda numbers its objects
from OBJECTS on, and the driver its clients one after the other, so a process's clients lie a little below the one that
the driver gives us now. Every client that is tried in vain prints a line in the kernel's log: so as few as possible.

Descriptors of the process are looked at, copied (pidfd_getfd), looked at again, and used without the rights that the
process has not. Those that another container opened and passed to it are refused: its groups would be scheduled. The
agent has copies as long as it schedules the process, made by a child (``copies``).
"""

from __future__ import annotations

import os
import stat
import struct

from nvc.base.errors import ContainerError, DeviceError, InputError, reason
from nvc.bindings import rmcontrol
from nvc.guard import attached
from nvc.guard.attached import AttachedChannel, AttachedGroup, AttachedProcess
from nvc.linux import syscalls
from nvc.linux.fd import Fd
from nvc.share import bounded, processes, region, store
from nvc.share import limits as limits_file
from nvc.share.model import PROBES

TYPE_CHECKING = False
if TYPE_CHECKING:
    # ``signal`` is ``_signal`` behind three enums.
    import signal as _signal
    from collections.abc import Callable, Iterator, Mapping
else:
    import _signal

#: Where handles begin: clients as the driver numbers them, objects as libcuda does (both seen on drivers 535 to 595).
CLIENTS, CLIENTS_MASK, OBJECTS = 0xC1D00000, 0xFFFFF, 0x5C000000
#: How many are tried: neighbours of a client that was found, objects of a client.
NEIGHBOURS, OBJECTS_TRIED = 8, 0x400
#: Seconds for copies of a process's descriptors.
COPIES_SECONDS = 2.0
#: The slice of copy groups, which libcuda leaves as the driver made it; compute groups get 2048.
COPY_SLICE = 1024
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
_INVALID_CLIENT = (0x23, 0x1B, 0x1C)
#: INVALID_OBJECT_HANDLE, OBJECT_NOT_FOUND (clientGetResourceRef): what another object answers is neither.
_NO_OBJECT = (0x33, 0x57)
_GET_GID, _GET_TOKEN = 0x2080014A, 0xC36F0108


def find(pid: int, devices: str = "/dev", shares: str = store.DIRECTORY, *, probes: int = PROBES) -> AttachedProcess:
    """The process's compute groups. devices: where the driver's nodes are. shares: the store of the shim's regions.

    Raises ContainerError when there is nothing to schedule, DeviceError, OSError.
    """
    started = store.start_time(pid)
    if started < 0:
        raise ContainerError(f"no process {pid}", hint="a pid as this host counts: nvidia-smi shows them")
    node = _control_node(devices)
    with syscalls.pidfd_open(pid) as process:
        if store.start_time(pid) != started:
            raise ContainerError(f"process {pid} ended")
        found = _in_region(pid, started, node, shares, process) or _probed(pid, started, node, devices, process, probes)
    if not found.groups:
        raise ContainerError(
            f"process {pid} has no compute groups that can be found ({found.probes} clients tried)",
            hint="it computes nothing yet, or started long ago: try more with --probes",
        )
    return found


def of_container(word: str, shares: str = store.DIRECTORY, proc: str = "/proc") -> tuple[int, ...]:
    """Host pids of the processes of a container: of the shim's store, else by the id in their cgroup's name.

    Raises InputError, ContainerError.
    """
    import re  # takes long, and few ask

    wanted = re.compile(rf"(?<![0-9A-Za-z]){re.escape(word)}")
    if len(word) < 12 or not _HEXADECIMAL.issuperset(word):
        try:
            with store.find(word, shares) as entry:
                wanted = re.compile(rf"(?<![0-9A-Za-z]){re.escape(entry.name)}(?![0-9A-Za-z])")
        except InputError as error:
            if isinstance(error, store.AmbiguousContainer) or len(word) < 12 or not word.isalnum():
                raise
    found = []
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        try:
            with open(f"{proc}/{name}/cgroup", encoding="utf-8", errors="replace") as file:
                if wanted.search(file.read()):
                    found.append(int(name))
        except OSError:
            continue
    if not found:
        raise InputError(f"no process of a container {word!r}", hint="say --pid, or the container's whole id")
    return tuple(sorted(found))


def copies(process: AttachedProcess, seconds: float = COPIES_SECONDS) -> dict[int, Fd]:
    """Its descriptors that groups and channels belong to -> copies, made by a child: one that hangs is not waited for.

    A process that exchanges a descriptor while it is looked at gives the child a file that may not close in time.
    Raises ContainerError, OSError (TimeoutError).
    """
    numbers = {one.descriptor for one in process.groups} | {one.descriptor for one in process.channels}

    def work() -> Iterator[tuple[int, Fd]]:
        with syscalls.pidfd_open(process.pid) as pinned:
            if not is_alive(process):
                raise ContainerError(f"process {process.pid} ended")
            for number in sorted(numbers):
                with _copy(pinned, process.pid, number, (process.device, process.inode)) as copy:
                    yield number, copy

    return bounded.files(work, seconds)


def reweigh(process: AttachedProcess, microseconds: int, held: Mapping[int, Fd] | None = None) -> None:
    """Give each compute group this timeslice; 0: the one that it had. held: of ``copies``; None: made for it.

    Raises ContainerError, OSError.
    """

    def act(number: int, control: Fd) -> None:
        for group in process.groups:
            if group.descriptor == number:
                wanted = microseconds or group.slice
                _must(process, rmcontrol.set_timeslice(control, group.client, group.group, wanted))

    _on_copies(process, {group.descriptor for group in process.groups}, act, held)


def thaw(process: AttachedProcess) -> None:
    """Start channels that were left stopped: the driver counts stops. Raises ContainerError, OSError."""

    def act(number: int, control: Fd) -> None:
        wanted: dict[tuple[int, int], list[int]] = {}
        for channel in process.channels:
            if channel.descriptor == number and channel.subdevice:
                wanted.setdefault((channel.client, channel.subdevice), []).append(channel.channel)
        for (client, subdevice), handles in wanted.items():
            _must(process, rmcontrol.disable_channels(control, client, subdevice, handles, disabled=False))

    _on_copies(process, {channel.descriptor for channel in process.channels}, act)


def restore(pid: int, directory: str = attached.DIRECTORY) -> bool:
    """Give a process the timeslices that it had, and forget it; False: it is not attached.

    Raises ContainerError, OSError.
    """
    process = attached.load(pid, directory)
    if process is None:
        return False
    reweigh(process, 0)
    attached.remove(process.pid, process.start_time, directory)
    return True


def left(directory: str = attached.DIRECTORY) -> list[AttachedProcess]:
    """Processes whose channels an agent that has ended may have left stopped. Raises OSError."""
    return [process for process in attached.load_all(directory) if process.capped]


def is_alive(process: AttachedProcess) -> bool:
    """Whether it is still that process."""
    return store.start_time(process.pid) == process.start_time


def _must(process: AttachedProcess, status: int) -> None:
    if status:
        raise ContainerError(f"process {process.pid}: the driver answered status {status:#x}")


def _on_copies(
    process: AttachedProcess,
    descriptors: set[int],
    act: Callable[[int, Fd], None],
    held: Mapping[int, Fd] | None = None,
) -> None:
    """Call ``act`` with a copy of each, without the rights that the process has not."""
    if held is not None:
        for number in sorted(descriptors):
            if number not in held:
                raise ContainerError(f"descriptor {number} of process {process.pid} is not held")
            with rmcontrol.Owner():
                act(number, held[number])
        return
    with syscalls.pidfd_open(process.pid) as pinned:
        if not is_alive(process):
            raise ContainerError(f"process {process.pid} ended")
        for number in sorted(descriptors):
            node = process.device, process.inode
            with _copy(pinned, process.pid, number, node) as control, rmcontrol.Owner():
                act(number, control)


def _control_node(devices: str) -> tuple[int, int]:
    """(st_rdev, 0), or on the simulated machine (st_dev, st_ino)."""
    try:
        found = os.stat(f"{devices}/nvidiactl")
    except OSError as error:
        raise DeviceError(f"{devices}/nvidiactl: {reason(error)}", hint="is there a GPU, and its driver?") from None
    return (found.st_rdev, 0) if stat.S_ISCHR(found.st_mode) else (found.st_dev, found.st_ino)


def _copy(process: Fd, pid: int, number: int, node: tuple[int, int]) -> Fd:
    """A copy of a descriptor that is the control node, before and after, and was opened in the process's mounts.

    Raises ContainerError, OSError.
    """
    what = f"descriptor {number} of process {pid}"
    if not _is_node(f"/proc/{pid}/fd/{number}", node):
        raise ContainerError(f"{what} is not the driver's control node")
    copy = syscalls.pidfd_getfd(process, number)
    try:
        if not _is_node(copy, node):
            raise ContainerError(f"{what} is not the driver's control node")
        if not _has_mount(pid, _mount(copy)):
            raise ContainerError(f"{what} was opened in another container")
        # What was read was about this process.
        _signal.pidfd_send_signal(process.fileno(), 0)
    except BaseException:
        copy.close()
        raise
    return copy


def _is_node(place: str | Fd, node: tuple[int, int]) -> bool:
    """Raises OSError."""
    kind, file, device = syscalls.statx_cached(place)
    return file == node if node[1] else stat.S_ISCHR(kind) and device == node[0]


def _mount(file: Fd) -> bytes:
    """The number of the mount by which the file was opened: it stays, wherever the file is passed. Raises OSError."""
    with open(f"/proc/self/fdinfo/{file.fileno()}", "rb") as rows:
        return next((row.split()[1] for row in rows if row.startswith(b"mnt_id:")), b"")


def _has_mount(pid: int, mount: bytes) -> bool:
    """Whether it is in the process's mount namespace: containers have none in common. Raises OSError."""
    with open(f"/proc/{pid}/mountinfo", "rb") as rows:
        return any(row.split(b" ", 1)[0] == mount for row in rows)


# From the shim's region.


def _in_region(pid: int, started: int, node: tuple[int, int], shares: str, process: Fd) -> AttachedProcess | None:
    for entry in store.each(shares):
        with entry:
            try:
                gpus = entry.limits().gpus
                descriptor = entry.open_region()
                try:
                    slots = [slot for slot in region.read(descriptor, len(gpus)).slots if slot.start_time == started]
                    pids = processes.host_pids(descriptor, slots)
                finally:
                    os.close(descriptor)
            except (OSError, ValueError):
                continue
            slot = next((slot for slot in slots if pids.get(slot.index) == pid and slot.channels), None)
            if slot is None:
                continue
            places = {channel.gpu for channel in slot.channels}
            channels = tuple(
                AttachedChannel(one.descriptor, one.client, one.subdevice, one.channel) for one in slot.channels
            )
            groups = []
            wanted = dict.fromkeys((one.descriptor, one.client, one.group) for one in slot.channels)
            for number, client, group in wanted:
                with _copy(process, pid, number, node) as control, rmcontrol.Owner():
                    found = rmcontrol.get_timeslice(control, client, group)
                if found is not None:
                    groups.append(AttachedGroup(number, client, group, found))
            place = places.pop() if len(places) == 1 else -1
            uuid = gpus[place].uuid if 0 <= place < len(gpus) else ""
            return AttachedProcess(pid, started, *node, "region", uuid, tuple(groups), channels)
    return None


# By trying.


def _probed(pid: int, started: int, node: tuple[int, int], devices: str, process: Fd, probes: int) -> AttachedProcess:
    newest = _newest_client(devices)
    groups: list[AttachedGroup] = []
    channels: list[AttachedChannel] = []
    uuids: set[str] = set()
    left, tried = probes, 0
    near: list[int] = []
    for number in _control_descriptors(pid, node):
        try:
            copy = _copy(process, pid, number, node)
        except (OSError, ContainerError):
            continue
        with copy as control, rmcontrol.Owner():
            # Beside a client of the process that is known, else from the newest on, at most once for a process.
            order = near or [CLIENTS | (newest - back) & CLIENTS_MASK for back in range(1, left + 1)]
            for client in order:
                status = rmcontrol.control(control, client, client, rmcontrol.GET_TIMESLICE, bytearray(8))
                if status in _INVALID_CLIENT:
                    tried += 1
                    continue
                near = [handle for handle in _around(client) if handle != client]
                found = _objects(control, number, client)
                groups += found[0]
                channels += found[1]
                uuids |= found[2]
                if found[0]:
                    break
            left = max(0, probes - tried)
    uuid = uuids.pop() if len(uuids) == 1 else ""
    return AttachedProcess(pid, started, *node, "probes", uuid, tuple(groups), tuple(channels), tried)


def _around(client: int) -> list[int]:
    steps = [step for back in range(1, NEIGHBOURS + 1) for step in (back, -back)]
    return [CLIENTS | (client + step) & CLIENTS_MASK for step in steps]


def _newest_client(devices: str) -> int:
    """The number that the driver gives a client now. Raises DeviceError."""
    try:
        with Fd(os.open(f"{devices}/nvidiactl", os.O_RDWR | os.O_CLOEXEC), "nvidiactl") as control:
            return rmcontrol.new_client(control) & CLIENTS_MASK
    except OSError as error:
        raise DeviceError(f"{devices}/nvidiactl: {reason(error)}") from None


def _control_descriptors(pid: int, node: tuple[int, int]) -> list[int]:
    found = []
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError as error:
        raise ContainerError(f"process {pid}: {reason(error)}", hint="attach needs root") from None
    for name in names:
        try:
            if _is_node(f"/proc/{pid}/fd/{name}", node):
                found.append(int(name))
        except OSError:
            continue
    return sorted(found)


def _objects(control: Fd, number: int, client: int) -> tuple[list[AttachedGroup], list[AttachedChannel], set[str]]:
    """The client's compute groups, its channels, and its GPUs' UUIDs; channels have a subdevice if there is one GPU."""
    groups: list[AttachedGroup] = []
    handles: list[int] = []
    subdevices: dict[int, str] = {}
    for handle in range(OBJECTS, OBJECTS + OBJECTS_TRIED):
        status, microseconds = rmcontrol.ask_timeslice(control, client, handle)
        if status in _NO_OBJECT:
            continue  # most of them: they are asked nothing more
        if status == 0:
            if microseconds != COPY_SLICE:
                groups.append(AttachedGroup(number, client, handle, microseconds))
        elif rmcontrol.control(control, client, handle, _GET_TOKEN, bytearray(4)) == 0:
            handles.append(handle)
        elif not handles:  # subdevices are made before anything else
            parameters = bytearray(struct.pack("=III256x", 0, 2, 0))  # index, binary SHA-1, length, data
            if rmcontrol.control(control, client, handle, _GET_GID, parameters) == 0:
                subdevices[handle] = limits_file.uuid_text(bytes(parameters[12:28]))
    subdevice = next(iter(subdevices)) if len(subdevices) == 1 else 0
    channels = [AttachedChannel(number, client, subdevice, handle) for handle in handles]
    return (groups, channels if groups else [], set(subdevices.values()) if groups else set())
