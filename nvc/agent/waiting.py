"""How the agent waits, for monitors and for a processor: without keeping its loop, and so that no tenant makes another
one wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

from nvc.base.errors import ContainerError
from nvc.linux import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from nvc.agent.tenant import Tenant
    from nvc.guard.publications import Publications

    class File(Protocol):
        def fileno(self) -> int: ...


#: Of the agent's threads (sched(7)), which compute little: hundreds of processes that end at once are not before them.
NICE = -10


def prefer() -> None:
    """Let the calling thread have its turn before others; nothing without CAP_SYS_NICE. Its children are as usual."""
    with contextlib.suppress(OSError):
        syscalls.sched_setattr(min(NICE, os.getpriority(os.PRIO_PROCESS, 0)))


def threads(most: int, name: str) -> ThreadPoolExecutor:
    """For what the loop does not wait for itself; preferred as the loop is: one that has Python's lock keeps it."""
    return ThreadPoolExecutor(most, name, initializer=prefer)


#: Seconds that one task keeps the agent's loop from others.
TURN_S = 0.005


class Turn:
    """Of a task that goes through all tenants. used: seconds that it had of a processor by the last ``pause``."""

    def __init__(self) -> None:
        self.used = 0.0
        self._begin()

    def _begin(self) -> None:
        self._until, self._since = time.monotonic() + TURN_S, time.thread_time()

    async def pause(self, *, at_once: bool = False) -> None:
        """It is others' turn when this one has lasted TURN_S. at_once: or now."""
        if at_once or time.monotonic() > self._until:
            self.used += time.thread_time() - self._since
            await asyncio.sleep(0)
            self._begin()


async def readable(file: File) -> None:
    """Until there is something to read, or its other end is gone."""
    loop, descriptor = asyncio.get_running_loop(), file.fileno()  # of other objects a text is made, for an error
    ready: asyncio.Future[None] = loop.create_future()

    def now() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, now)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


class Published:
    """What a tenant's supervisor publishes next, for those that wait for it.

    The loop does not wait for the publications' epoll descriptor: that would be one more way from each supervisor's
    file to a waiter, of which the kernel allows 500, and a supervisor can make as many (eventpoll.c: path_limits).
    """

    #: Seconds between two looks while a caller waits.
    PAUSE = 0.002

    def __init__(self, publications: Publications) -> None:
        self._publications = publications
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        self._is_looking = False
        publications.listen(self._hear)

    async def wait(self, number: int, seconds: float) -> bool:
        """False: it published nothing in that time."""
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(number, set()).add(heard)
        self._look_soon(loop)
        try:
            async with asyncio.timeout(seconds):
                await heard
        except TimeoutError:
            return False
        finally:
            self._waiting[number].discard(heard)
            if not self._waiting[number]:
                del self._waiting[number]
        return True

    def _look_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and not self._is_looking:
            self._is_looking = True
            loop.call_later(self.PAUSE, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_looking = False
        self._publications.collect()
        self._look_soon(loop)

    def _hear(self, number: int) -> None:
        for heard in self._waiting.get(number, ()):
            if not heard.done():
                heard.set_result(None)


class Threads:
    """For requests that a monitor may answer late: a thread each, and no more than one for a tenant at a time."""

    #: As many monitors can be late at a time until others wait; requests of one tenant that wait for its monitor: as
    #: many as a group has containers, and of admission's connections (nvc/agent/admission.py) few.
    MOST, OF_ONE = 256, 64

    def __init__(self) -> None:
        self._pool = threads(self.MOST, "nvc-monitor")

    async def run(self, tenant: Tenant, act: Callable[[], None]) -> None:
        """Raises ContainerError where too many wait for this tenant, or its monitor hangs; what ``act`` raises."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        if tenant.waiting >= self.OF_ONE:
            raise _hangs(tenant)
        tenant.waiting += 1
        try:
            async with tenant.turn:
                if tenant.hung_at > since:  # for one before this
                    raise _hangs(tenant)
                await loop.run_in_executor(self._pool, act)
        except TimeoutError:
            tenant.hung_at = loop.time()
            raise
        finally:
            tenant.waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _hangs(tenant: Tenant) -> ContainerError:
    return ContainerError(f"container {tenant.name}: its monitor does not answer", hint="end the container")
