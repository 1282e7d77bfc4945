"""The process at the other end: only a caller that could do all of it itself, and with the same result, is served.

Compared with this process are user and group ids, capabilities, the security module's label, the root directory, and
the namespaces that decide what a path or a process id means. A hook at createContainer is in namespaces of the
container, and has the machine's root still: the process that does its work enters its mount namespace. A caller with
no_new_privs or seccomp filters that it does not share is refused, as what filters refuse cannot be read; this process
may be more confined, and in the agent's unit is. What may differ (limits, the OOM score, niceness) is taken over by the
process that does the work.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import struct

from nvc.base.record import Record
from nvc.linux import rights
from nvc.prefork.request import CDI, Refused
from nvc.prefork.runtimes import parent_and_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.prefork.runtimes import Runtimes

#: What the work needs; where we have less than the caller, the Python program would succeed and we would not.
_REQUIRED_RIGHTS = rights.mask(rights.PERMITTED | rights.BOUNDING)
_NAMESPACES = ("mnt", "pid", "user", "cgroup")
#: Where in ``Standing.places`` what a hook at createContainer shares with us is: the root, and the user namespace.
_USER = 1 + _NAMESPACES.index("user")
_SHARED = (0, _USER)
_ELSEWHERE = "a caller in other namespaces, or with another root"
_SAME = ("Uid", "Gid")
_SETS = ("CapEff", "CapPrm", "CapBnd")
#: Line for the agent (nvc.agent.standby) after the first ``Unattainable``.
UNATTAINABLE = b"unattainable\n"
_CREDENTIALS = struct.Struct("3i")
# asm-generic/socket.h, since Linux 6.5.
_SO_PEERPIDFD = 77
_CAP_SYS_NICE, _CAP_SYS_RESOURCE = 23, 24  # linux/capability.h
_LIMITS = tuple(range(16))  # RLIM_NLIMITS of asm-generic/resource.h
_ATTRIBUTES = struct.Struct(f"={2 * len(_LIMITS)}q2i")


class Unattainable(Refused):
    """Its limits, OOM score or niceness are beyond this process's: so are all of its kind, until it has the rights."""


class Standing(Record):
    """What decides what a process may do, and what paths and numbers mean to it.

    filters: seccomp's, -1 where they are not counted (before Linux 5.9).
    """

    places: tuple[tuple[int, int], ...]
    label: bytes
    same: tuple[str, ...]
    sets: tuple[int, ...]
    no_new_privs: bool
    filters: int

    def lacks(self, ours: Standing, *, inside: bool = False, own: int = 0) -> str:
        """What a caller of this standing lacks to be served by a process of ``ours``; "" for nothing.

        inside: it is in a container's namespaces, and so will be the work as far as paths mean something.
        own: how many of its filters are nvc-runtime's.
        """
        compared = _SHARED if inside else range(len(ours.places))
        if any(self.places[one] != ours.places[one] for one in compared):
            return _ELSEWHERE
        if self.label != ours.label or self.same != ours.same:
            return "a caller of another standing (ids, label)"
        if self.no_new_privs > ours.no_new_privs:
            return "a caller with no_new_privs"
        # Every process has those of process 1, and cannot get rid of them.
        if self.filters and (self.filters < 0 or self.filters - own != _filters(_status(1))):
            return "a caller with seccomp filters"
        return _lacks_rights(self.sets, ours.sets)


class ProcessAttributes(Record):
    """What the work takes over from the caller: limits as (number, soft, hard), OOM score, niceness."""

    limits: tuple[tuple[int, int, int], ...]
    oom_score: int
    nice: int

    def packed(self) -> bytes:
        """For another process of ours."""
        return _ATTRIBUTES.pack(*(number for limit in self.limits for number in limit[1:]), self.oom_score, self.nice)

    @staticmethod
    def unpack(data: bytes) -> tuple[ProcessAttributes, bytes]:
        """What ``packed`` made, and what stands behind it."""
        *limits, oom_score, nice = _ATTRIBUTES.unpack_from(data)
        pairs = zip(_LIMITS, limits[::2], limits[1::2], strict=True)
        return ProcessAttributes(tuple(pairs), oom_score, nice), data[_ATTRIBUTES.size :]


