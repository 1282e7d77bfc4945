"""The agent removes ended containers' entries from the store, so that no start has to look for them."""

from __future__ import annotations

import asyncio
import contextlib

from nvc.base.errors import NvcError
from nvc.share import store
from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.agent.state.records import Member


class EndedShares:
    """Of tenants that are over. For the agent's one thread."""

    def __init__(self, shares: str) -> None:
        """shares: the store's directory."""
        self._shares = shares
        self._members: set[Member] = set()
        self._task: asyncio.Future[None] | None = None

    def add(self, members: Iterable[Member]) -> None:
        self._members.update(members)

    def look(self) -> None:
        """Begin to remove what has ended since the last time; in a thread: starts have the store's lock."""
        if self._members and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._remove())

    async def _remove(self) -> None:
        members, self._members = self._members, set()
        self._members |= await asyncio.to_thread(self._removed, members)

    def _removed(self, members: Iterable[Member]) -> set[Member]:
        """Those with a first process yet, mostly a zombie."""
        left = {one for one in members if one.pid and start_time(one.pid) == one.start_time}
        with contextlib.suppress(NvcError, OSError):  # what cleans all of the store is next
            store.clean(self._shares, [one.key for one in members if one not in left])
        return left
