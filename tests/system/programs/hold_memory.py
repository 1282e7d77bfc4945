"""A CUDA program without NVIDIA's toolkit: one context; each line of its input is a call, and its answer a line.

alloc MIB, managed MIB, free, fill BYTE, sync: the CUresult. get: the free MiB. peek: what 64 KiB are filled with.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")
held: list[c_uint64] = []


def begin() -> None:
    device, context = c_int(), c_void_p()
    for result in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(byref(context), device),
        cuda.cuCtxSetCurrent(context),
    ):
        if result:
            sys.exit(f"no context: {result}")


def act(word: str, number: int) -> int:
    place = c_uint64()
    if word == "alloc":
        result = cuda.cuMemAlloc_v2(byref(place), c_size_t(number << 20))
        held.extend([place] if not result else [])
        return int(result)
    if word == "managed":
        return int(cuda.cuMemAllocManaged(byref(place), c_size_t(number << 20), 1))
    if word == "fill":
        return int(cuda.cuMemsetD8_v2(held[0], number, c_size_t(64 << 10)))
    if word == "peek":
        room = ctypes.create_string_buffer(64 << 10)
        result = cuda.cuMemcpyDtoH_v2(room, held[0], c_size_t(64 << 10))
        return -int(result) or (room.raw[0] if set(room.raw) == {room.raw[0]} else -1)
    if word == "free":
        return max([int(cuda.cuMemFree_v2(held.pop())) for _ in range(len(held))], default=0)
    if word == "get":
        free, total = c_size_t(), c_size_t()
        result = cuda.cuMemGetInfo_v2(byref(free), byref(total))
        return -int(result) or free.value >> 20
    return int(cuda.cuCtxSynchronize())


begin()
print("ready", flush=True)
for line in sys.stdin:
    first, _, rest = line.partition(" ")
    print(act(first.strip(), int(rest or 0)), flush=True)
