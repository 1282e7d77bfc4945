"""What a program sees of allocations that become managed memory: ``managed_memory.py CASE``.

A share that oversubscribes on the first GPU, and one that does not on the second; other cases say what they need.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from ctypes import byref, c_size_t, c_uint64, c_void_p

from fake_cuda import (
    GIB,
    MIB,
    alloc,
    alloc_async,
    cuda,
    free,
    free_async,
    give,
    information,
    managed,
    pitch,
    run_case,
    take,
)


def converts() -> None:
    assert take(20 * GIB)[0] == 0 and (alloc(), managed()) == (0, 1)  # more than the GPU has
    assert cuda.fake_advised() == 0 and cuda.fake_used(0) == 0
    for row in ("cuMemAllocAsync", "cuMemAllocAsync_ptsz"):
        assert take(GIB, row, c_void_p(1000))[0] == 0
    assert (alloc_async(), managed()) == (0, 3)
    cuda.fake_current(1)
    assert take(GIB)[0] == 0 and (alloc(), managed()) == (1, 3)  # this GPU's share does not
    assert take(GIB, "cuMemAllocAsync", c_void_p(1000))[0] == 0  # a stream's device counts, not the current one
    assert (alloc_async(), managed(), cuda.fake_advised()) == (0, 4, 0)


def leaves_the_rest() -> None:
    assert cuda.cuMemAlloc_v2(None, c_size_t(1)) == 1 and take(0)[0] == 1 and managed() == 0
    assert take(0, "cuMemAllocAsync", None)[0] == 0
    cuda.fake_capture(1)  # memory of a graph
    assert take(GIB, "cuMemAllocAsync", c_void_p(1000))[0] == 0
    assert (alloc_async(), managed()) == (2, 0)
    assert take(GIB, "cuMemAllocFromPoolAsync", c_void_p(2000), None)[0] == 0 and managed() == 0
    cuda.fake_current(-1)
    assert take(GIB)[0] == 201 and managed() == 0  # no context: the driver's word


def leaves_devices_without_concurrent_access() -> None:
    assert take(GIB)[0] == 0 and (alloc(), managed()) == (1, 0)


def frees_behind_the_stream() -> None:
    pointer = take(GIB)[1]
    assert give(pointer, "cuMemFreeAsync", c_void_p(1000)) == 0
    assert (cuda.fake_synchronized(), free(), free_async()) == (1000, 1, 0)
    assert give(pointer) == 1  # it is gone
    pointer = take(GIB)[1]
    cuda.fake_capture(1)
    assert give(pointer, "cuMemFreeAsync", c_void_p(1000)) == 801  # not the graph's: nothing is freed
    assert give(pointer) == 0
    assert give(0) == 0 and give(0x1234) == 1  # unknown frees reach the driver
    assert give(0x1234, "cuMemFreeAsync", None) == 1 and free_async() == 2


def exports() -> None:
    assert cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), c_uint64(take(GIB)[1])) == 1


def pitched() -> None:
    step, pointer = c_size_t(), c_uint64()

    def rows(width: int, height: int, element: int) -> int:
        return int(cuda.cuMemAllocPitch_v2(byref(pointer), byref(step), c_size_t(width), c_size_t(height), element))

    assert rows(1000, 10, 4) == 0 and step.value == 1024 and (pitch(), managed()) == (0, 1)
    assert rows(1000, 10, 3) == 1 and managed() == 1  # the driver refuses this
    assert cuda.cuMemAllocPitch_v2(byref(pointer), None, c_size_t(1), c_size_t(1), 4) == 1


def announced(library: str) -> None:
    """library: records the GPU that is designated before a mapping."""
    other = ctypes.CDLL(library)
    other.last_uuid.restype = ctypes.c_char_p
    assert take(MIB)[0] == 0 and other.last_uuid() == b"\x10" * 16


def not_oversubscribed() -> None:
    """A driver that rm knows, and a share that does not oversubscribe."""
    assert take(GIB)[0] == 0 and (alloc(), managed()) == (1, 0)
    assert information() == (15 * GIB, 16 * GIB)
    assert cuda.cuMemCreate(None, c_size_t(1), None, c_uint64(0)) == 1


def old_driver() -> None:
    assert not hasattr(cuda, "cuMemAllocAsync") and not hasattr(cuda, "cuGetProcAddress")
    assert take(GIB)[0] == 0 and managed() == 1


def forked() -> None:
    """Children are forked while threads allocate."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, which advises against it
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            give(take(MIB)[1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            os._exit(take(MIB)[0] + give(take(MIB)[1]))
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    for thread in threads:
        thread.join()


run_case(globals())
