"""Where the files of shares are, and whose: the store's directory and a container's key."""

from __future__ import annotations

import os

from nvc.linux import process, rights
from nvc.share import store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.model import Container


def directory() -> str:
    """The store: /run/nvc/share, or in a user namespace (a rootless engine's) the one of the user that made it.

    There /run has no owner that could write; the login's directory is the user's own.
    """
    if not rights.in_user_namespace():
        return store.DIRECTORY
    return f"/run/user/{_owner()}/nvc/share"


def first_process(container: Container) -> int:
    """The container's first process as /proc numbers it; 0 when nothing tells.

    Without its pid we are in its namespaces, in a createContainer hook or LXC's, and /proc is the host's.
    """
    return container.pid if container.supervised else process.first_of_namespace()[0]


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
