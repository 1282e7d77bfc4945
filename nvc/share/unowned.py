"""Entries of the store of which no first process is known: damaged ones, and those that were made without a pid.

``store.clean`` keeps them, for their containers may live. Such an entry goes when its container cannot: no process has
a mount of its files, and no guarded container is of that name.
"""

from __future__ import annotations

import errno
import os
import time

from nvc.share import store
from nvc.share.entry import check_room, is_key, open_entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: Seconds: a container that is being made has neither mounts nor a process that is known.
LEAST_AGE_S = 600.0


def clean(keep: Callable[[], Collection[str]], directory: str = store.DIRECTORY, age: float = LEAST_AGE_S) -> list[str]:
    """Remove them; their keys. keep: keys of guarded containers, which need not have mounts.

    Raises ContainerError, OSError: also when the mounts of a process cannot be read, which then may have them.
    """
    found = _unowned(directory, age)
    if not found:
        return []
    found -= _mounted(found) | set(keep())
    return [key for key in sorted(found) if store.remove(key, directory)]


def _unowned(directory: str, age: float) -> set[str]:
    found: set[str] = set()
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return found
    try:
        for name in filter(is_key, os.listdir(opened)):
            try:
                if time.time() - os.stat(name, dir_fd=opened, follow_symlinks=False).st_mtime < age:
                    continue
                with open_entry(opened, directory, name) as entry:
                    has_process = entry.record.pid != 0
            except (OSError, ValueError) as error:
                check_room(f"{directory}/{name}", error)
                has_process = False  # damaged
            if not has_process:
                found.add(name)
    finally:
        os.close(opened)
    return found


def _mounted(keys: set[str]) -> set[str]:
    """Keys in the mounts of any process, by the text of mountinfo: rather one too many than one too few."""
    found: set[str] = set()
    seen: set[int] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            namespace = os.stat(f"/proc/{pid}/ns/mnt").st_ino
            if namespace in seen:
                continue
            with open(f"/proc/{pid}/mountinfo", "rb") as file:
                text = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError as error:
            if error.errno == errno.EINVAL:  # a zombie has no mount namespace any more
                continue
            raise
        seen.add(namespace)
        found |= {key for key in keys if f"/{key}/".encode() in text}
    return found
