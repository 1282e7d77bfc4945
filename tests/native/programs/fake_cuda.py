"""The driver of native/test/api behind ctypes, for the programs beside this file."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from ctypes import byref, c_size_t, c_uint64, c_void_p
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
cuda = ctypes.CDLL("libcuda.so.1")
cuda.fake_used.restype = c_uint64
cuda.fake_synchronized.restype = c_void_p


def _calls(number: int) -> Callable[[], int]:
    """How often the driver's function was called."""
    return lambda: int(cuda.fake_calls(number))


alloc, managed, free, alloc_async, free_async, pitch, synchronize, export_table = map(_calls, range(8))
cuda.fake_current(0)


def take(size: int, name: str = "cuMemAlloc_v2", *more: Any) -> tuple[int, int]:
    """Allocate bytes: result and address."""
    pointer = c_uint64()
    return getattr(cuda, name)(byref(pointer), c_size_t(size), *more), pointer.value


def give(pointer: int, name: str = "cuMemFree_v2", *more: Any) -> int:
    return int(getattr(cuda, name)(c_uint64(pointer), *more))


def information() -> tuple[int, int]:
    """Free and total bytes of the current device."""
    free, total = c_size_t(), c_size_t()
    assert cuda.cuMemGetInfo_v2(byref(free), byref(total)) == 0
    return free.value, total.value


def run_case(cases: Mapping[str, Any]) -> None:
    """Call the function that the first argument names with the other arguments."""
    cases[sys.argv[1]](*sys.argv[2:])
