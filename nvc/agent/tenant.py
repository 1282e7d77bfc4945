"""A container under the guard, as the agent knows it."""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.state.records import TenantRecord
    from nvc.share.limits import Limits


class Tenant:
    """A container under the guard. listeners: kept name -> descriptor, ours."""

    def __init__(self, record: TenantRecord, limits: Limits) -> None:
        self.record = record
        self.limits = limits
        self.listeners: dict[str, int] = {}
        self._serial = 0

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def name(self) -> str:
        """What people call it."""
        return self.record.container or self.record.key

    def next_name(self) -> str:
        """A name for one more listener that the keeper has not."""
        while True:
            self._serial += 1
            name = f"{self.number}-{self._serial}"
            if name not in self.listeners:
                return name

    def hung_up(self) -> list[str]:
        """Names of the listeners whose processes have ended, all that had the filter."""
        poll = select.poll()
        for listener in self.listeners.values():
            poll.register(listener, 0)  # hanging up is always told
        ended = {descriptor for descriptor, _ in poll.poll(0)}
        return [name for name, listener in self.listeners.items() if listener in ended]
