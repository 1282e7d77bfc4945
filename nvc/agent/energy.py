"""Energy of one GPU, divided among the tenants that computed on it. Pure.

What the GPU's counter grows by from one reading to the next goes to tenants by the part of that time in which each
computed; the part in which none did is no tenant's, and so is that of processes outside of tenants.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class DividedEnergy:
    """Of one GPU, from one reading of its counter to the next. In joules."""

    def __init__(self) -> None:
        #: The counter, in millijoules, and when it was read; -1: what comes next is the first reading.
        self._counter, self._at = -1, 0.0
        #: Tenant -> nanoseconds that it had computed at the last reading.
        self._computed: dict[int, int] = {}
        #: Tenant -> seconds that it computed, of which no energy is charged yet: the driver's samples come late, and
        #: an interval can have more of them than time.
        self._uncharged: dict[int, float] = {}
        self._energy: dict[int, float] = {}
        self.total = 0.0
        #: Whether the counter was read twice.
        self.is_known = False

    def update(self, now: float, counter: int, computed: Mapping[int, int]) -> None:
        """The counter now; tenant -> nanoseconds that it computed, in all. now: seconds of a steady clock.

        A counter that is lower than before (the driver was loaded again) is a first reading.
        """
        is_first = self._counter < 0 or counter < self._counter or now <= self._at
        for tenant, computed_ns in computed.items():
            grown = computed_ns - self._computed.get(tenant, 0)
            self._computed[tenant] = computed_ns
            if grown > 0 and not is_first:
                self._uncharged[tenant] = self._uncharged.get(tenant, 0.0) + grown / 1e9
        if is_first:
            self._uncharged.clear()
        else:
            self._divide((counter - self._counter) / 1000, now - self._at)
        self._counter, self._at = counter, now

    def _divide(self, joules: float, seconds: float) -> None:
        self.is_known = True
        self.total += joules
        part = min(1.0, seconds / (sum(self._uncharged.values()) or 1.0))
        for tenant, uncharged in self._uncharged.items():
            self._uncharged[tenant] = uncharged * (1 - part)
            self._energy[tenant] = self._energy.get(tenant, 0.0) + joules * uncharged * part / seconds

    def rest(self) -> None:
        """It is not read for a while: what the counter grows by meanwhile is not counted."""
        self._counter = -1

    def energy(self, tenant: int) -> float:
        """In all."""
        return self._energy.get(tenant, 0.0)

    def forget(self, tenant: int) -> None:
        """The tenant is over. Its part stays in ``total``."""
        for each in (self._computed, self._uncharged, self._energy):
            each.pop(tenant, None)
