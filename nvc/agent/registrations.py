"""Containers that nvc-runtime registered before it made them: DIRECTORY/registrations/NUMBER.json.

A container's config.json carries what users wrote, so nothing in it shows that a container is guarded. nvc-runtime,
which is root, registers the id and the bundle on the control socket and then becomes the runtime, in the same process.
The registration is pending until the container's first process is known: the share step binds it, or the listener's
arrival does. It holds as long as that process, and before that as long as the runtime: a container that does not arrive
leaves nothing that another one could use. Each is written before it is answered for, and the next agent reads it.
"""

from __future__ import annotations

import os
import time
from collections import deque

from nvc.agent.ending import EndedError
from nvc.agent.state import records
from nvc.base.errors import AgentError, ContainerError, reason
from nvc.base.record import Record
from nvc.share.store import start_time
from rpc.codec import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.agent.container_state import ContainerProcess

DIRECTORY = "registrations"
_SUFFIX = ".json"
#: Bytes of a file; the path of a bundle is the longest part.
_LIMIT = 64 << 10
#: At a time: as many containers as a node may have, and some that are about to start.
MAX_REGISTRATIONS = 4096
#: Of those that may hold no more, looked at with each new one.
_PRUNED = 4
#: Of those that were forgotten, remembered: more than can be forgotten while a listener is on its way.
_FORGOTTEN = 256
_HINT = "nvc-runtime registers each container that it starts: start it with nvc-runtime (docs/user/agent.md)"


class Registration(Record):
    """A container that will be guarded, or is.

    number: of its file. container: the runtime's id. bundle: its path; device, inode: of that directory (stat(2)).
    runtime, runtime_start: pid and start time (field 22 of /proc/PID/stat) of the process that registered it and became
    the runtime. pid, start_time: of the container's first process; 0: pending. since: seconds since 1970.
    """

    number: int
    container: str
    bundle: str
    device: int
    inode: int
    runtime: int
    runtime_start: int
    since: float
    pid: int = 0
    start_time: int = 0

    @property
    def is_valid(self) -> bool:
        """Whether the process that it holds as long as is still there."""
        if self.pid:
            return start_time(self.pid) == self.start_time
        return start_time(self.runtime) == self.runtime_start


