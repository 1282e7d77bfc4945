"""A tenant, as the agent knows it: a container under the guard, or those of a group."""

from __future__ import annotations

import asyncio
import os
import time

from nvc.share import store
from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.report import Row
    from nvc.agent.state.records import Member, TenantRecord
    from nvc.share.limits import Limits

#: Nanoseconds after which a file's time of change is another one than that of a change before: a tick of the kernel is
#: at most 10 ms.
_SETTLED_NS = 50_000_000


class Tenant:
    """limits: as they are in force. busy: requests about its containers that its monitor has not answered.

    number, name (what people call it), members: of its record. row: as it was reported last. is_planned: whether its
    plan has these limits.
    """

    is_planned = True
    row: Row | None = None
    #: Of its limits file: time of change and inode, when it was read last; None: it has to be read.
    _read_at: tuple[int, int] | None = None

    def __init__(self, record: TenantRecord, limits: Limits) -> None:
        self.record = record
        self.limits = limits
        self.busy = 0
        #: Of what waits for its monitor in a thread: one at a time, how many, and when one waited in vain.
        self.turn, self.waiting, self.hung_at = asyncio.Lock(), 0, 0.0

    @property
    def record(self) -> TenantRecord:
        return self._record

    @record.setter
    def record(self, record: TenantRecord) -> None:
        self._record = record
        self.number, self.name, self.members = record.number, record.name, record.members

    @property
    def living(self) -> Member:
        """The first of its containers that has not ended; the first one where none is left."""
        if len(self.members) == 1:
            return self.members[0]
        return next((one for one in self.members if start_time(one.pid) == one.start_time), self.members[0])

    def limits_path(self, shares: str) -> str:
        """Of the first of its containers that lives: the files of those are changed together. shares: the store's."""
        return f"{shares}/{self.living.key}/{store.LIMITS}"

    def is_file_changed(self, shares: str) -> bool:
        """Whether its limits file may say something else than when this was last asked; True where it is not there."""
        try:
            found = os.stat(self.limits_path(shares))
        except OSError:
            self._read_at = None
            return True
        now = found.st_mtime_ns, found.st_ino
        if now == self._read_at:
            return False
        self._read_at = now if now[0] < time.time_ns() - _SETTLED_NS else None
        return True


class Index:
    """Numbers of tenants by the keys and ids of their containers."""

    def __init__(self) -> None:
        self._by_word: dict[str, set[int]] = {}
        #: Those of groups, to which containers come and from which they go.
        self.groups: dict[int, Tenant] = {}

    def add(self, tenant: Tenant) -> None:
        if tenant.record.group:
            self.groups[tenant.number] = tenant
            return
        for word in _words(tenant.members[0]):
            self._by_word.setdefault(word, set()).add(tenant.number)

    def remove(self, tenant: Tenant) -> None:
        if self.groups.pop(tenant.number, None) is not None:
            return
        for word in _words(tenant.members[0]):
            left = self._by_word[word]
            left.discard(tenant.number)
            if not left:
                del self._by_word[word]

    def named(self, word: str) -> set[int]:
        found = {number for number, one in self.groups.items() if any(word in _words(of) for of in one.members)}
        return found | self._by_word.get(word, set())


def _words(member: Member) -> set[str]:
    return {member.key, member.container} - {""}
