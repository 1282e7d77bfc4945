"""A container under the guard, as the agent knows it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.state.records import TenantRecord
    from nvc.share.limits import Limits


class Tenant:
    """A container under the guard. limits: as they are in force."""

    def __init__(self, record: TenantRecord, limits: Limits) -> None:
        self.record = record
        self.limits = limits

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def name(self) -> str:
        """What people call it."""
        return self.record.container or self.record.key
