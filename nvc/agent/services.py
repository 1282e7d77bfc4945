"""Services among the scheduler's tenants: what they do, whether they can be served in time, how long they wait."""

from __future__ import annotations

import time

from nvc.base.errors import ContainerError
from nvc.guard.scheduling import Tenant, service_bounds
from nvc.guard.service import AWAY_US, LEAST_US, SWITCH_US

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nvc.agent.scheduled import Decided, Known
    from nvc.share.limits import Limits

#: Policies that serve nothing first: in "fair" every tenant is off for a part of each period.
_WITHOUT = ("fair", "native")


class Services:
    """For the scheduler, of whose tenants they are."""

    def __init__(self, known: Mapping[int, Known], on: Mapping[str, Mapping[int, int]]) -> None:
        """known: by number. on: UUID -> numbers of its tenants, and their index of it."""
        self._known, self._on = known, on
        #: UUID -> numbers of those with a latency.
        self._there_are: dict[str, set[int]] = {}
        #: UUID -> service -> (microseconds that it waits at most, how it is served).
        self._waits: dict[str, dict[int, tuple[int, str]]] = {}

    def request(self, number: int, index: int, limits: Limits | None = None) -> Tenant:
        """What ``nvc.guard.scheduling`` is to know of a tenant and its GPU with this index.

        limits: those that it is to have; None: its own.
        """
        known = self._known.get(number)
        has = known.limits if known is not None and limits is None else limits
        assert has is not None, number
        gpu, groups = has.gpus[index], known.groups[index] if known is not None else 0
        tenant = Tenant(str(number), gpu.weight, gpu.cap, gpu.priority, groups, paused=has.paused, latency=gpu.latency)
        if not gpu.latency or known is None:
            return tenant
        use = known.uses[index]
        return tenant.replace(use=use.use(time.monotonic_ns()), is_measured=use.is_measured)

    def came(self, number: int, limits: Limits) -> None:
        """A tenant, or its limits changed."""
        for gpu in limits.gpus:
            if gpu.latency:
                self._there_are.setdefault(gpu.uuid, set()).add(number)
            elif gpu.uuid in self._there_are:
                self._there_are[gpu.uuid].discard(number)

    def left(self, number: int, limits: Limits) -> None:
        for gpu in limits.gpus:
            if gpu.uuid in self._there_are:
                self._there_are[gpu.uuid].discard(number)

    def decided(self, uuid: str, numbers: Mapping[str, tuple[int, int]], decided: Decided) -> None:
        """numbers: name -> (number, index)."""
        self._waits[uuid] = {numbers[name][0]: found for name, found in decided.waits.items()}

    def waits(self, uuid: str, number: int) -> tuple[int, str]:
        """Of a service with groups; (0, "") of every other tenant."""
        return self._waits.get(uuid, {}).get(number, (0, ""))

    def sampled(self, uuid: str, now: int, computed: Mapping[int, int] | None, targets: Mapping[int, float]) -> bool:
        """Whether that changes how a service is to be served. computed: ``nvc.agent.part.Part.sampled``."""
        changed = False
        for number in sorted(self._there_are.get(uuid, ())):
            known, index = self._known[number], self._on[uuid][number]
            use = known.uses[index]
            before = use.use(now), use.is_measured
            use.sampled(now, computed.get(number, 0) if computed is not None else None, targets.get(number, 0.0))
            changed |= before != (use.use(now), use.is_measured)
        return changed

    def hint(self, number: int, word: str) -> list[str]:
        """The GPUs that are to be decided on again. word: of ``nvc.guard.service.HINTS``."""
        known = self._known.get(number)
        if known is None:
            return []
        for use in known.uses:
            use.hint(word, time.monotonic_ns())
        return [gpu.uuid for gpu in known.limits.gpus if gpu.latency]

    def check(self, uuid: str, policy: str, number: int = -1, limits: Limits | None = None, index: int = 0) -> None:
        """Whether every service of a GPU can be served in its time under a policy.

        limits: those that the tenant with this number is to have, with the GPU at ``index``. In any thread.
        Raises ContainerError.
        """
        if not self._there_are.get(uuid, set()) - {number} and not (limits is not None and limits.gpus[index].latency):
            return
        there = [(one, place) for one, place in list(self._on.get(uuid, {}).items()) if limits is None or one != number]
        found = [(known.limits.container, self.request(one, place)) for one, place, known in self._there(there)]
        if limits is not None:
            found.append((limits.container, self.request(number, index, limits)))
        _check(uuid, policy, found)

    def _there(self, places: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int, Known]]:
        for number, index in places:
            known = self._known.get(number)
            if known is not None:
                yield number, index, known

    def clear(self) -> None:
        self._waits.clear()


def _check(uuid: str, policy: str, found: list[tuple[str, Tenant]]) -> None:
    """found: tenants with their containers' names. Raises ContainerError."""
    names = {tenant.name: name for name, tenant in found}
    services = {tenant.name: tenant for _, tenant in found if tenant.latency}
    if services and policy in _WITHOUT:
        (first, *_) = services
        raise ContainerError(
            f"GPU {uuid}: container {names[first]} is a service, and policy {policy} serves none first",
            hint="nvc-py share policy weighted",
        )
    for name, bound in service_bounds(tuple(tenant for _, tenant in found)).items():
        if bound > services[name].latency:
            raise ContainerError(
                f"GPU {uuid}: latency={services[name].latency / 1000:g}ms of container {names[name]} cannot be kept: "
                f"beside {len(found) - 1} others it would wait {bound / 1000:g} ms, a slice of {LEAST_US} us at least "
                f"and a switch of {SWITCH_US} us for each of their groups, and {AWAY_US} us to leave the service's",
                hint="take another GPU, a longer latency, or weights that differ less; or wait for one of them to end",
            )
