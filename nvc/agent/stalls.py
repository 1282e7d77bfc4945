"""Threads of the guard that a container's FUSE server keeps in the kernel, out of reach of SIGKILL.

Such a thread waits without any lock, and its tenant is stopped meanwhile (native/guard/wait.c). But an agent that is
ended while one waits does not go: it keeps its lock, and open files of all containers. So a thread that waits for
longer than HELD_UP_S is let go by aborting the FUSE connection (``nvc.linux.fuse``), and at once where the agent ends
or was killed.
"""

from __future__ import annotations

import asyncio
import time

from nvc.agent.state import inflight
from nvc.linux import fuse
from nvc.share import bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.agent.journal import Journal
    from nvc.bindings.guard import Guard

#: Seconds that a thread may wait, and that letting it go may take.
HELD_UP_S = 10.0
_SECONDS = 2.0
#: A wait that is shorter is not worth a look when the agent ends.
_SHORT_NS = 200_000_000


class Stalls:
    """Tenants whose threads are known to wait for long. For the agent's loop."""

    def __init__(self, guard: Guard, journal: Journal) -> None:
        self._guard = guard
        self._journal = journal
        #: Tenant's number -> when it is looked at next.
        self._waiting: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def stuck(self, tenant: int) -> None:
        """The guard says that its thread waits."""
        self._waiting.setdefault(tenant, time.monotonic())

    def look(self) -> None:
        """Let those go that have waited for too long. Raises nothing."""
        now = time.monotonic()
        for tenant in [tenant for tenant, when in self._waiting.items() if when <= now]:
            pid, waited = self._waits(tenant)
            if not pid:
                del self._waiting[tenant]
            elif waited > HELD_UP_S * 1e9:
                self._waiting[tenant] = now + HELD_UP_S
                task = asyncio.ensure_future(self._release(tenant, pid))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def end(self, tenants: Iterable[int]) -> None:
        """The agent is about to end: release the threads that wait. Raises nothing."""
        for task in self._tasks:
            task.cancel()
        pids = [pid for pid, waited in map(self._waits, tenants) if pid and waited > _SHORT_NS]
        if pids:
            self._tell(release(pids), pids)

    async def _release(self, tenant: int, pid: int) -> None:
        self._tell(await asyncio.to_thread(release, [pid]), [pid], tenant)

    def _waits(self, tenant: int) -> tuple[int, int]:
        try:
            status = self._guard.status(tenant)
        except OSError:
            return 0, 0
        return status.waits_for, status.waits_ns

    def _tell(self, said: str, pids: list[int], tenant: int = 0) -> None:
        self._journal.write("aborted", tenant=tenant, pids=pids, connections=said)


def release(pids: Iterable[int]) -> str:
    """Abort the FUSE connections by which these processes keep a thread of ours waiting; their numbers, or what failed.

    In a child: to look at them may take as long.
    """

    def work() -> str:
        try:
            return " ".join(str(number) for pid in pids for number in fuse.release(pid, _group(pid)))
        except OSError as error:
            return str(error)

    try:
        return bounded.run(work, _SECONDS)
    except OSError as error:
        return str(error)


def release_undead(pid: int, directory: str) -> bool:
    """Whether ``pid``, once the agent of ``directory``, was killed and has to be let go; then that was tried."""
    if not fuse.is_undead(pid):
        return False
    release(inflight.waited_for(directory))
    return True


def _group(pid: int) -> str:
    from nvc.agent.waiting import group_of

    own = group_of("self")
    found = group_of(str(pid))
    return "" if f"{own}/".startswith(f"{found}/") else found
