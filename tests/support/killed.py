"""A function in a child that is killed at one of its system calls: every state that it can leave."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

#: sys/ptrace.h
_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
_TRACESYSGOOD, _EXITKILL = 1, 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def killed_at(call: int, body: Callable[[], object]) -> bool:
    """Run ``body`` in a child and kill it at the entry of its ``call``-th system call; False: it ended before."""
    pid = os.fork()
    if pid == 0:
        try:
            _libc.ptrace(_TRACEME, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            body()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    _libc.ptrace(_SETOPTIONS, pid, 0, _TRACESYSGOOD | _EXITKILL)
    stops, passed = 0, 0
    while True:
        _libc.ptrace(_SYSCALL, pid, 0, passed)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            return False
        number = os.WSTOPSIG(status)
        passed = 0 if number == signal.SIGTRAP | 0x80 else number
        # Entry and exit of each call are a stop of the same kind.
        stops += passed == 0
        if stops == 2 * call + 1:
            os.kill(pid, signal.SIGKILL)
            while not os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
                pass
            return True
