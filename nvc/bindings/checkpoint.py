"""CUDA's checkpoint functions: another process, given by its pid, gives its GPU memory to the host and gets it back.

Source: cuda.h of CUDA 12.8 (driver 570), "CUDA Checkpointing" of the driver API. For a process of its own: libcuda
stays loaded, and what it reads comes from the process that is named.
"""

from __future__ import annotations

import ctypes
import os

LIBRARY = "libcuda.so.1"
#: The first branch of drivers that has them.
FIRST_DRIVER = 570

#: CUprocessState.
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
#: CUresult: a process that does not use CUDA; one whose lock took too long; no room on the GPU.
SUCCESS, OUT_OF_MEMORY, NOT_INITIALIZED, NOT_READY = 0, 2, 3, 600


class _LockArgs(ctypes.Structure):
    _fields_ = (("timeoutMs", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


class CheckpointError(Exception):
    """value: CUresult."""

    def __init__(self, function: str, value: int, name: str) -> None:
        super().__init__(f"{function}: {name}")
        self.value = value


class CheckpointLibrary:
    """libcuda with these functions. Every method raises CheckpointError."""

    def __init__(self) -> None:
        """Raises OSError when the library cannot be loaded or lacks the functions, CheckpointError."""
        self._library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOW)
        if not hasattr(self._library, "cuCheckpointProcessLock"):
            raise OSError(f"{LIBRARY} has no checkpoint functions: they came with driver {FIRST_DRIVER}")
        # A restore wants persistence mode or an initialised caller.
        self._call("cuInit", 0)

    def state(self, pid: int) -> int:
        """RUNNING, LOCKED, CHECKPOINTED or FAILED."""
        found = ctypes.c_int()
        self._call("cuCheckpointProcessGetState", pid, ctypes.byref(found))
        return found.value

    def restore_thread(self, pid: int) -> int:
        """The thread of the process that does the work."""
        found = ctypes.c_int()
        self._call("cuCheckpointProcessGetRestoreThreadId", pid, ctypes.byref(found))
        return found.value

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Its calls wait from now on, and its work has ended. NOT_READY: not within timeout_ms."""
        self._call("cuCheckpointProcessLock", pid, ctypes.byref(_LockArgs(timeout_ms)))

    def checkpoint(self, pid: int) -> None:
        """Of a locked process: its GPU memory is copied to the host and released."""
        self._call("cuCheckpointProcessCheckpoint", pid, None)

    def restore(self, pid: int) -> None:
        """The reverse; it stays locked."""
        self._call("cuCheckpointProcessRestore", pid, None)

    def unlock(self, pid: int) -> None:
        """Its calls go on."""
        self._call("cuCheckpointProcessUnlock", pid, None)

    def _call(self, function: str, *arguments: object) -> None:
        result = getattr(self._library, function)(*arguments)
        if result != SUCCESS:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(result, ctypes.byref(name))
            raise CheckpointError(function, result, (name.value or b"").decode() or f"error {result}")