class Registrations:
    """All of them. For the agent's one thread."""

    def __init__(self, directory: str) -> None:
        """Read what the agent before wrote. directory: the agent's. Raises AgentError."""
        self._directory = f"{directory}/{DIRECTORY}"
        #: What could not be read, for the log: those containers count as not registered.
        self.problems: list[str] = []
        self._by_number: dict[int, Registration] = {}
        #: Numbers by the container's id, in order: what one container needs takes no look at all others.
        self._named: dict[str, list[int]] = {}
        self._last = 0
        #: Where the next look for those that hold no more begins.
        self._pruned = 0
        #: The last that were forgotten.
        self._forgotten: deque[Registration] = deque(maxlen=_FORGOTTEN)
        try:
            os.makedirs(self._directory, 0o700, exist_ok=True)
            for name in sorted(os.listdir(self._directory)):
                self._load(name)
        except OSError as error:
            raise AgentError(f"{self._directory}: {reason(error)}", hint=records.advice(error)) from None

    def __len__(self) -> int:
        return len(self._by_number)

    def add(
        self, container: str, bundle: str, device: int, inode: int, runtime: int, expected: int = 0
    ) -> Registration:
        """Register a container that the process ``runtime`` is about to make. Raises AgentError.

        expected: when it started, where another process says it: one of its number may be there in its place.
        """
        if not container or not bundle:
            raise AgentError("a registration without a container or its bundle")
        self.prune(None if len(self._by_number) >= MAX_REGISTRATIONS else _PRUNED)
        if len(self._by_number) >= MAX_REGISTRATIONS:
            raise AgentError(f"{MAX_REGISTRATIONS} containers are registered, and there can be no more")
        started = start_time(runtime) if runtime > 0 else -1
        if started < 0:
            raise AgentError(
                f"container {container}: its runtime is in a pid namespace that the agent does not see",
                hint="run the agent in the host's pid namespace, or in that of the engine",
            )
        if expected not in (0, started):
            raise AgentError(f"container {container}: its runtime has ended")
        since = round(time.time(), 3)
        made = Registration(self._last + 1, container, bundle, device, inode, runtime, started, since)
        self._save(made)
        return made

    def bind(self, container: str, device: int, inode: int, pid: int) -> Registration:
        """The registration of the container of this id and bundle, from now on for its first process ``pid`` alone.

        pid: 0 where the caller does not know it: the registration stays pending then. Raises ContainerError for a
        container that is not registered, or whose registration counts for another process; AgentError.
        """
        found = self._of(container)
        same = [one for one in found if (one.device, one.inode) == (device, inode)]
        bound = next((one for one in same if pid and one.pid == pid), None)
        if bound is not None:
            return bound
        pending = [one for one in same if not one.pid]
        if not pending:
            other = ", but from another bundle or for another process" if found else ""
            raise ContainerError(f"container {container} is not registered with the agent{other}", hint=_HINT)
        return self._bound(pending[-1], pid)

    def bind_process(self, pid: int) -> Registration | None:
        """The registration of the container whose first process is ``pid``, where nothing else is known; None: none.

        A pending one counts for a child of its runtime. Raises AgentError.
        """
        if pid <= 0:
            return None
        bound = self._valid(lambda one: one.pid == pid)
        if bound:
            return bound[0]
        runtime = _parent(pid)
        pending = self._valid(lambda one: not one.pid and one.runtime == runtime)
        return self._bound(pending[0], pid) if pending else None

    def arrived(self, process: ContainerProcess) -> Registration:
        """The registration of the container that sent a listener, bound to its first process.

        Raises ContainerError for one that is not registered, EndedError for one that was; AgentError.
        """
        first = process.first or process.pid
        found = self._of(process.container)
        # crun 1.8.1 does not say the first process when another one is put into the container: the id decides.
        bound = [one for one in found if one.pid and process.first in (0, one.pid)]
        if bound:
            return bound[-1]
        pending = [one for one in found if not one.pid and _is_bundle(one, process.bundle)]
        if not pending or not first:
            failure = EndedError if self._has_ended(process.container, first) else ContainerError
            raise failure(f"container {process.container} is not registered with the agent", hint=_HINT)
        return self._bound(pending[-1], first)

    def prune(self, most: int | None = None) -> None:
        """Forget those that hold no more. most: look at so many only, at others with the next call; None: at all."""
        numbers = list(self._by_number)
        for number in [*numbers[self._pruned :], *numbers[: self._pruned]][:most]:
            if self._by_number[number].is_valid:
                self._pruned += 1
            else:
                self._remove(number)
        self._pruned %= max(1, len(self._by_number))

    def _has_ended(self, container: str, first: int) -> bool:
        """Whether there was a registration for this process, or of its runtime's."""
        known = (self._by_number[number] for number in self._named.get(container, ()))
        before = [*self._forgotten, *(one for one in known if not one.is_valid)]
        return any(one.container == container and one.pid in (0, first) for one in before)

    def _of(self, container: str) -> list[Registration]:
        """Those of a container's id that hold."""
        return [one for number in self._named.get(container, ()) if (one := self._by_number[number]).is_valid]

    def _valid(self, is_meant: Callable[[Registration], bool]) -> list[Registration]:
        """Those that are meant, and hold: that takes a look at /proc for each."""
        return [one for one in self._by_number.values() if is_meant(one) and one.is_valid]

    def _bound(self, pending: Registration, pid: int) -> Registration:
        if not pid:
            return pending
        started = start_time(pid)
        if started < 0:
            raise EndedError(f"container {pending.container}: its first process, {pid}, has ended")
        made = pending.replace(pid=pid, start_time=started)
        self._save(made)
        return made

    def _save(self, one: Registration) -> None:
        records.write(f"{self._directory}/{one.number}{_SUFFIX}", one)
        self._put(one)

    def _put(self, one: Registration) -> None:
        if one.number not in self._by_number:
            self._named.setdefault(one.container, []).append(one.number)
            self._named[one.container].sort()
            self._last = max(self._last, one.number)
        self._by_number[one.number] = one

    def _load(self, name: str) -> None:
        place = f"{self._directory}/{name}"
        try:
            with open(place, "rb") as file:
                one = Registration.from_data(loads(file.read(_LIMIT), limit=_LIMIT))
            if name != f"{one.number}{_SUFFIX}":
                raise ValueError(f"it is registration {one.number}")
        except ValueError as error:
            if not name.endswith(".new"):  # half a write
                self.problems.append(f"{place}: {error}; its container counts as not registered")
            os.unlink(place)
            return
        self._put(one)
        if not one.is_valid:
            self._remove(one.number)

    def _remove(self, number: int) -> None:
        forgotten = self._by_number.pop(number)
        self._forgotten.append(forgotten)
        container = forgotten.container
        self._named[container].remove(number)
        if not self._named[container]:
            del self._named[container]
        try:
            os.unlink(f"{self._directory}/{number}{_SUFFIX}")
        except OSError:
            pass  # void already: the next agent removes it


def _is_bundle(one: Registration, path: str) -> bool:
    """Whether a runtime's text names the registered bundle; runtimes resolve links and relative paths."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return bool(path) and path == one.bundle
    return (found.st_dev, found.st_ino) == (one.device, one.inode)


def _parent(pid: int) -> int:
    """The parent of a process, 0: there is none that we see."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
