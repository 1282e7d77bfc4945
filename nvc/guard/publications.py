"""Which tenants' supervisors have published something: heard of, not looked for (native/supervisor/publish.c)."""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.guard.held import HeldTenant

#: What one call of epoll_wait(2) returns at the most.
_EVENTS = 1024


class Publications:
    """Of all tenants, for any number of readers, each of which hears of each tenant once. For one thread.

    An event counts once for each write of a supervisor, so nothing has to be read from it, and one that writes all the
    time costs no more than one that wrote once.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._by_descriptor: dict[int, int] = {}
        self._readers: list[Reader] = []
        self._listeners: list[Callable[[int], None]] = []

    def close(self) -> None:
        self._epoll.close()

    def reader(self) -> Reader:
        """That has heard of none of the tenants that are there."""
        made = Reader(self)
        made.numbers.update(self._by_descriptor.values())
        self._readers.append(made)
        return made

    def listen(self, listener: Callable[[int], None]) -> None:
        """Call it with the number of each tenant that is heard of."""
        self._listeners.append(listener)

    def add(self, number: int, tenant: HeldTenant) -> None:
        self._by_descriptor[tenant.published] = number
        self._epoll.register(tenant.published, select.EPOLLIN | select.EPOLLET)
        self._tell(number)

    def drop(self, number: int, tenant: HeldTenant) -> None:
        """Before its descriptors are closed. No reader hears of it any more."""
        del self._by_descriptor[tenant.published]
        self._epoll.unregister(tenant.published)
        for reader in self._readers:
            reader.numbers.discard(number)

    def collect(self) -> None:
        """Hear of what was published by now, of each tenant once: what is written meanwhile is heard of next time."""
        for _ in range(len(self._by_descriptor) // _EVENTS + 1):
            events = self._epoll.poll(0, _EVENTS)
            for descriptor, _ in events:
                self._tell(self._by_descriptor[descriptor])
            if len(events) < _EVENTS:
                break

    def _tell(self, number: int) -> None:
        for reader in self._readers:
            reader.numbers.add(number)
        for listener in self._listeners:
            listener(number)


class Reader:
    """numbers: of tenants of which it has not heard."""

    def __init__(self, publications: Publications) -> None:
        self._publications = publications
        self.numbers: set[int] = set()

    def take(self) -> set[int]:
        """Those that published something, or came, since the last time: the caller's."""
        self._publications.collect()
        found, self.numbers = self.numbers, set()
        return found