class Caller:
    """The process at the other end of ``connection``, until ``close``. started: see ``runtimes.parent_and_start``.

    Before Linux 6.5, and where the process that connected has ended, its number may be another's: what it says last
    has to come from the process that was checked (``is_sender``).
    """

    def __init__(self, connection: socket.socket, ours: Standing) -> None:
        """Nothing of the connection is read. Raises Refused for one with fewer rights, OSError when it is gone."""
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, uid, _ = _CREDENTIALS.unpack(data)
        self.started = 0
        if uid != 0 or self.pid <= 0:
            raise Refused(f"a caller with uid {uid}, pid {self.pid}")
        # Neither waits for a file system of the caller's, as a look at its root may.
        if _place(f"/proc/{self.pid}/ns/user") != ours.places[_USER]:
            raise Refused(_ELSEWHERE)
        if lacking := _lacks_rights(_sets(_status(self.pid)), ours.sets):
            raise Refused(lacking)
        try:
            self._pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
            self._pidfd = os.pidfd_open(self.pid)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def close(self) -> None:
        """A second time is nothing."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def is_sender(self, credentials: bytes) -> bool:
        """Whether it is there, and a packet that was sent after the check is from it. credentials: SCM_CREDENTIALS."""
        return (
            len(credentials) == _CREDENTIALS.size
            and _CREDENTIALS.unpack(credentials)[:2] == (self.pid, 0)
            and not has_ended(self._pidfd)
        )

    def check(
        self, program: str, ours: Standing, own: ProcessAttributes, runtimes: Runtimes
    ) -> tuple[ProcessAttributes, list[int]]:
        """What to take over in place of ``own``, and namespaces to enter. program: which it asks for.

        Raises Refused for a caller of another standing than ``ours``, OSError for one that is gone.
        """
        inside = program in CDI
        filters = runtimes.filters(self.pid) if inside else 0
        if lacking := standing(self.pid).lacks(ours, inside=inside, own=filters):
            raise Refused(lacking)
        if inside and os.stat(f"/proc/{self.pid}/root/proc").st_dev != os.stat("/proc").st_dev:
            raise Refused("a caller with a /proc in which the work would not find itself")
        attributes = attributes_of(self.pid)
        if not _is_attainable(attributes, own, ours.sets[0]):
            raise Unattainable
        entered = [os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)] if inside else []
        self.started = parent_and_start(self.pid)[1]
        if has_ended(self._pidfd):
            for one in entered:
                os.close(one)
            raise Refused("a caller that has ended")  # the number may have been another's by then
        return attributes, entered


def standing(pid: int | str) -> Standing:
    """That of a process ("self" for ours). Raises OSError."""
    base = f"/proc/{pid}"
    places = []
    for name in ("root", *(f"ns/{kind}" for kind in _NAMESPACES)):
        places.append(_place(f"{base}/{name}"))
    fields = _status(pid)
    try:
        label = _read(f"{base}/attr/current")
    except OSError:
        label = b""  # no security module that labels processes
    return Standing(
        tuple(places),
        label,
        tuple(fields.get(name, "").strip() for name in _SAME),
        _sets(fields),
        fields.get("NoNewPrivs", "0").strip() == "1",
        _filters(fields),
    )


def _place(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        # A kernel without that kind of namespace; or a process that has ended, which its other files tell.
        return 0, 0
    return status.st_dev, status.st_ino


def _sets(fields: dict[str, str]) -> tuple[int, ...]:
    return tuple(int(fields[name], 16) for name in _SETS)


def _lacks_rights(theirs: tuple[int, ...], ours: tuple[int, ...]) -> str:
    for mine, its in zip(ours, theirs, strict=True):
        # It may gain nothing by us, nor lose.
        if mine & ~its or its & _REQUIRED_RIGHTS & ~mine:
            return "a caller with other capabilities"
    return ""


def _status(pid: int | str) -> dict[str, str]:
    # Of the ends of lines that there are the kernel escapes the newline alone in a process's name.
    lines = _read(f"/proc/{pid}/status").decode("latin-1").split("\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _filters(fields: dict[str, str]) -> int:
    if fields.get("Seccomp", "0").strip() == "0":
        return 0
    return int(fields.get("Seccomp_filters", "-1"))


def attributes_of(pid: int) -> ProcessAttributes:
    """What of ``pid``'s the work takes over. Raises OSError."""
    limits = tuple((number, *resource.prlimit(pid, number)) for number in _LIMITS)
    return ProcessAttributes(limits, int(_read(f"/proc/{pid}/oom_score_adj")), os.getpriority(os.PRIO_PROCESS, pid))


def has_ended(pidfd: int) -> bool:
    """Whether the process has."""
    poll = select.poll()  # select(2) takes no descriptor above 1023
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _is_attainable(theirs: ProcessAttributes, own: ProcessAttributes, effective: int) -> bool:
    """Whether a process with these capabilities comes from ``own`` to ``theirs``."""
    if theirs.nice < own.nice and not effective >> _CAP_SYS_NICE & 1:
        return False
    hard = [(limit[2], mine[2]) for limit, mine in zip(theirs.limits, own.limits, strict=True)]
    infinite = resource.RLIM_INFINITY
    return bool(effective >> _CAP_SYS_RESOURCE & 1) or (
        all(mine == infinite or (limit != infinite and limit <= mine) for limit, mine in hard)
        and theirs.oom_score >= own.oom_score
    )


def apply(attributes: ProcessAttributes, ours: ProcessAttributes, pid: int = 0) -> None:
    """Be as the caller is, or make our child ``pid`` so; ``ours``: what both are now.

    Raises OSError where the kernel says no, or when the child has gone.
    """
    for theirs, mine in zip(attributes.limits, ours.limits, strict=True):
        if theirs != mine:
            resource.prlimit(pid, theirs[0], theirs[1:])
    if attributes.oom_score != ours.oom_score:
        number = os.open(f"/proc/{pid or 'self'}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(number, b"%d" % attributes.oom_score)
        finally:
            os.close(number)
    if attributes.nice != ours.nice:
        os.setpriority(os.PRIO_PROCESS, pid, attributes.nice)


def _read(path: str) -> bytes:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(number, 1 << 16)
    finally:
        os.close(number)
