"""What a program sees of a quota that libnvc-shim-api.so keeps: ``quota.py CASE``.

A driver that rm has no tables for; 64 MiB of the first GPU, 32 MiB of the second.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from fake_cuda import GIB, MIB, alloc, alloc_async, cuda, give, information, run_case, take


def kept() -> None:
    assert information() == (64 * MIB, 64 * MIB)
    result, first = take(62 * MIB)
    assert result == 0 and take(3 * MIB)[0] == 2 and alloc() == 1  # refused before the driver is asked
    assert take(2 * MIB)[0] == 0 and information() == (0, 64 * MIB)  # exactly at the limit
    assert take(1)[0] == 2
    cuda.fake_current(1)
    assert information() == (32 * MIB, 32 * MIB)  # another GPU
    cuda.fake_current(0)
    assert give(first) == 0 and information() == (62 * MIB, 64 * MIB)
    for _ in range(2000):
        result, pointer = take(2 * MIB)
        assert result == 0 and give(pointer) == 0
    assert information() == (62 * MIB, 64 * MIB)  # no drift
    total = c_size_t()
    assert cuda.cuDeviceTotalMem_v2(byref(total), 1) == 0 and total.value == 32 * MIB
    narrow = c_uint()
    assert cuda.cuDeviceTotalMem(byref(narrow), 0) == 0 and narrow.value == 64 * MIB
    assert cuda.cuMemGetInfo_v2(None, None) == 0 and cuda.cuDeviceTotalMem_v2(None, 0) == 1
    assert cuda.cuDeviceTotalMem_v2(byref(total), 7) == 101
    only = c_size_t()
    assert cuda.cuMemGetInfo_v2(byref(only), None) == 0 and only.value == 62 * MIB


class Descriptor(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = [
        *(("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)),
        *(("format", c_int), ("channels", c_uint), ("flags", c_uint)),
    ]


def every_way() -> None:
    def left() -> int:
        return information()[0] // MIB

    def rows(*arguments: int) -> tuple[int, int]:
        pointer, step = c_uint64(), c_size_t()
        result = cuda.cuMemAllocPitch_v2(byref(pointer), byref(step), *map(c_size_t, arguments), 4)
        return result, pointer.value

    everything = []

    def made(allocation: tuple[int, int], way: str, remaining: int) -> None:
        everything.append((allocation, way))
        assert left() == remaining, way

    made(take(4 * MIB, "cuMemAllocManaged", 1), "cuMemFree_v2", 60)
    made(take(4 * MIB, "cuMemAllocAsync", None), "cuMemFreeAsync", 56)
    made(take(4 * MIB, "cuMemAllocAsync_ptsz", None), "cuMemFreeAsync_ptsz", 52)
    made(take(4 * MIB, "cuMemAllocFromPoolAsync", c_void_p(2000), None), "cuMemFreeAsync", 48)
    made(rows(1, 8192), "cuMemFree_v2", 44)  # rows of 512
    array = c_uint64()
    assert cuda.cuArray3DCreate_v2(byref(array), byref(Descriptor(1024, 1024, 0, 0x20, 1, 0))) == 0 and left() == 40
    assert cuda.cuArray3DCreate_v2(byref(array), byref(Descriptor(1 << 20, 1 << 20, 9, 0x20, 4, 0))) == 2
    assert cuda.cuArray3DCreate_v2(byref(array), None) == 1 and left() == 40
    everything.append(((0, array.value), "cuArrayDestroy"))
    for name in ("cuMemAllocManaged", "cuMemAllocAsync"):
        assert take(41 * MIB, name, 1)[0] == 2
    for (result, pointer), way in everything:
        assert result == 0 and give(pointer, way, None) == 0, way
    assert left() == 64


def device_of_the_memory() -> None:
    def create(device: int, size: int) -> tuple[int, int]:
        handle = c_uint64()
        properties = struct.pack("iiiiP8x", 1, 0, 1, device, 0)
        return cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_uint64(0)), handle.value

    def left(device: int) -> int:
        cuda.fake_current(device)
        answer = information()[0] // MIB
        cuda.fake_current(0)
        return answer

    assert create(1, 33 * MIB)[0] == 2
    result, handle = create(1, 8 * MIB)
    assert result == 0 and (left(0), left(1)) == (64, 24)
    assert cuda.cuMemMap(c_uint64(0x1000), c_size_t(8 * MIB), c_size_t(0), c_uint64(handle), c_uint64(0)) == 0
    assert cuda.cuMemRelease(c_uint64(handle)) == 0 and left(1) == 24  # the mapping holds the memory
    assert cuda.cuMemUnmap(c_uint64(0x1000), c_size_t(8 * MIB)) == 0 and left(1) == 32
    assert cuda.cuMemRelease(c_uint64(handle)) == 1  # the driver's answer
    result, pointer = take(8 * MIB, "cuMemAllocAsync", c_void_p(1001))
    assert result == 0 and (left(0), left(1)) == (64, 24)
    assert give(pointer, "cuMemFreeAsync", None) == 0
    result, pointer = take(8 * MIB, "cuMemAllocFromPoolAsync", c_void_p(2001), None)
    assert result == 0 and (left(0), left(1)) == (64, 24)
    assert take(40 * MIB, "cuMemAllocFromPoolAsync", c_void_p(2001), None)[0] == 2 and (left(0), left(1)) == (64, 24)
    assert create(-1, MIB)[0] == 201  # nonsense is the driver's to refuse


def two_processes() -> None:
    assert take(40 * MIB)[0] == 0
    again = [sys.executable, "-S", "-E", "-B", __file__, "second_process"]
    assert subprocess.run(again).returncode == 20
    assert take(24 * MIB)[0] == 0  # the child is gone and so is its charge


def second_process() -> None:
    raise SystemExit(take(25 * MIB)[0] * 10 + take(24 * MIB)[0])


def nvml() -> None:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    take(14 * MIB)
    first, second = (c_uint64 * 3)(), (c_uint64 * 5)(2)
    assert library.nvmlDeviceGetMemoryInfo(c_void_p(1), first) == 0
    assert list(first) == [64 * MIB, 50 * MIB, 14 * MIB]
    assert library.nvmlDeviceGetMemoryInfo_v2(c_void_p(1), second) == 0
    assert list(second) == [2, 64 * MIB, 0, 50 * MIB, 14 * MIB]
    assert library.nvmlDeviceGetMemoryInfo(c_void_p(1), None) == 2
    assert library.nvmlDeviceGetMemoryInfo(None, first) == 2


def changing_limits(limits: str, content: str) -> None:
    """content: what the limits file becomes, in hexadecimal: 8 MiB, and no limit."""
    assert take(32 * MIB)[0] == 0
    with open(limits, "r+b") as file:
        file.write(bytes.fromhex(content))
    assert take(MIB)[0] == 2 and information() == (0, 8 * MIB)  # saturates
    cuda.fake_current(1)
    assert information() == (16 * GIB, 16 * GIB)  # no limit


def without_limits() -> None:
    """The limits file cannot be read."""
    assert take(MIB)[0] == 2 and take(MIB, "cuMemAllocAsync", None)[0] == 2 and (alloc(), alloc_async()) == (0, 0)
    assert give(0x1234) == 1 and information() == (16 * GIB, 16 * GIB)


run_case(globals())
