"""Another process's thread, stopped at each of its system calls: to end the process exactly there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from nvc.linux import const

#: sys/ptrace.h; struct ptrace_syscall_info up to the arguments (op: 1 entry, 2 exit).
_SYSCALL, _GET_SYSCALL_INFO, _TRACESYSGOOD = 24, 0x420E, 1
_INFO = struct.Struct("=B3xIQQ7Q")
_ENTRY = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Stop(NamedTuple):
    """A stop at a system call. number and arguments: of an entry; zeros at its exit."""

    is_entry: bool
    number: int
    arguments: tuple[int, ...]


def threads_named(pid: int, name: str) -> list[int]:
    """Threads of a process by what they call themselves. Raises OSError when it is gone."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # others may end meanwhile
            if (task / "comm").read_text().strip() == name:
                found.append(int(task.name))
    return found


class Traced:
    """A thread of the process, traced by the calling thread alone until this context is left.

    seconds: how long ``stops`` waits for the next one.
    """

    def __init__(self, pid: int, thread: int, *, seconds: float = 30) -> None:
        self.pid, self.thread, self.seconds = pid, thread, seconds
        self._is_traced = False

    def __enter__(self) -> Self:
        self._ptrace(const.PTRACE_SEIZE, 0, _TRACESYSGOOD)
        self._is_traced = True
        self._ptrace(const.PTRACE_INTERRUPT)
        self._stopped()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_traced:
            self._ptrace(const.PTRACE_DETACH)

    def stops(self) -> Iterator[Stop]:
        """Every stop from here on; the thread stands still between two. Raises AssertionError, OSError."""
        while True:
            self._ptrace(_SYSCALL)
            if os.WSTOPSIG(self._stopped()) != signal.SIGTRAP | 0x80:
                continue
            room = ctypes.create_string_buffer(_INFO.size)
            self._ptrace(_GET_SYSCALL_INFO, _INFO.size, ctypes.addressof(room))
            operation, _, _, _, number, *arguments = _INFO.unpack(room.raw)
            is_entry = operation == _ENTRY
            yield Stop(is_entry, number if is_entry else 0, tuple(arguments) if is_entry else ())

    def memory(self, address: int, size: int) -> bytes:
        """Of the process. Raises OSError."""
        with open(f"/proc/{self.pid}/mem", "rb", 0) as file:
            file.seek(address)
            return file.read(size)

    def kill(self) -> None:
        """SIGKILL to the process; its thread is reaped, the process is its parent's to reap."""
        os.kill(self.pid, signal.SIGKILL)
        self._is_traced = False
        while not os.WIFSIGNALED(os.waitpid(self.thread, const.WAIT_ALL)[1]):
            pass

    def _ptrace(self, request: int, address: int = 0, data: int = 0) -> None:
        if _libc.ptrace(request, self.thread, address, data) < 0:
            raise OSError(ctypes.get_errno(), f"ptrace {request:#x}")

    def _stopped(self) -> int:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            found, status = os.waitpid(self.thread, os.WNOHANG | const.WAIT_ALL)
            if found:
                assert os.WIFSTOPPED(status), f"the thread ended: {status:#x}"
                return status
            time.sleep(0.0002)
        raise AssertionError("the thread makes no system call")
