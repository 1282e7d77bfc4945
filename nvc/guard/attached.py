"""Processes that are scheduled from outside: what was found of them, and where that is written down.

Every change can be taken back, also by another process: DIRECTORY has one file a process, named by pid
and start time.
"""

from __future__ import annotations

import os

from nvc.base.record import Record
from nvc.share import store
from rpc.codec import dumps, loads

DIRECTORY = "/run/nvc/attach"
_SIZE_LIMIT = 256 << 10


class AttachedGroup(Record):
    """A compute group. slice: microseconds that it had when it was found."""

    descriptor: int
    client: int
    group: int
    slice: int


class AttachedChannel(Record):
    """A channel by the handles of its process."""

    descriptor: int
    client: int
    subdevice: int
    channel: int


class AttachedProcess(Record):
    """A process that can be scheduled.

    pid: the host's. start_time: of /proc/PID/stat. device, inode: of the control node (nvc.share.limits.LimitsNode).
    source: "region" or "probes". probes: how many clients were tried in vain. uuid: of its one GPU, "" where it has
    several: then caps cannot be kept. capped: its channels may be stopped.
    """

    pid: int
    start_time: int
    device: int
    inode: int
    source: str
    uuid: str
    groups: tuple[AttachedGroup, ...]
    channels: tuple[AttachedChannel, ...]
    probes: int = 0
    capped: bool = False


def save(found: AttachedProcess, directory: str = DIRECTORY) -> AttachedProcess:
    """Write it down, with the slices that it had when it was attached first. Raises OSError."""
    os.makedirs(directory, 0o700, exist_ok=True)
    before = load(found.pid, directory)
    if before is not None:
        old = {(group.client, group.group): group for group in before.groups}
        groups = tuple(old.get((group.client, group.group), group) for group in found.groups)
        found = found.replace(groups=groups, capped=found.capped or before.capped)
    path = _path(directory, found.pid, found.start_time)
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(dumps(found.as_data()))
        os.rename(f"{path}.new", path)
    except BaseException:
        os.unlink(f"{path}.new")
        raise
    return found


def load_all(directory: str = DIRECTORY) -> list[AttachedProcess]:
    """Those that live; what is left of others is removed. Raises OSError."""
    found = []
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        pid, _, started = name.removesuffix(".json").partition("-")
        if not (pid.isdigit() and started.isdigit()):
            continue
        process = load(int(pid), directory)
        if process is not None and process.start_time == int(started):
            found.append(process)
        else:
            remove(int(pid), int(started), directory)
    return found


def load(pid: int, directory: str = DIRECTORY) -> AttachedProcess | None:
    """What was written down of this process; None when that is nothing, or cannot be read. Raises OSError."""
    try:
        with open(_path(directory, pid, store.start_time(pid)), "rb") as file:
            return AttachedProcess.from_data(loads(file.read(_SIZE_LIMIT), limit=_SIZE_LIMIT))
    except (FileNotFoundError, ValueError):
        return None


def remove(pid: int, started: int, directory: str = DIRECTORY) -> None:
    """Forget it. Raises OSError."""
    try:
        os.unlink(_path(directory, pid, started))
    except FileNotFoundError:
        pass


def _path(directory: str, pid: int, started: int) -> str:
    return f"{directory}/{pid}-{started}.json"
