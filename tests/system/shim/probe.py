"""A CUDA program that does what it is told: a line of words in, a line of JSON out."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

MIB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
READ_WRITE, SHARED, PRIVATE, FIXED, ANONYMOUS = 3, 1, 2, 0x10, 0x20
FAILED = ctypes.c_void_p(-1).value
KERNEL = b"sim kernel work nanoseconds=%d\n"


class Probe:
    """The state that commands share: contexts, what was allocated, the worker thread."""

    def __init__(self, library: str) -> None:
        self.cuda = ctypes.CDLL(library)
        self.pieces: list[ctypes.c_uint64] = []
        self.uvm = -1
        self.rounds = 0
        self.contexts = 0

    def init(self) -> int:
        """Initialize and make a context on the first GPU: a status."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        status = self.cuda.cuInit(0) or self.cuda.cuDeviceGet(ctypes.byref(device), 0)
        self.contexts += 1
        return int(status or self.cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))

    def total(self) -> int:
        size = ctypes.c_size_t()
        assert self.cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0) == 0
        return size.value

    def info(self) -> list[int]:
        """Free and total, bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return [free.value, total.value]

    def alloc(self, mib: int = 1, most: int = 1) -> list[int]:
        """Up to ``most`` pieces: how many there were, and the last status."""
        for count in range(most):
            piece = ctypes.c_uint64()
            status = self.cuda.cuMemAlloc_v2(ctypes.byref(piece), ctypes.c_size_t(mib * MIB))
            if status:
                return [count, status]
            self.pieces.append(piece)
        return [most, 0]

    def free(self) -> int:
        """Everything: the sum of the statuses."""
        result = sum(self.cuda.cuMemFree_v2(piece) for piece in self.pieces)
        self.pieces.clear()
        return result

    def churn(self, mib: int, rounds: int) -> int:
        """Allocate and free again and again: how many did not work."""
        bad = 0
        piece = ctypes.c_uint64()
        for _ in range(rounds):
            bad += self.cuda.cuMemAlloc_v2(ctypes.byref(piece), ctypes.c_size_t(mib * MIB)) != 0
            bad += self.cuda.cuMemFree_v2(piece) != 0
        return bad

    def map(self, address: int, mib: int) -> int:
        """A mapping of the UVM node, as cuMemAllocManaged makes it: 0 or errno."""
        if self.uvm < 0:
            self.uvm = os.open("/dev/nvidia-uvm", os.O_RDWR | os.O_CLOEXEC)
            libc.ioctl(self.uvm, 0x30000001, (ctypes.c_uint64 * 2)())
        got = libc.mmap(address, mib * MIB, READ_WRITE, SHARED | FIXED, self.uvm, address)
        return ctypes.get_errno() if got == FAILED else 0

    def misplaced(self, address: int, mib: int) -> int:
        """The same, over what is there, with an offset that no kernel takes: errno."""
        got = libc.mmap(address, mib * MIB, READ_WRITE, SHARED | FIXED, self.uvm, address + 1)
        return ctypes.get_errno() if got == FAILED else 0

    def managed(self, mib: int) -> int:
        """cuMemAllocManaged, attached globally: a status."""
        piece = ctypes.c_uint64()
        status = self.cuda.cuMemAllocManaged(ctypes.byref(piece), ctypes.c_size_t(mib * MIB), 1)
        if status == 0:
            self.pieces.append(piece)
        return int(status)

    def pooled(self, mib: int, most: int) -> list[int]:
        """Pieces of the default pool: how many, and the last status. They stay."""
        for count in range(most):
            piece = ctypes.c_uint64()
            status = self.cuda.cuMemAllocAsync(ctypes.byref(piece), ctypes.c_size_t(mib * MIB), None)
            if status:
                return [count, status]
        return [most, 0]

    def created(self, mib: int, most: int) -> list[int]:
        """Pieces made with cuMemCreate: how many, and the last status. They stay."""
        wish = (ctypes.c_uint32 * 8)(1, 0, 1, 0)  # CU_MEM_ALLOCATION_TYPE_PINNED, no handle, on device 0
        for count in range(most):
            piece = ctypes.c_uint64()
            status = self.cuda.cuMemCreate(ctypes.byref(piece), ctypes.c_size_t(mib * MIB), wish, ctypes.c_uint64(0))
            if status:
                return [count, status]
        return [most, 0]

    def nvml(self) -> list[int]:
        """Total, free and used, as NVML has them."""
        library, device, memory = ctypes.CDLL(sys.argv[2]), ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
        assert library.nvmlInit_v2() == 0
        assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
        assert library.nvmlDeviceGetMemoryInfo(device, memory) == 0
        return list(memory)

    def nvml_v2(self) -> list[int]:
        """Total, reserved, free and used, as nvmlDeviceGetMemoryInfo_v2 has them."""
        library, device = ctypes.CDLL(sys.argv[2]), ctypes.c_void_p()
        memory = (ctypes.c_uint64 * 5)(0x02000028)
        assert library.nvmlInit_v2() == 0
        assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
        assert library.nvmlDeviceGetMemoryInfo_v2(device, memory) == 0
        return list(memory)[1:]

    def unmap(self, address: int, mib: int) -> int:
        return int(libc.munmap(address, mib * MIB))

    def cover(self, address: int, mib: int) -> int:
        got = libc.mmap(address, mib * MIB, READ_WRITE, PRIVATE | FIXED | ANONYMOUS, -1, 0)
        return ctypes.get_errno() if got == FAILED else 0

    def next(self, byte: int) -> int:
        libc.nvc_shim_next_managed(bytes([byte]) * 16)
        return 0

    def events(self) -> int:
        """Begin to do in a thread what libcuda's own thread (cuda-EvtHandlr) does: poll, ten times a second."""

        def run() -> None:
            while True:
                libc.poll(None, 0, 100)

        threading.Thread(target=run, daemon=True).start()
        return 0

    def work(self, microseconds: int) -> int:
        """Begin to launch kernels of this length for ever, in a thread."""
        module, function, context = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        image = ctypes.create_string_buffer(KERNEL % (microseconds * 1000))
        status = self.cuda.cuModuleLoadData(ctypes.byref(module), image)
        status = status or self.cuda.cuModuleGetFunction(ctypes.byref(function), module, b"work")
        assert self.cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0

        def run() -> None:
            self.cuda.cuCtxSetCurrent(context)
            while True:
                for _ in range(4):
                    self.cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
                if self.cuda.cuCtxSynchronize():
                    return
                self.rounds += 4

        threading.Thread(target=run, daemon=True).start()
        return int(status)

    def rate(self, milliseconds: int) -> float:
        """Kernels a second, over this long."""
        before, begin = self.rounds, time.monotonic()
        time.sleep(milliseconds / 1000)
        return (self.rounds - before) / (time.monotonic() - begin)

    def threads(self) -> list[str]:
        names = []
        for thread in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{thread}/comm") as file:
                    names.append(file.read().strip())
            except OSError:
                continue  # it has ended since it was listed
        return sorted(names)

    def fork(self, command: str = "none") -> list[int]:
        """A forked child does something and ends: its exit code."""
        child = os.fork()
        if child == 0:
            if command == "close":
                os.closerange(3, 1024)
            os._exit(0)
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]

    def leave(self, seconds: int) -> int:
        """A forked child that keeps every descriptor and does nothing; its process id."""
        child = os.fork()
        if child == 0:
            time.sleep(seconds)
            os._exit(0)
        return child

    def spawn(self) -> int:
        """Programs started with vfork, which close every descriptor first."""
        import subprocess

        return sum(subprocess.run(["/bin/true"], close_fds=True, check=False).returncode for _ in range(5))

    def brute(self) -> int:
        """A child that closes every descriptor by hand, through libc."""
        child = os.fork()
        if child == 0:
            for descriptor in range(3, 1024):
                libc.close(descriptor)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def move(self, by: int = 300, path: str = "/dev/nvidiactl") -> int:
        """Give every descriptor of a node another number; how many."""
        numbers = self.open_on(path)
        for number in numbers:
            os.dup2(number, number + by)
            os.close(number)
        return len(numbers)

    def back(self, by: int = 300) -> int:
        return self.move(-by)

    def hide(self, path: str = "/dev/nvidiactl") -> int:
        """Keep the files of a node in a socket's queue alone; how many."""
        here, there = socket.socketpair()
        numbers = self.open_on(path)
        socket.send_fds(here, [b"x"], numbers)
        self.queue = here, there
        self.hidden = numbers
        for number in numbers:
            os.close(number)
        return len(numbers)

    def show(self) -> int:
        """Take what was hidden back, under the numbers that it had."""
        _, found, _, _ = socket.recv_fds(self.queue[1], 1, len(self.hidden))
        for place, copy in enumerate(found):
            os.dup2(copy, 500 + place)
            os.close(copy)
        for place, number in enumerate(self.hidden):
            os.dup2(500 + place, number)
            os.close(500 + place)
        return len(found)

    def clients(self, count: int) -> int:
        """Make clients of the driver's that do nothing, on a descriptor that stays open; how many were made."""
        self.others = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
        made = 0
        for _ in range(count):
            head = (ctypes.c_uint32 * 12)()
            made += libc.ioctl(self.others, 0xC030462B, head) == 0 and head[10] == 0
            slice_of = (ctypes.c_uint32 * 8)(head[2], head[2], 0xA06C0104)
            libc.ioctl(self.others, 0xC020462A, slice_of)  # a call by which the client is known
        return made

    def control(self) -> int:
        """A control that the library lets pass unasked, on each descriptor of the node: how many."""
        numbers = self.open_on("/dev/nvidiactl")
        return sum(libc.ioctl(number, 0xC020462A, (ctypes.c_uint32 * 8)(1, 1, 0x503C0104)) == 0 for number in numbers)

    @staticmethod
    def open_on(path: str) -> list[int]:
        found = []
        for word in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{word}") == path:
                    found.append(int(word))
            except FileNotFoundError:
                continue
        return found

    def exit(self) -> int:
        sys.exit(0)

    def die(self) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0


def main() -> None:
    probe = Probe(sys.argv[1])
    for line in sys.stdin:
        name, *words = line.split()
        command: Callable[..., object] = getattr(probe, name)
        print(json.dumps(command(*(int(word) if word.isdigit() else word for word in words))), flush=True)


main()
