"""Work on a tenant's files in a child process with a time limit.

A tenant's descriptor can be a file of a file system that the tenant serves (FUSE), and closing a copy of it may wait
for ever, out of reach of any signal. A child that hangs so is left to itself; the caller goes on.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LIMIT = 4096
#: The same on every Linux; the module signal costs what a start can do without.
_SIGKILL = 9


def run(work: Callable[[], str], seconds: float) -> str:
    """What ``work`` returns, at most 4096 bytes of it. Raises TimeoutError, OSError when there is no child to be had.

    work: called in a copy of this process that shares no descriptor with it but the first three; it must not raise.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(work, writing)
    os.close(writing)
    try:
        return _read(reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
        os.kill(child, _SIGKILL)
        _reap(child)


def _answer(work: Callable[[], str], writing: int) -> None:
    """In the child; does not return."""
    try:
        # Also the locks that the parent holds by its descriptors: a child that hangs must not keep them.
        os.closerange(3, writing)
        os.closerange(writing + 1, 1 << 20)
        os.write(writing, work().encode("utf-8", "replace")[:_LIMIT])
    finally:
        os._exit(0)


def _read(reading: int, end: float) -> str:
    found = b""
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            raise TimeoutError("no answer in time")
        some = os.read(reading, _LIMIT)
        if not some:
            return found.decode("utf-8", "replace")
        found += some


def _reap(child: int) -> None:
    """A killed child ends within milliseconds, or hangs in the kernel and is not waited for."""
    end = time.monotonic() + 0.2
    while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < end:
        time.sleep(0.001)
