"""Threads that wait for an answer which will not come: what the last agent had received when it was killed.

The kernel keeps such a notification with its dead reader; the guard's note of its id (in flight) is written an instant
after it was received, so some are in no ledger. A thread that leaves its wait announces its call anew. So an agent that
takes a tenant over lets all its threads that wait do so, before it listens: those whose call was not received lose
nothing.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: What wchan says of a thread in seccomp_do_user_notification (kernel/seccomp.c), whatever the compiler made of it.
_WHERE = b"seccomp"


class Waiting:
    """Every thread of this host that waits for an answer of some guard, as it was when this was made."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._own = self._namespace("self")
        self._found = [
            (int(name), thread, self._namespace(name), group_of(name, proc))
            for name in os.listdir(proc)
            if name.isdigit()
            for thread in self._threads(name)
        ]

    def of(self, processes: Iterable[int]) -> list[tuple[int, int]]:
        """(process, thread), host's numbers, of those that are a container's.

        processes: some that are known to be the container's; so is what shares a pid namespace with one of them, unless
        that is our own, or is in its cgroup or below it.
        """
        known = set(processes) if self._found else set()
        namespaces = {self._namespace(str(pid)) for pid in known} - {self._own, 0}
        groups = {group_of(str(pid), self._proc) for pid in known} - {""}
        return [
            (process, thread)
            for process, thread, namespace, group in self._found
            if process in known or namespace in namespaces or any(f"{group}/".startswith(f"{one}/") for one in groups)
        ]

    def _threads(self, name: str) -> Iterator[int]:
        directory = f"{self._proc}/{name}/task"
        try:
            names = os.listdir(directory)
        except OSError:
            return
        for thread in names:
            if _WHERE in _read(f"{directory}/{thread}/wchan"):
                yield int(thread)

    def _namespace(self, name: str) -> int:
        """Its pid namespace's number; 0: it ended, or has none that we may see."""
        try:
            return os.stat(f"{self._proc}/{name}/ns/pid").st_ino
        except OSError:
            return 0


def group_of(name: str, proc: str = "/proc") -> str:
    """A process's cgroup of version 2, or of the controller that every engine uses; "" for the root's.

    Lines end at a newline and nowhere else: a container names cgroups of its own as it likes.
    """
    found = ""
    for line in _read(f"{proc}/{name}/cgroup").decode(errors="replace").split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and path not in ("/", ""):
            return path
        if "devices" in controllers.split(",") and path != "/":
            found = path
    return found


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(65536)
    except OSError:
        return b""
