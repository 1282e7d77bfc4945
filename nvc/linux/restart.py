"""Restarts blocked system calls of other processes, invisibly for them: ptrace without a signal.

PTRACE_INTERRUPT wakes a thread as a signal would: a wait that can be interrupted ends with ERESTARTSYS, and as there
is no signal to deliver, the kernel restarts the call. No handler runs, no parent gets SIGCHLD, and the thread is
stopped only between two system calls of this process. (SIGSTOP and SIGCONT do the same, visible to the parent.)
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
    """Interrupt the wait of each (process, thread), host's numbers, which then starts again. Returns how many did.

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

        # The tracer is a thread: when it ends, the kernel detaches from all that it still traces.
        tracer = threading.Thread(target=run)
        tracer.start()
        tracer.join()
    return sum(left)


def _restart(process: int, thread: int) -> bool:
    try:
        syscalls.ptrace(const.PTRACE_SEIZE, thread)
    except SyscallError as error:
        return error.errno == errno.EPERM and _signalled(process, thread)
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
    """Its wait status when it stops; -1: it does not, or ended."""
    end = time.monotonic() + _ONE_SECONDS
    while time.monotonic() < end:
        found, status = os.waitpid(thread, os.WNOHANG | const.WAIT_ALL)
        if found:
            return status if os.WIFSTOPPED(status) else -1
        time.sleep(_POLL_SECONDS)
    return -1


def _signalled(process: int, thread: int) -> bool:
    """For a thread with another tracer: SIGURG, ignored by default, wakes it too; only that tracer sees it."""
    try:
        syscalls.tgkill(process, thread, const.SIGURG)
    except SyscallError:
        return False
    return True
