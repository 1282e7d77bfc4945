"""What the agent is made of beside its sockets and tenants: the scheduler, the pre-fork server, whatever comes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvc.agent.agent import Agent
    from nvc.agent.balance import Finding
    from nvc.agent.control import Handler
    from nvc.agent.scheduled import ScheduledShare
    from nvc.agent.status import StatusTenant
    from nvc.agent.tenant import Tenant
    from nvc.share.limits import Limits


class Part:
    """Everything is called in the agent's loop and must not block for long. Override what is needed."""

    async def start(self, agent: Agent) -> None:
        """The agent runs; tenants that were taken over are there already. Raises NvcError, which ends the agent."""

    def handlers(self) -> Mapping[str, Handler]:
        """Verbs of the control socket that it serves."""
        return {}

    async def arriving(self) -> None:
        """A container may be about to become a tenant, and waits meanwhile. Raises nothing."""

    async def making_room(self, key: str, limits: Limits) -> None:
        """A container is about to become a tenant, and waits for what it is promised. key: of its entry in the store.

        Raises ContainerError where that cannot be had: it is ended.
        """

    def check(self, limits: Limits) -> None:
        """A container is about to become a tenant. Raises ContainerError when it must not: it is ended."""

    def check_change(self, tenant: Tenant, limits: Limits) -> None:
        """A tenant is about to have these limits; in any thread. Raises ContainerError when they are refused."""

    def added(self, tenant: Tenant) -> None:
        """A tenant came (after ``start`` only)."""

    def changed(self, tenant: Tenant) -> None:
        """A tenant's limits changed: ``tenant.limits`` has them, and the guard as well."""

    async def resuming(self, tenant: Tenant, wait: float) -> None:
        """A tenant is to go on. wait: seconds for memory. Raises NvcError where it cannot: it stays as it is."""

    async def returning(self, tenant: Tenant, memory: Sequence[int]) -> str:
        """Let a suspended tenant have what it has on the host, bytes for each GPU; why it cannot now, "": it can."""
        return ""

    async def settled(self) -> None:
        """Returns when what changed before is in force."""

    def gone(self, tenant: Tenant) -> None:
        """A tenant is gone; the guard knows it no more."""

    def sampled(self, uuid: str, now: int, computed: Mapping[int, int] | None) -> None:
        """The driver answered about a GPU: tenant -> nanoseconds that it computed; None: nothing tells.

        now: CLOCK_MONOTONIC, in nanoseconds.
        """

    def look(self) -> None:
        """Every quarter of a second: what ends by itself. Raises nothing."""

    def reload(self) -> None:
        """``agent.settings`` are new."""

    async def stop(self) -> None:
        """The agent ends; the guard is still there. Raises nothing."""

    # What it can tell for the status; the first part that has an answer is believed.

    def policies(self) -> Mapping[str, str]:
        """UUID of a GPU -> name of its policy, where it has one of its own."""
        return {}

    def shares(self, tenant: Tenant, gpu: int) -> ScheduledShare | None:
        """Of a GPU's time; None: not known here."""
        return None

    def reported(self, tenant: Tenant, uuid: str) -> int:
        """Bytes that the driver reports of the tenant's processes on a GPU; 0: not known here."""
        return 0

    def computed(self, tenant: Tenant, uuid: str) -> tuple[float | None, int]:
        """(part of the GPU's time that samples say, None: not known; nanoseconds in all)."""
        return None, 0

    def energy(self, tenant: Tenant, uuid: str) -> float | None:
        """Joules of a GPU for what the tenant computed, in all; None: not known here."""
        return None

    def gpu_energy(self, uuid: str) -> float | None:
        """Joules of a GPU while it had tenants; None: not known here."""
        return None

    def xids(self, number: int, uuid: str) -> Mapping[int, int]:
        """Xid -> how often the driver reported it, of a tenant's processes on a GPU; number 0: of no tenant's."""
        return {}

    def findings(self) -> Mapping[str, Finding]:
        """UUID of a GPU -> its balance."""
        return {}

    def attached(self) -> Sequence[StatusTenant]:
        """Tenants that are scheduled without the guard."""
        return ()
