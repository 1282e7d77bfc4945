"""Which tenant a process belongs to: by the kernel, not by what a supervisor says of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import NamedTuple

from nvc.agent.ending import KILL, cgroups
from nvc.guard.supervisors import USER_COUNT
from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from nvc.agent.state.records import Member
    from nvc.agent.tenant import Tenant

#: linux/nsfs.h: NS_GET_PARENT. Pid namespaces are nested no deeper (kernel/pid_namespace.c: MAX_PID_NS_LEVEL).
_NS_GET_PARENT, _LEVELS = 0xB702, 32
#: Processes of a container that are looked at.
_PIDS_MOST = 4096
#: Seconds after a container's arrival in which its monitor may still write its cgroup down; most take milliseconds.
_ARRIVES_S = 5.0


class Owners:
    """Remembers what it found for a pid until another process has it."""

    def __init__(self, directory: str, first_uid: int) -> None:
        """directory: the agent's. first_uid: of supervisors."""
        self._directory, self._first_uid = directory, first_uid
        self._own_namespace = _namespace(os.getpid())
        self._above = _namespaces(os.getpid())
        #: Pid -> its start time, the tenant's number (0: none), and ``_changes`` when that was found.
        self._known: dict[int, tuple[int, int, int]] = {}
        #: UUID -> pid -> the tenant that had it first, 0: none is known.
        self._clients: dict[str, dict[int, int]] = {}
        self._seen: dict[int, _Seen] = {}
        #: How often what tells processes apart has changed: one of no tenant is looked for again then.
        self._changes = 0

    def gone(self, number: int) -> None:
        """A tenant is over."""
        self._changes += self._seen.pop(number, None) is not None
        self._known = {pid: found for pid, found in self._known.items() if found[1] != number}
        for clients in self._clients.values():
            clients.update(dict.fromkeys((pid for pid, found in clients.items() if found == number), 0))

    def knows(self, tenant: Tenant) -> bool:
        """Whether the kernel tells its processes from others': it has a cgroup or a pid namespace of its own."""
        seen = self._look(tenant)
        return bool(seen.cgroups or seen.namespaces)

    def of(
        self,
        pids: Iterable[int],
        tenants: Iterable[Tenant],
        named: Mapping[int, int],
        ended: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """Pid -> the tenant's number; 0: none.

        A supervisor and what it made, by their user; a process of a container, by its cgroup or its pid namespace.
        named: pid -> tenant, as supervisors say: of processes of containers that have neither. ended: of the others,
        which counts for a process that is over, of which another one has the files.
        """
        steps = self.steps(pids, tenants, named, ended)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: dict[int, int] = end.value
                return found

    def steps(
        self,
        pids: Iterable[int],
        tenants: Iterable[Tenant],
        named: Mapping[int, int],
        ended: Mapping[int, int] | None = None,
    ) -> Generator[None, None, dict[int, int]]:
        """As ``of``; between two processes others may have their turn, and tenants may go."""
        places = _Places(self._first_uid, {one.number: self._look(one) for one in tenants})
        found = {}
        for pid in pids:
            started = start_time(pid)
            known = self._known.get(pid)
            if known is None or known[0] != started or (not known[1] and known[2] != self._changes):
                known = self._known[pid] = started, places.of(pid, self._above), self._changes
            number = known[1] if known[1] in places.numbers else 0
            found[pid] = number or named.get(pid, 0) or (ended.get(pid, 0) if ended and started < 0 else 0)
            yield
        living = {0, *self._seen}
        self._known = {pid: known for pid, known in self._known.items() if pid in found and known[1] in living}
        return {pid: number if number in living else 0 for pid, number in found.items()}

    def of_clients(self, uuid: str, owners: Mapping[int, int]) -> dict[int, int]:
        """Pid -> the tenant whose clients the driver has under it on a GPU. owners: what ``of`` has just found.

        Clients of a process that has ended stay where another process has their files: also when a process of another
        tenant has its number.
        """
        before, now = self._clients.get(uuid, {}), dict[int, int]()
        for pid, number in owners.items():
            # A supervisor's word may be a lie, and does not stay.
            now[pid] = before.get(pid) or (number if self._known[pid][1] == number else 0)
        self._clients[uuid] = now
        return {pid: now[pid] or number for pid, number in owners.items()}

    def pids(self, tenant: Tenant) -> list[int]:
        """All processes in the container's own cgroup and below; none where it has no cgroup of its own."""
        found = list[int]()
        for top in self._places(tenant.number):
            for place, _, _ in os.walk(top):
                with contextlib.suppress(OSError, ValueError), open(f"{place}/cgroup.procs", encoding="ascii") as file:
                    found += [int(line) for line in file]
                if len(found) > _PIDS_MOST:
                    return found[:_PIDS_MOST]
        return found

    def _places(self, number: int) -> list[str]:
        """The containers' own cgroups of version 2, as their monitor wrote them down; without those that have none."""
        paths = [line.partition(" ")[2] for line in cgroups(self._directory, number)]
        return [os.path.dirname(path) for path in paths if os.path.basename(path) == KILL]

    def _look(self, tenant: Tenant) -> _Seen:
        members, now = tenant.members, time.monotonic()
        seen = self._seen.get(tenant.number)
        if seen is None or seen.members != members or (len(seen.cgroups) < len(members) and now < seen.until):
            places = (
                place.removeprefix("/sys/fs/cgroup").removeprefix("/unified") for place in self._places(tenant.number)
            )
            living = (one.pid for one in members if start_time(one.pid) == one.start_time)
            found = frozenset(map(_namespace, living)) - {0, self._own_namespace}
            until = seen.until if seen is not None and seen.members == members else now + _ARRIVES_S
            before, seen = seen, _Seen(members, tuple(filter(None, places)), found, until)
            if before is None or (before.cgroups, before.namespaces) != (seen.cgroups, seen.namespaces):
                self._changes += 1
            self._seen[tenant.number] = seen
        return seen


class _Seen(NamedTuple):
    """Of a tenant: its containers, their cgroups in version 2, and their pid namespaces other than the agent's.

    until: when that is not looked for any more.
    """

    members: tuple[Member, ...]
    cgroups: tuple[str, ...]
    namespaces: frozenset[int]
    until: float


class _Places:
    """Tenants by what tells their processes from others'."""

    def __init__(self, first_uid: int, tenants: Mapping[int, _Seen]) -> None:
        self.numbers = frozenset(tenants)
        self._first_uid = first_uid
        self._by_cgroup = {place: number for number, seen in tenants.items() for place in seen.cgroups}
        without = {number: seen for number, seen in tenants.items() if not seen.cgroups}
        self._by_namespace = {place: number for number, seen in without.items() for place in seen.namespaces}
        self._by_user = {number % (USER_COUNT // 2): number for number in tenants}

    def of(self, pid: int, above: set[int]) -> int:
        """The tenant's number; 0: none. above: the agent's pid namespaces."""
        place = _cgroup(pid)
        while place:
            if place in self._by_cgroup:
                return self._by_cgroup[place]
            place = place.rpartition("/")[0]
        namespaces = _namespaces(pid)
        for one in namespaces & self._by_namespace.keys():
            return self._by_namespace[one]
        # Last: root in a container without a user namespace can take any uid.
        user = _user(pid) if namespaces and namespaces == above else -1
        return self._by_user.get(user - self._first_uid, 0) if 0 <= user - self._first_uid < USER_COUNT // 2 else 0


def _user(pid: int) -> int:
    """Its real uid (the owner of /proc/PID is root where a process is not dumpable); -1: it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"Uid:")), -1)
    except OSError:
        return -1


def _cgroup(pid: int) -> str:
    """Its path in cgroup version 2; "": there is none, or it has ended."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), "")
    except OSError:
        return ""


def _namespace(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def _namespaces(pid: int) -> set[int]:
    """Inodes of its pid namespace and those above (ioctl_ns(2))."""
    found: set[int] = set()
    try:
        file = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return found
    for _ in range(_LEVELS):
        found.add(os.fstat(file).st_ino)
        try:
            above = fcntl.ioctl(file, _NS_GET_PARENT)
        except OSError:
            break
        os.close(file)
        file = above
    os.close(file)
    return found
