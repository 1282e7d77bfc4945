"""A CUDA program on all GPUs that it sees, which does what it is told: a line of words in, a line of JSON out.

GPUs are numbers of CUDA's.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable

MIB = 1 << 20
KERNEL = b"sim kernel work nanoseconds=%d\n"


def _size(mib: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(mib * MIB)


def _of_device(gpu: int, words: int) -> ctypes.Array[ctypes.c_uint32]:
    """CUmemAllocationProp or CUmemPoolProps: pinned memory, no handle, on the device."""
    return (ctypes.c_uint32 * words)(1, 0, 1, gpu)


class Pair:
    """contexts: one a GPU. pieces: what was allocated, with the call that gives it back."""

    def __init__(self, library: str) -> None:
        self.cuda = ctypes.CDLL(library)
        self.contexts: list[ctypes.c_void_p] = []
        self.pieces: list[tuple[int, Callable[[], int]]] = []
        self.kernel = ctypes.c_void_p()

    def init(self) -> list[int]:
        """A status, and how many GPUs there are."""
        count = ctypes.c_int()
        status = self.cuda.cuInit(0) or self.cuda.cuDeviceGetCount(ctypes.byref(count))
        for gpu in range(count.value):
            context = ctypes.c_void_p()
            status = status or self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu)
            self.contexts.append(context)
        return [int(status), len(self.contexts)]

    def on(self, gpu: int) -> None:
        assert self.cuda.cuCtxSetCurrent(self.contexts[gpu]) == 0

    def uuids(self) -> list[str]:
        found = []
        for gpu in range(len(self.contexts)):
            raw = ctypes.create_string_buffer(16)
            assert self.cuda.cuDeviceGetUuid(raw, gpu) == 0
            word = raw.raw.hex()
            found.append(f"GPU-{word[:8]}-{word[8:12]}-{word[12:16]}-{word[16:20]}-{word[20:]}")
        return found

    def total(self) -> list[int]:
        """cuDeviceTotalMem of each."""
        sizes = [ctypes.c_size_t() for _ in self.contexts]
        for gpu, size in enumerate(sizes):
            assert self.cuda.cuDeviceTotalMem_v2(ctypes.byref(size), gpu) == 0
        return [size.value for size in sizes]

    def info(self) -> list[list[int]]:
        """Free and total of each, bytes."""
        found = []
        for gpu in range(len(self.contexts)):
            self.on(gpu)
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            assert self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
            found.append([free.value, total.value])
        return found

    def nvml(self) -> list[list[int]]:
        """Total, free and used of each, in NVML's order."""
        library, count, found = ctypes.CDLL(sys.argv[2]), ctypes.c_uint(), []
        assert library.nvmlInit_v2() == 0
        assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        for index in range(count.value):
            device, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
            assert library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
            assert library.nvmlDeviceGetMemoryInfo(device, memory) == 0
            found.append(list(memory))
        return found

    def alloc(self, gpu: int, mib: int, most: int = 1) -> list[int]:
        """Up to ``most`` pieces: how many there were, and the last status."""
        self.on(gpu)
        for count in range(most):
            piece = ctypes.c_uint64()
            status = self.cuda.cuMemAlloc_v2(ctypes.byref(piece), _size(mib))
            if status:
                return [count, status]
            self._keep(gpu, self.cuda.cuMemFree_v2, piece)
        return [most, 0]

    def created(self, gpu: int, current: int, mib: int) -> int:
        """cuMemCreate on one GPU while another's context is current: a status."""
        self.on(current)
        piece = ctypes.c_uint64()
        status = self.cuda.cuMemCreate(ctypes.byref(piece), _size(mib), _of_device(gpu, 8), ctypes.c_uint64(0))
        if status == 0:
            self._keep(gpu, self.cuda.cuMemRelease, piece)
        return int(status)

    def pooled(self, pool_gpu: int, gpu: int, mib: int) -> int:
        """From a pool of one GPU, on a stream of another: a status."""
        self.on(gpu)
        pool, stream, piece = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        status = self.cuda.cuMemPoolCreate(ctypes.byref(pool), _of_device(pool_gpu, 22))
        status = status or self.cuda.cuStreamCreate(ctypes.byref(stream), 1)
        status = status or self.cuda.cuMemAllocFromPoolAsync(ctypes.byref(piece), _size(mib), pool, stream)
        if status == 0:
            self._keep(gpu, self.cuda.cuMemFreeAsync, piece, stream)
            self._keep(gpu, self.cuda.cuStreamSynchronize, stream)
            self._keep(gpu, self.cuda.cuMemPoolTrimTo, pool, ctypes.c_size_t(0))
        return int(status)

    def captured(self, gpu: int, mib: int, launches: int) -> list[int]:
        """An allocation and its free, captured and launched so often: every status. It stays until ``free``."""
        self.on(gpu)
        stream, piece, graph, run = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
        found = [self.cuda.cuStreamCreate(ctypes.byref(stream), 1), self.cuda.cuStreamBeginCapture_v2(stream, 1)]
        found.append(self.cuda.cuMemAllocAsync(ctypes.byref(piece), _size(mib), stream))
        found.append(self.cuda.cuMemFreeAsync(piece, stream))
        found.append(self.cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
        found.append(self.cuda.cuGraphInstantiateWithFlags(ctypes.byref(run), graph, ctypes.c_uint64(0)))
        for _ in range(launches):
            found += [self.cuda.cuGraphLaunch(run, stream), self.cuda.cuStreamSynchronize(stream)]
        self._keep(gpu, self.cuda.cuGraphExecDestroy, run)
        self._keep(gpu, self.cuda.cuGraphDestroy, graph)
        self._keep(gpu, self.cuda.cuDeviceGraphMemTrim, ctypes.c_int(gpu))
        return [int(status) for status in found]

    def wrong(self, gpu: int) -> list[int]:
        """Frees that are wrong: every status. What was right is given back."""
        self.on(gpu)
        twice, live, pooled, handle = (ctypes.c_uint64() for _ in range(4))
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(twice), _size(64)) == 0
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(live), _size(64)) == 0
        assert self.cuda.cuMemAllocAsync(ctypes.byref(pooled), _size(64), None) == 0
        assert self.cuda.cuMemCreate(ctypes.byref(handle), _size(64), _of_device(gpu, 8), ctypes.c_uint64(0)) == 0
        found = [self.cuda.cuMemFree_v2(twice), self.cuda.cuMemFree_v2(twice)]
        found.append(self.cuda.cuMemFree_v2(ctypes.c_uint64(0)))
        found.append(self.cuda.cuMemFree_v2(ctypes.c_uint64(live.value + 4096)))
        found.append(self.cuda.cuMemFree_v2(ctypes.c_uint64(0x123456000)))
        found.append(self.cuda.cuIpcCloseMemHandle(live))
        found.append(self.cuda.cuMemFreeAsync(ctypes.c_uint64(0x123456000), None))
        found += [self.cuda.cuMemFreeAsync(pooled, None), self.cuda.cuMemFreeAsync(pooled, None)]
        found += [self.cuda.cuMemRelease(handle), self.cuda.cuMemRelease(handle)]
        found.append(self.cuda.cuMemFree_v2(live))
        pool = ctypes.c_void_p()
        assert self.cuda.cuStreamSynchronize(None) == 0
        assert self.cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), gpu) == 0
        assert self.cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0)) == 0
        return [int(status) for status in found]

    def copied(self, mib: int) -> bool:
        """A byte of memory of the first GPU, copied to memory of the second with cuMemcpy, is what it was.

        Only the first MiB is filled and copied: the simulated GPU keeps no more.
        """
        pieces, byte = [ctypes.c_uint64(), ctypes.c_uint64()], ctypes.c_uint8()
        for gpu, piece in enumerate(pieces):
            self.on(gpu)
            assert self.cuda.cuMemAlloc_v2(ctypes.byref(piece), _size(mib)) == 0
            assert self.cuda.cuMemsetD8_v2(piece, 41 + gpu, _size(1)) == 0
            self._keep(gpu, self.cuda.cuMemFree_v2, piece)
        assert self.cuda.cuMemcpy(pieces[1], pieces[0], _size(1)) == 0
        assert self.cuda.cuMemcpyDtoH_v2(ctypes.byref(byte), pieces[1], ctypes.c_size_t(1)) == 0
        return byte.value == 41

    def prepare(self, gpu: int, microseconds: int) -> int:
        """Make a kernel of this length for ``step``: a status."""
        self.on(gpu)
        module = ctypes.c_void_p()
        status = self.cuda.cuModuleLoadData(ctypes.byref(module), KERNEL % (microseconds * 1000))
        return int(status or self.cuda.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"work"))

    def step(self) -> int:
        """Launch the kernel and wait for it: a status."""
        status = self.cuda.cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        return int(status or self.cuda.cuCtxSynchronize())

    def free(self) -> int:
        """Everything: the sum of the statuses."""
        result = 0
        for gpu, give in self.pieces:
            self.on(gpu)
            result += give()
        self.pieces.clear()
        return result

    def _keep(self, gpu: int, give: Callable[..., int], *arguments: object) -> None:
        self.pieces.append((gpu, lambda: give(*arguments)))


def main() -> None:
    pair = Pair(sys.argv[1])
    for line in sys.stdin:
        name, *words = line.split()
        command: Callable[..., object] = getattr(pair, name)
        print(json.dumps(command(*map(int, words))), flush=True)


main()
