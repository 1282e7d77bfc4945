"""Forked children with a deadline, sealed copies of programs in memory, and names of processes."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import time

from nvc.linux import const, syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_COPY_BYTES = 1 << 20
_POLL_SECONDS = 0.002
_EXIT_ON_ERROR = 1
#: proc(5): of /proc/PID/stat, the place behind the name; linux/sched.h.
_FLAGS, _PF_EXITING = 6, 0x4
_LOOKS = 10
_ANCESTORS = 64
#: The process that this one works for, where it was forked by another one (``nvc.prefork``), and when that started
#: (field 22 of its stat); 0 for none.
caller = 0
caller_started = 0


def fork(function: Callable[[], int | None]) -> int:
    """Run ``function`` in a forked child; its result (None: 0) is the exit status, any exception makes it 1.

    Returns the child's pid. The child never returns into the caller's code and runs none of its exit handlers.
    """
    child = os.fork()
    if child:
        return child
    status = _EXIT_ON_ERROR
    try:
        status = function() or 0
    finally:
        os._exit(status)


def wait(pid: int, seconds: float) -> int:
    """Wait for the child ``pid`` and reap it: exit status, or minus the signal that ended it.

    After ``seconds`` it is killed, reaped, and TimeoutError raised.
    """
    deadline = time.monotonic() + seconds
    try:
        process: Fd | None = Fd(os.pidfd_open(pid), f"pid {pid}")
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        process = None  # before Linux 5.3: poll
    try:
        while True:
            left = deadline - time.monotonic()
            if left > 0 and process is not None:
                select.select([process.fileno()], [], [], left)
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            if left <= 0:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
                raise TimeoutError(errno.ETIMEDOUT, f"process {pid} did not end within {seconds:g} s")
            if process is None:
                time.sleep(_POLL_SECONDS)
    finally:
        if process is not None:
            process.close()


def is_stopped(child: int) -> bool:
    """Whether a child of this process was stopped (SIGSTOP), which a container's root with the machine's processes can
    do to one that waits: what is asked of it would wait too.
    """
    try:
        return os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def limit_life() -> None:
    """For a helper that unwinds: have the kernel end it some time after its call, also when its caller has died."""
    from rpc import stop

    try:
        timer = syscalls.timer_create(time.CLOCK_MONOTONIC, 9)
    except SyscallError:
        return  # a kernel without timers, or RLIMIT_SIGPENDING: its caller has to end it
    stop.kill_after = lambda seconds: syscalls.timer_settime(timer, seconds)


def close_from(first: int) -> None:
    """Close every descriptor from ``first`` on."""
    try:
        syscalls.close_range(first)
    except SyscallError as error:
        if error.errno != errno.ENOSYS:
            raise
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def close_all_but(*keep: int) -> None:
    """Close every descriptor that is not among ``keep``."""
    lowest = 0
    for number in sorted(set(keep)):
        if number > lowest:  # in Python 3.11 closerange(0, 0) closes everything
            os.closerange(lowest, number)
        lowest = number + 1
    close_from(lowest)


def sealed_copy(source: Fd, name: str) -> Fd:
    """A sealed copy of the file in memory, for execution by descriptor.

    A process in the same namespace can open the running program's executable through /proc/PID/exe; with this copy
    that is never the host's file (CVE-2024-0135, CVE-2019-5736). Raises OSError.
    """
    copy = Fd(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), name)
    offset = 0
    while sent := os.sendfile(copy.fileno(), source.fileno(), offset, _COPY_BYTES):
        offset += sent
    seals = const.F_SEAL_SEAL | const.F_SEAL_SHRINK | const.F_SEAL_GROW | const.F_SEAL_WRITE
    fcntl.fcntl(copy.fileno(), const.F_ADD_SEALS, seals)
    return copy


def process_name(pid: int) -> str:
    """A process's name, fit for a terminal; "" when it ended."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read(64).rstrip("\n")
    except OSError:
        return ""
    return "".join(char if char.isprintable() else "?" for char in name)


def first_of_namespace() -> tuple[int, int]:
    """The outermost one of this process (its caller) and its ancestors that is in the same pid namespace: its number in
    /proc, and in that namespace. (0, 0) where /proc is of that namespace itself, or does not say.

    In a container's hook it is the container's first process. That has the number 1, unless the container joined the
    namespace (of a pod, or with ``--pid=container:``).
    """
    found = 0, 0
    depth, pid = 0, str(caller or "self")
    try:
        for _ in range(_ANCESTORS):
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            numbers = fields["NSpid"].split()
            depth = depth or len(numbers)
            if depth == 1 or len(numbers) != depth:
                return found
            found = int(numbers[0]), int(numbers[-1])
            pid = fields["PPid"]
    except (OSError, KeyError, ValueError):
        pass
    return 0, 0


def thread_id(pid: int, number: int) -> int:
    """A thread of a process by the number that this process knows it by, where that is the one of its own namespace.

    Raises OSError; LookupError where it has no such thread.
    """
    names = os.listdir(f"/proc/{pid}/task")
    if str(number) in names:
        return number
    for name in names:
        with open(f"/proc/{pid}/task/{name}/status", encoding="utf-8", errors="replace") as file:
            innermost = next(line.split()[-1] for line in file if line.startswith("NSpid:"))
        if innermost == str(number):
            return int(name)
    raise LookupError(f"process {pid} has no thread {number}")


def is_ending(pid: int) -> bool:
    """Whether a process has ended, or all of its threads are about to: it makes no call any more."""
    for _ in range(_LOOKS):
        try:
            names = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return True
        try:
            return all(_flags(f"/proc/{pid}/task/{name}/stat") & _PF_EXITING for name in names)
        except OSError:
            continue  # a thread has ended meanwhile, and another one may have begun
    return False


def _flags(stat: str) -> int:
    """Raises OSError."""
    with open(stat, "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[_FLAGS])
