"""Where the files of shares are, and whose: the store's directory and a container's key."""

from __future__ import annotations

import os

from nvc.linux import rights
from nvc.share import store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.model import Container

_PROCESSES = 64
#: The number that a container's first process has in its own pid namespace.
_FIRST = "1"
#: The process that this one works for, where it was forked by another one (``nvc.prefork``): 0 for none.
caller = 0


def directory() -> str:
    """The store: /run/nvc/share, or in a user namespace (a rootless engine's) the one of the user that made it.

    There /run has no owner that could write; the login's directory is the user's own.
    """
    if not rights.in_user_namespace():
        return store.DIRECTORY
    return f"/run/user/{_owner()}/nvc/share"


def first_process(container: Container) -> int:
    """The container's first process as /proc numbers it; 0 when nothing tells.

    Without its pid we are in its namespaces: in a createContainer hook and in LXC's /proc is the host's, and the first
    process is the ancestor that is 1 in its own namespace.
    """
    if container.supervised:
        return container.pid
    try:
        pid = str(caller) if caller else os.readlink("/proc/self")
        for _ in range(_PROCESSES):
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            numbers = fields["NSpid"].split()
            if len(numbers) > 1 and numbers[-1] == _FIRST:
                return int(numbers[0])
            pid = fields["PPid"]
            if pid == "0":
                break
    except (OSError, KeyError, ValueError):
        pass
    return 0


def key(identifier: str, container: Container) -> str:
    """The name of a container's entry: its id, else its first process, else this process: no other has its number."""
    pid = first_process(container) or os.getpid()
    return store.key_of(identifier, pid, max(store.start_time(pid), 0))


def _owner() -> int:
    """The uid outside of this user namespace of its root. Raises nothing: 0 where the map does not say."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            rows = [[int(word) for word in line.split()] for line in file]
    except (OSError, ValueError):
        return 0
    return next((outside for inside, outside, count in rows if inside == 0 and count), 0)
