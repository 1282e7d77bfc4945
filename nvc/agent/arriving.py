"""The entry in the store of a container whose listener arrived."""

from __future__ import annotations

import asyncio
import time

from nvc.agent.ending import EndedError
from nvc.base.errors import ContainerError
from nvc.share import store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.container_state import ContainerProcess
    from nvc.share.entry import Entry

#: Seconds that a container's entry may come after its listener: a hook of the engine's own may be slow.
ENTRY_SECONDS = 3.0


async def entry(process: ContainerProcess, shares: str) -> Entry:
    """As soon as there is one; the caller closes it. shares: the store's directory.

    Raises ContainerError: EndedError where there is one of a process that has ended.
    """
    direct = store.entry(process.container, shares)  # most have their id's name: the others need not be read
    if direct is not None:
        if _is_of(direct, process):
            return direct
        direct.close()
    until = time.monotonic() + ENTRY_SECONDS
    while True:
        found, is_known = await asyncio.to_thread(_look, process, shares)
        if found is not None:
            return found
        if time.monotonic() > until:
            raise (EndedError if is_known else ContainerError)(
                f"container {process.container} has no share: {shares}/{process.container} is missing",
                hint="its nvc-hook makes it at prestart; a seccomp profile with a listener alone is not enough",
            )
        await asyncio.sleep(0.05)


def _look(process: ContainerProcess, shares: str) -> tuple[Entry | None, bool]:
    """It, or None, and whether there is one of a process that has ended."""
    wanted, is_known = None, False
    for found in store.each(shares):
        is_known |= _has_name(found, process)
        if wanted is None and _is_of(found, process):
            wanted = found
        else:
            found.close()
    return wanted, is_known


def _is_of(found: Entry, process: ContainerProcess) -> bool:
    """Whether it is the process's container's, and that lives."""
    return _has_name(found, process) and found.is_alive()


def _has_name(found: Entry, process: ContainerProcess) -> bool:
    record = found.record
    # The pid too: what an earlier container of this name left must not count.
    named = process.container in (record.key, record.container)
    return record.pid == process.first if process.first and record.pid else named
