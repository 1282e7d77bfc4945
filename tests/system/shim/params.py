"""A program that makes objects with parameters that end where its memory ends: CLASS:SIZE... on the command line.

Prints JSON, by class: the status, how long the simulated driver says the parameters are, and their last bytes as they
arrived there (SIM_PARAMETERS of native/sim/device.h), in hexadecimal.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
PAGE = 4096
DEVICE, SUBDEVICE, SPACE, FIRST = 0x5C000001, 0x5C000002, 0x5C000009, 0x5C000100
VIDEO_MEMORY, COUNTERS, CHANNEL = 0x40, 0xDE, 0xC86F
PATTERN = b"\x11\x22\x33\x44\x55\x66\x77\x88"


class Client:
    """A client on a file of its own, with a device, a subdevice and an address space."""

    def __init__(self) -> None:
        self.file, self.handle = os.open("/dev/nvidiactl", os.O_RDWR), 0
        self.handle = self.make(0, 0, 0, 0)[1]
        self.make(self.handle, DEVICE, 0x80, 0)
        self.make(DEVICE, SUBDEVICE, 0x2080, 0)
        self.make(DEVICE, SPACE, 0x90F1, 0)

    def make(self, parent: int, handle: int, number: int, params: int) -> tuple[int, int]:
        """Status and handle."""
        call = ctypes.create_string_buffer(
            struct.pack("<4IQQ4I", self.handle, parent, handle, number, params, *[0] * 5)
        )
        if libc.ioctl(self.file, 0xC030462B, call) < 0:
            return -ctypes.get_errno(), 0
        return struct.unpack_from("<I", call, 40)[0], struct.unpack_from("<I", call, 8)[0]

    def arrived(self, handle: int) -> tuple[int, bytes]:
        call = ctypes.create_string_buffer(struct.pack("<4I8s", self.handle, handle, 0, 0, b""), 24)
        libc.ioctl(self.file, 0xC01853E6, call)
        return struct.unpack_from("<I", call, 8)[0], call.raw[16:24]


def content(number: int, size: int) -> bytes:
    data = bytearray(size)
    if number == VIDEO_MEMORY:
        struct.pack_into("<I", data, 0, 1)  # owner: any but 0
        struct.pack_into("<I", data, 24, 0x18000000)
        struct.pack_into("<Q", data, 64, 1 << 20)
    if number == CHANNEL:
        struct.pack_into("<I", data, 28, SPACE)  # a guard wants one named
        struct.pack_into("<I", data, 128, 1)
    tail = min(size, len(PATTERN))
    data[-tail:] = PATTERN[:tail]
    return bytes(data)


def main(words: list[str]) -> None:
    # The page behind the parameters is not there.
    pages = libc.mmap(None, 2 * PAGE, 3, 0x22, -1, 0)
    libc.munmap(pages + PAGE, PAGE)
    client, told = Client(), {}
    for index, word in enumerate(words):
        number, size = (int(part, 0) for part in word.split(":"))
        ctypes.memmove(pages + PAGE - size, content(number, size), size)
        parent = SUBDEVICE if number == COUNTERS else DEVICE
        status, _ = client.make(parent, FIRST + index, number, pages + PAGE - size)
        length, tail = client.arrived(FIRST + index)
        told[f"{number:#x}"] = [status, length, tail[: min(size, 8)].hex()]
    print(json.dumps(told))


main(sys.argv[1:])
