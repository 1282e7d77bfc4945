"""Ending a container whose monitor and supervisor are both gone: no process is left that answers its driver calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import time

from nvc.agent.state import records
from nvc.base.errors import ContainerError
from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.state.records import TenantRecord

#: What a monitor writes into its tenant's directory: a line a container, the number of an inode, and its path: of
#: cgroup.kill, or of a cgroup's directory where there is none (version 1).
CGROUP, KILL = "cgroup", "cgroup.kill"
_LIMIT = 1 << 20
#: Looks at a cgroup of version 1, whose processes may make others meanwhile.
_ROUNDS = 100
#: Seconds from the end of the last process with a filter until the kernel says so: before Linux 6.11 with its parent's
#: wait for it.
HANG_UP_SECONDS = 0.5


class EndedError(ContainerError):
    """What is known of a container is of a process that has ended."""


def end(directory: str, record: TenantRecord) -> bool:
    """SIGKILL to every process of the tenant's containers; False: none was left. Raises nothing."""
    ended = [end_cgroup(line) for line in cgroups(directory, record.number)]
    ended += [end_process(one.pid, one.start_time) for one in record.members]
    return any(ended)


def cgroups(directory: str, number: int) -> list[str]:
    """A line for each container of a tenant that has a cgroup of its own."""
    try:
        with open(f"{records.path(directory, number)}/{CGROUP}", encoding="utf-8") as file:
            return file.read(_LIMIT).splitlines()
    except (OSError, ValueError):
        return []


def end_cgroup(line: str) -> bool:
    """End what is in a container's own cgroup, if it is still the same cgroup; False: nothing is. Raises nothing."""
    inode, _, path = line.partition(" ")
    try:
        if os.stat(path).st_ino != int(inode):
            return False
        if os.path.basename(path) != KILL:
            return _end_listed(path)
        with open(f"{os.path.dirname(path)}/cgroup.events", "rb") as file:  # of cgroups below it, too
            if b"populated 1" not in file.read(256):
                return False
        with open(path, "wb") as file:
            file.write(b"1")
    except (OSError, ValueError):
        return False
    return True


def _end_listed(directory: str) -> bool:
    """SIGKILL to all in a cgroup and below it until there is none. Raises OSError."""
    for rounds in range(_ROUNDS):
        pids = []
        for place, _, _ in os.walk(directory):
            with open(f"{place}/cgroup.procs", "rb") as file:
                pids += [int(word) for word in file.read(_LIMIT).split()]
        if not pids:
            return rounds > 0
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    return True


def end_process(pid: int, started: int) -> bool:
    """SIGKILL to a process by its pid and start time; False: it has ended. Raises nothing."""
    if not pid:
        return False
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_time(pid) != started:
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def pin(pid: int) -> int:
    """A pidfd, which the caller closes; -1: there is no such process."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def has_ended(pid: int) -> bool:
    """Whether there is no process of this number, or one that its parent has not waited for."""
    pidfd = pin(pid)
    try:
        return pidfd < 0 or bool(_poll(pidfd))
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def end_filtered(pid: int, pinned: int) -> bool:
    """End a process that has a filter; False when there is none, or it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # a newline in the name is escaped there
            filtered = any(line.split() == [b"Seccomp:", b"2"] for line in file)
        if not filtered or _poll(pinned):  # a zombie has one
            return False
        signal.pidfd_send_signal(pinned, signal.SIGKILL)
        return True
    except OSError:
        return False


def has_no_process(listener: int) -> bool:
    """Whether no process is left that has the listener's filter: it does not come off, and each child has it, too.

    That the first process has ended does not say so.
    """
    return bool(_poll(listener) & select.POLLHUP)


async def has_hung_up(listener: int) -> bool:
    """The same within HANG_UP_SECONDS."""
    until = time.monotonic() + HANG_UP_SECONDS
    while not has_no_process(listener):
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.01)
    return True


def _poll(descriptor: int) -> int:
    """What is to be read from it; of a process's: whether it has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return sum(event for _, event in poll.poll(0))
