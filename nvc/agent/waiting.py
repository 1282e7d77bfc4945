"""How the agent waits for monitors: without keeping its loop, and so that none makes another tenant wait."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from nvc.agent.tenant import Tenant

    class File(Protocol):
        def fileno(self) -> int: ...


async def readable(file: File) -> None:
    """Until there is something to read, or its other end is gone."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def now() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(file, now)
    try:
        await ready
    finally:
        loop.remove_reader(file)


class Threads:
    """For requests that a monitor may answer late: a thread each, and no more than one for a tenant at a time."""

    #: As many monitors can be late at a time until others wait.
    MOST = 256

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.MOST, "nvc-monitor")

    async def run(self, tenant: Tenant, act: Callable[[], None]) -> None:
        """Raises what ``act`` raises."""
        async with tenant.turn:
            await asyncio.get_running_loop().run_in_executor(self._pool, act)

    def close(self) -> None:
        self._pool.shutdown(wait=False)
