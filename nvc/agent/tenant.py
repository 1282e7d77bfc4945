"""A tenant, as the agent knows it: a container under the guard, or those of a group."""

from __future__ import annotations

from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.state.records import Member, TenantRecord
    from nvc.share.limits import Limits


class Tenant:
    """limits: as they are in force. busy: requests about its containers that its monitor has not answered."""

    def __init__(self, record: TenantRecord, limits: Limits) -> None:
        self.record = record
        self.limits = limits
        self.busy = 0

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def name(self) -> str:
        """What people call it."""
        return self.record.name

    @property
    def living(self) -> Member:
        """The first of its containers that has not ended; the first one where none is left."""
        members = self.record.members
        return next((one for one in members if start_time(one.pid) == one.start_time), members[0])
