"""A tenant, as the agent knows it: a container under the guard, or those of a group."""

from __future__ import annotations

from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.report import Row
    from nvc.agent.state.records import Member, TenantRecord
    from nvc.share.limits import Limits


class Tenant:
    """limits: as they are in force. busy: requests about its containers that its monitor has not answered.

    number, name (what people call it), members: of its record. row: as it was reported last.
    """

    row: Row | None = None

    def __init__(self, record: TenantRecord, limits: Limits) -> None:
        self.record = record
        self.limits = limits
        self.busy = 0

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
