"""Which tenant a process belongs to: by the kernel, not by what a supervisor says of it."""

from __future__ import annotations

import contextlib
import fcntl
import os

from nvc.agent.ending import KILL, cgroups
from nvc.guard.supervisors import USER_COUNT
from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nvc.agent.state.records import Member
    from nvc.agent.tenant import Tenant

#: linux/nsfs.h: NS_GET_PARENT. Pid namespaces are nested no deeper (kernel/pid_namespace.c: MAX_PID_NS_LEVEL).
_NS_GET_PARENT, _LEVELS = 0xB702, 32
#: Processes of a container that are looked at.
_PIDS_MOST = 4096


class Owners:
    """Remembers what it found for a pid until another process has it."""

    def __init__(self, directory: str, first_uid: int) -> None:
        """directory: the agent's. first_uid: of supervisors."""
        self._directory, self._first_uid = directory, first_uid
        self._own_namespace = _namespace(os.getpid())
        self._above = _namespaces(os.getpid())
        self._known: dict[int, tuple[int, int]] = {}
        #: Tenant's number -> its containers, and their cgroups and pid namespaces as found then.
        self._seen: dict[int, tuple[tuple[Member, ...], tuple[str, ...], frozenset[int]]] = {}

    def gone(self, number: int) -> None:
        """A tenant is over."""
        self._seen.pop(number, None)
        self._known = {pid: found for pid, found in self._known.items() if found[1] != number}

    def knows(self, tenant: Tenant) -> bool:
        """Whether the kernel tells its processes from others': it has a cgroup or a pid namespace of its own."""
        return any(self._look(tenant))

    def of(self, pids: Iterable[int], tenants: Iterable[Tenant], named: Mapping[int, int]) -> dict[int, int]:
        """Pid -> the tenant's number; 0: none.

        A supervisor and what it made, by their user; a process of a container, by its cgroup or its pid namespace.
        named: pid -> tenant, as supervisors say: of processes of containers that have neither.
        """
        tenants = tuple(tenants)
        numbers = {tenant.number for tenant in tenants}
        found = {}
        for pid in pids:
            started = start_time(pid)
            known = self._known.get(pid)
            if known is None or known[0] != started:
                known = started, self._find(pid, tenants)
                if known[1]:  # otherwise it is looked for again: its tenant's cgroup may come to be known
                    self._known[pid] = known
            number = known[1] if known[1] in numbers else 0
            found[pid] = number or named.get(pid, 0)
        self._known = {pid: known for pid, known in self._known.items() if pid in found}
        return found

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

    def _find(self, pid: int, tenants: Iterable[Tenant]) -> int:
        cgroup, namespaces = _cgroup(pid), _namespaces(pid)
        for tenant in tenants:
            cgroups, own = self._look(tenant)
            if any(cgroup == one or cgroup.startswith(f"{one}/") for one in cgroups) or (
                not cgroups and own & namespaces
            ):
                return tenant.number
        # Last: root in a container without a user namespace can take any uid.
        user = _user(pid) if namespaces and namespaces == self._above else -1
        if 0 <= user - self._first_uid < USER_COUNT // 2:
            place = user - self._first_uid
            return next((one.number for one in tenants if one.number % (USER_COUNT // 2) == place), 0)
        return 0

    def _places(self, number: int) -> list[str]:
        """The containers' own cgroups of version 2, as their monitor wrote them down; without those that have none."""
        paths = [line.partition(" ")[2] for line in cgroups(self._directory, number)]
        return [os.path.dirname(path) for path in paths if os.path.basename(path) == KILL]

    def _look(self, tenant: Tenant) -> tuple[tuple[str, ...], frozenset[int]]:
        """Paths of its cgroups in version 2, and its pid namespaces other than the agent's."""
        members = tenant.record.members
        seen = self._seen.get(tenant.number)
        # A monitor writes a cgroup down some milliseconds after the container came.
        if seen is None or seen[0] != members or len(seen[1]) < len(members):
            places = (
                place.removeprefix("/sys/fs/cgroup").removeprefix("/unified") for place in self._places(tenant.number)
            )
            living = (one.pid for one in members if start_time(one.pid) == one.start_time)
            found = frozenset(map(_namespace, living)) - {0, self._own_namespace}
            seen = self._seen[tenant.number] = members, tuple(filter(None, places)), found
        return seen[1:]


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
