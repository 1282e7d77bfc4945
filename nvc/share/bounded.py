"""Work on a tenant's files in a child process with a time limit.

A tenant's descriptor can be a file of a file system that the tenant serves (FUSE), and closing a copy of it may wait
for ever, out of reach of any signal. A child that hangs so is left to itself; the caller goes on.
"""

from __future__ import annotations

import os
import select
import time

from nvc.base.errors import ContainerError, NvcError
from nvc.linux.fd import Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_LIMIT = 4096
_PACKET = 512
#: The same on every Linux; the module signal costs what a start can do without.
_SIGKILL = 9
#: Children that had not ended when their caller went on.
_left: set[int] = set()


def run(work: Callable[[], str], seconds: float, limit: int = _LIMIT) -> str:
    """What ``work`` returns, at most ``limit`` bytes of it. Raises TimeoutError, OSError when no child is to be had.

    work: called in a copy of this process that shares no descriptor with it but the first three; it must not raise.
    """
    reading, child = _begin(work, limit)
    try:
        return _read(reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
        os.kill(child, _SIGKILL)
        _reap({child})


def each(works: Sequence[Callable[[], str]], seconds: float) -> list[str]:
    """What each returns, all at a time, as ``run``; "no answer in time" for one that did not come. Raises OSError."""
    children: dict[int, int] = {}
    said = ["no answer in time"] * len(works)
    try:
        for work in works:
            reading, child = _begin(work, _LIMIT)
            children[child] = reading
        end = time.monotonic() + seconds
        for place, reading in enumerate(children.values()):
            try:
                said[place] = _read(reading, end)
            except TimeoutError:
                continue
    finally:
        for child, reading in children.items():
            os.close(reading)
            os.kill(child, _SIGKILL)
        _reap(set(children))
    return said


def files(work: Callable[[], Iterable[tuple[int, Fd]]], seconds: float) -> dict[int, Fd]:
    """The files that ``work`` yields by number: descriptors of ours, of what a child had looked at.

    Raises TimeoutError, ContainerError with what ``work`` raised, OSError.
    """
    import socket  # takes long, and few ask

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)

    def send() -> str:
        try:
            for number, file in work():
                socket.send_fds(theirs, [str(number).encode()], [file.fileno()])
            theirs.send(b"end")
        except (OSError, NvcError) as error:
            theirs.send(str(error).encode()[:_PACKET])
        return ""

    found: dict[int, Fd] = {}
    with ours:
        with theirs:
            reading, child = _begin(send, _LIMIT, theirs.fileno())
        try:
            end = time.monotonic() + seconds
            while True:
                ours.settimeout(max(end - time.monotonic(), 0.001))
                packet, given, _, _ = socket.recv_fds(ours, _PACKET, 1)
                if not given:
                    break
                found[int(packet)] = Fd(given[0], f"a copy of {packet.decode()}")
        finally:
            os.close(reading)
            os.kill(child, _SIGKILL)
            _reap({child})
    if packet != b"end":
        raise ContainerError(packet.decode("utf-8", "replace") or "the child ended early")
    return found


def _begin(work: Callable[[], str], limit: int, kept: int = -1) -> tuple[int, int]:
    """A descriptor that its answer is read from, and the child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(work, writing, limit, kept)
    os.close(writing)
    return reading, child


def _answer(work: Callable[[], str], writing: int, limit: int, kept: int) -> None:
    """In the child; does not return."""
    try:
        # Also the locks that the parent holds by its descriptors: a child that hangs must not keep them.
        last = 2
        for number in sorted({writing, kept} - {-1}):
            os.closerange(last + 1, number)
            last = number
        os.closerange(last + 1, 1 << 20)
        data = work().encode("utf-8", "replace")[:limit]
        while data:
            data = data[os.write(writing, data) :]
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


def _reap(children: set[int]) -> None:
    """Killed children end within milliseconds, or hang in the kernel and are not waited for: a later call does."""
    _left.difference_update({child for child in tuple(_left) if _has_ended(child)})
    end = time.monotonic() + 0.2
    while children:
        children = {child for child in children if not _has_ended(child)}
        if time.monotonic() > end:
            break
        if children:
            time.sleep(0.001)
    _left.update(children)


def _has_ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:  # another thread was here first
        return True
