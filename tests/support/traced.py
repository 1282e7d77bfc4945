"""A process that is held by ptrace(2): it does nothing, and its parent gets no report as of a stopped one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

#: linux/ptrace.h; linux/wait.h.
_SEIZE, _INTERRUPT, _DETACH, _WALL = 0x4206, 0x4207, 17, 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """Held in the block, unless it ends."""
    _ptrace(_SEIZE, pid)
    _ptrace(_INTERRUPT, pid)
    os.waitpid(pid, _WALL)
    try:
        yield
    finally:
        try:
            _ptrace(_DETACH, pid)
        except ProcessLookupError:
            pass  # it was killed
        try:
            os.waitpid(pid, _WALL | os.WNOHANG)
        except ChildProcessError:
            pass


def _ptrace(request: int, pid: int) -> None:
    if _libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), None, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
