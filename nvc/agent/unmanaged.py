"""Tenants whose supervisor this agent does not understand: of another protocol version, or without a readable record.

They are guarded by their own processes, and cannot be seen in full or changed. The agent watches their monitors, which
takes no protocol, and ends the container when the monitor ended and left any of it: its supervisor may be gone as well.
"""

from __future__ import annotations

import contextlib
import os
import select

from nvc.agent import ending, peer
from nvc.agent.state import records
from nvc.agent.status import StatusContainer, StatusTenant
from nvc.base.errors import ContainerError
from nvc.base.record import Record
from nvc.guard.channel import Connection, connect
from nvc.guard.pages import Counters
from nvc.share.spec import have_common

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.journal import Journal
    from nvc.agent.state.records import Member, TenantRecord
    from nvc.guard.supervisors import Supervisors

_HINT = "it is guarded, and cannot be changed or seen in full by this agent: start the container again"


class _Watched(Record):
    """record: its members have pid 0 where it could not be read. build: its supervisor's version, "" not known."""

    record: TenantRecord
    pidfd: int
    build: str


class UnmanagedTenants:
    """All of them. For the agent's one thread."""

    def __init__(self, supervisors: Supervisors, journal: Journal, directory: str) -> None:
        self._supervisors, self._journal, self._directory = supervisors, journal, directory
        self._watched: list[_Watched] = []

    def add(self, record: TenantRecord, why: str) -> None:
        """Watch a tenant; end its containers if its monitor is gone. Raises nothing."""
        try:
            pidfd, build = _open(f"{records.path(self._directory, record.number)}/monitor")
        except OSError as error:
            self._end(record, f"{why}; its monitor does not answer: {error}")
            return
        self._watched.append(_Watched(record, pidfd, build))
        self._supervisors.ends.register(pidfd, select.EPOLLIN | select.EPOLLONESHOT)
        message = f"container {record.name}: its supervisor is not understood: {why}"
        self._journal.write("warning", message=message, hint=_HINT)

    def look(self) -> None:
        """End what is left of those whose monitor ended. Raises nothing."""
        for one in tuple(self._watched):
            poll = select.poll()
            poll.register(one.pidfd, select.POLLIN)
            if poll.poll(0):
                os.close(one.pidfd)
                self._watched.remove(one)
                self._end(one.record, "its monitor or its supervisor died")

    def check(self, member: Member, group: str) -> None:
        """Whether a container can be a tenant, or of one, beside these. Raises ContainerError.

        A second tenant for one of their containers, or for their group, would have the quota once more.
        """
        for one in self._watched:
            for known in one.record.members:
                if known.is_same(member) or (not known.pid and known.name == member.name):
                    raise _refused(f"container {member.name}")
            if have_common(group, one.record.group):
                raise _refused(f"group {group}")

    def has(self, name: str) -> bool:
        """Whether this is a container's id or key, or a group, of theirs."""
        return any(
            name == one.record.name or any(name in (of.key, of.container) for of in one.record.members)
            for one in self._watched
        )

    def status(self) -> list[StatusTenant]:
        """What is known of them: their containers and their supervisors' version."""
        return [_status(one.record, one.build) for one in self._watched]

    def close(self) -> None:
        for one in self._watched:
            os.close(one.pidfd)
        self._watched = []

    def _end(self, record: TenantRecord, why: str) -> None:
        ended = ending.end(self._directory, record)
        records.remove(self._directory, record)
        if ended:
            self._journal.write("supervisor-died", container=record.name, tenant=record.number, message=why, ended=True)


def _refused(what: str) -> ContainerError:
    return ContainerError(
        f"{what}: its guard speaks another protocol than this agent", hint="start its containers again, all of them"
    )


def _open(path: str) -> tuple[int, str]:
    """A pidfd of the monitor that listens at ``path``, and its supervisor's version or "". Raises OSError."""
    with connect(path) as first:
        pidfd = os.pidfd_open(peer.of(first).pid)
    try:
        # The same one listens still: the pidfd is of it, and not of a later process with its pid.
        connection = Connection(connect(path))
    except BaseException:
        os.close(pidfd)
        raise
    build = ""
    try:
        with contextlib.suppress(OSError), contextlib.closing(Counters(connection.counters(), 0)) as counters:
            build = counters.build
    finally:
        connection.close()  # without one a monitor looks by itself whether its tenant is over
    return pidfd, build


def _status(record: TenantRecord, build: str) -> StatusTenant:
    return StatusTenant(
        id=record.number,
        container=record.name,
        pid=record.pid,
        kind="guard",
        since=record.since,
        gpus=(),
        processes=(),
        denials={},
        notifications=0,
        handling_ns=0,
        paused=False,
        build=build,
        containers=tuple(StatusContainer(one.name, one.pid, one.engine_name) for one in record.members),
    )
