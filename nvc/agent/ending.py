"""Ending a container whose monitor and supervisor are both gone: no process is left that answers its driver calls."""

from __future__ import annotations

import os
import signal

from nvc.agent.state import records
from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.state.records import TenantRecord

#: What a monitor writes into its tenant's directory: the number of a file's inode, and its path.
CGROUP = "cgroup"


def end(directory: str, record: TenantRecord) -> bool:
    """SIGKILL to every process of the container; False: none was left. Raises nothing."""
    in_cgroup = _end_cgroup(f"{records.path(directory, record.number)}/{CGROUP}")
    return end_process(record.pid, record.start_time) or in_cgroup


def _end_cgroup(place: str) -> bool:
    """By cgroup.kill of the container's own cgroup, if it is still the same cgroup and has processes."""
    try:
        with open(place, encoding="utf-8") as file:
            inode, _, path = file.read(8192).rstrip("\n").partition(" ")
        if os.stat(path).st_ino != int(inode):
            return False
        with open(f"{os.path.dirname(path)}/cgroup.events", "rb") as file:  # of cgroups below it, too
            if b"populated 1" not in file.read(256):
                return False
        with open(path, "wb") as file:
            file.write(b"1")
    except (OSError, ValueError):
        return False
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
