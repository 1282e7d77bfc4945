"""The result of functions that make managed mappings, called in every way: ``managed_errors.py CASE ...``."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from fake_cuda import MIB, cuda, managed, run_case, take

_POOL, _STREAM = c_void_p(2000), c_void_p(1000)
#: Symbol, name and flags for cuGetProcAddress, arguments after pointer and size.
_ROWS = [
    ("cuMemAllocManaged", "cuMemAllocManaged", 0, (1,)),
    ("cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 1, (_POOL, _STREAM)),
    ("cuMemAllocFromPoolAsync_ptsz", "cuMemAllocFromPoolAsync", 2, (_POOL, _STREAM)),
]


def ways() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each function by its name and by both versions of cuGetProcAddress, and the rest of its arguments."""
    signature = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, *[c_void_p] * 2)
    for symbol, base, flags, more in _ROWS:
        yield getattr(cuda, symbol), more
        for ask, *rest in (cuda.cuGetProcAddress,), (cuda.cuGetProcAddress_v2, None):
            address = c_void_p()
            assert ask(base.encode(), byref(address), 12000, c_uint64(flags), *rest) == 0 and address.value
            yield signature(address.value), (*more, 0)[:2]


def outcomes() -> set[int]:
    found = []
    for call, more in ways():
        pointer = c_uint64(77)
        found.append(call(byref(pointer), c_size_t(MIB), *more))
        assert (found[-1] == 0) == (pointer.value != 77)
    assert len(found) == 9
    return set(found)


def result(driver: str, refused: str, said: str) -> None:
    """The driver's result, and whether libnvc-shim.so refused the mapping, become ``said``."""
    cuda.fake_fail(int(driver), int(refused))
    assert outcomes() == {int(said)}, outcomes()


def driver_alone() -> None:
    """Without libnvc-shim.so."""
    cuda.fake_fail(999, 1)
    assert outcomes() == {999}
    cuda.fake_fail(0, 0)
    assert outcomes() == {0}


def earlier_refusal(library: str) -> None:
    """library: a fake libnvc-shim.so."""
    shim = ctypes.CDLL(library)
    cuda.fake_fail(999, 0)
    for call, more in ways():
        shim.fake_shim_refuse()
        assert call(byref(c_uint64()), c_size_t(MIB), *more) == 999


def wrong_arguments() -> None:
    assert cuda.cuMemAllocManaged(None, c_size_t(1), 1) == 1 and take(0, "cuMemAllocManaged", 1)[0] == 1
    assert take(1, "cuMemAllocManaged", 0)[0] == 1 and managed() == 3
    assert cuda.cuMemAllocFromPoolAsync(None, c_size_t(1), c_void_p(2000), None) == 1
    cuda.fake_current(-1)
    assert take(MIB, "cuMemAllocManaged", 1)[0] == 201


run_case(globals())
