"""CuPy to the limit and on: allocates until it is refused, gives back, allocates again. One JSON object.

usage: cupy_full.py default | managed | async
"""

import json
import sys

import cupy


def main() -> None:
    pool = cupy.get_default_memory_pool()
    if sys.argv[1] == "managed":
        pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
        cupy.cuda.set_allocator(pool.malloc)
    elif sys.argv[1] == "async":
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    pieces, error = [], ""
    free, total = cupy.cuda.Device().mem_info
    try:
        while len(pieces) < 64:
            pieces.append(cupy.ones(512 << 20, dtype=cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError as refused:
        error = type(refused).__name__
    except cupy.cuda.runtime.CUDARuntimeError as refused:
        error = str(refused).partition(":")[0]
    taken = len(pieces) << 29
    sound = all(int(piece[-1]) == 1 for piece in pieces)
    pieces.clear()
    pool.free_all_blocks()
    again = cupy.arange(1 << 20, dtype=cupy.float32)
    result = float(again @ again)
    print(json.dumps({
        "total": total, "free": free, "taken": taken, "error": error, "sound": sound, "again": result > 0,
    }))  # fmt: skip


main()
