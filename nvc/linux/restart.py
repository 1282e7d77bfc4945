"""System calls of other processes that are made once more, without the processes noticing: ptrace, and nobody's signal.

PTRACE_INTERRUPT wakes a thread as a signal would: a wait that can be interrupted ends with ERESTARTSYS, and as there
is no signal to deliver, the kernel makes the same call again. No handler runs, no parent is told, nothing stops but for
the time between two system calls of ours. (SIGSTOP and SIGCONT do the same, seen by everybody.)
"""

from __future__ import annotations

import errno
import os
import time

from nvc.linux import const, syscalls
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: For one thread to leave its wait; for all of them.
_ONE_SECONDS, _ALL_SECONDS = 0.2, 1.0
_POLL_SECONDS = 0.0002


def restart(threads: Sequence[tuple[int, int]]) -> int:
    """Let each of (process, thread), host's numbers, leave the wait that it is in, and enter it again. How many did.

    Needs CAP_SYS_PTRACE. Raises nothing: a thread that ended, or cannot be interrupted, is left as it is.
    """
    left: list[bool] = []

    def run() -> None:
        end = time.monotonic() + _ALL_SECONDS
        for process, thread in threads:
            if time.monotonic() > end:
                break
            left.append(_restart(process, thread))

    if threads:
        import threading

        # The tracer is a thread: when it ends, the kernel lets go of everything that it still has.
        tracer = threading.Thread(target=run)
        tracer.start()
        tracer.join()
    return sum(left)


def _restart(process: int, thread: int) -> bool:
    try:
        syscalls.ptrace(const.PTRACE_SEIZE, thread)
    except SyscallError as error:
        return error.errno == errno.EPERM and _told(process, thread)
    try:
        syscalls.ptrace(const.PTRACE_INTERRUPT, thread)
        status = _stopped(thread)
        if status < 0:
            return False
        # A signal that came at the same time is delivered, as it would have been.
        came = os.WSTOPSIG(status) if status >> 16 != const.PTRACE_EVENT_STOP else 0
        syscalls.ptrace(const.PTRACE_DETACH, thread, came)
    except OSError:  # it ended
        return False
    return True


def _stopped(thread: int) -> int:
    """What wait says when it stops; -1: it does not, or ended."""
    end = time.monotonic() + _ONE_SECONDS
    while time.monotonic() < end:
        found, status = os.waitpid(thread, os.WNOHANG | const.WAIT_ALL)
        if found:
            return status if os.WIFSTOPPED(status) else -1
        time.sleep(_POLL_SECONDS)
    return -1


def _told(process: int, thread: int) -> bool:
    """Somebody traces it. Then a signal that is ignored wakes it too, and is seen by its tracer only."""
    try:
        syscalls.tgkill(process, thread, const.SIGURG)
    except SyscallError:
        return False
    return True
