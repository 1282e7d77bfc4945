"""The driver's calls to a simulated manager, through real ioctl system calls, for tests."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nvc.sim.description import load
from nvc.sim.machine_text import machine_text
from tests.support import fuse
from tests.support.native import build
from tests.support.nv_numbers import NUMBERS

fuse.needed()

_libc = ctypes.CDLL(None, use_errno=True)
RMCALL_SOURCE = Path(__file__).with_name("rmcall.c")
DEVICE, SUBDEVICE = 0x5C000001, 0x5C000002
VIDEO_MEMORY = NUMBERS["NV01_MEMORY_LOCAL_USER"]
ALLOC, CONTROL, FREE = (NUMBERS[f"NV_ESC_RM_{name}"] for name in ("ALLOC", "CONTROL", "FREE"))
READ_WRITE = 3


def build_rmcall(target: Path) -> Path:
    """Compile rmcall.c, statically. Raises CalledProcessError."""
    subprocess.run(["cc", "-std=gnu11", "-O1", "-Wall", "-Werror", "-static", "-o", target, RMCALL_SOURCE], check=True)
    return target


def request(number: int, size: int, *, kind: str = "F", direction: int = READ_WRITE) -> int:
    """An ioctl number."""
    return direction << 30 | size << 16 | ord(kind) << 8 | number


def ioctl(file: int, number: int, argument: ctypes.Array[ctypes.c_char] | int) -> None:
    """Raises OSError."""
    address = argument if isinstance(argument, int) else ctypes.addressof(argument)
    if _libc.ioctl(file, ctypes.c_ulong(number), ctypes.c_void_p(address)) < 0:
        raise OSError(ctypes.get_errno(), errno.errorcode[ctypes.get_errno()])


class Client:
    """A client of the manager on an open file of nvidiactl, with a device and a subdevice."""

    def __init__(self, place: Path, *, file: int = -1) -> None:
        self.file = os.open(place / "nvidiactl", os.O_RDWR | os.O_CLOEXEC) if file < 0 else file
        self.handle = 0
        self.handle = self.allocate(0, 0, 0, b"")[1]
        self.allocate(self.handle, DEVICE, NUMBERS["NV01_DEVICE_0"], bytes(56))
        self.allocate(DEVICE, SUBDEVICE, NUMBERS["NV20_SUBDEVICE_0"], bytes(4))

    def allocate(self, parent: int, handle: int, number: int, params: bytes, **form: object) -> tuple[int, int, bytes]:
        """Status, handle and parameters as they came back."""
        data = ctypes.create_string_buffer(params, max(len(params), 1))
        head = struct.pack(
            "<IIIIQQIIII", self.handle, parent, handle, number, ctypes.addressof(data) if params else 0, 0, 0, 0, 77, 0
        )
        call = ctypes.create_string_buffer(head, len(head))
        ioctl(self.file, request(ALLOC, len(head), **form), call)  # type: ignore[arg-type]
        return struct.unpack_from("<I", call, 40)[0], struct.unpack_from("<I", call, 8)[0], data.raw

    def memory(self, handle: int, size: int, **form: object) -> tuple[int, int]:
        """Status and size of a piece of video memory."""
        params = bytearray(128)
        struct.pack_into("<I", params, 0, 1)  # owner: any but 0
        struct.pack_into("<I", params, 24, 0x18000000)
        struct.pack_into("<Q", params, 64, size)
        status, _, back = self.allocate(DEVICE, handle, VIDEO_MEMORY, bytes(params), **form)
        return status, struct.unpack_from("<Q", back, 64)[0]

    def control(self, handle: int, number: int, params: bytes) -> tuple[int, bytes]:
        """Status and parameters as they came back."""
        data = ctypes.create_string_buffer(params, len(params))
        head = struct.pack("<IIIIQII", self.handle, handle, number, 0, ctypes.addressof(data), len(params), 77)
        call = ctypes.create_string_buffer(head, len(head))
        ioctl(self.file, request(CONTROL, len(head)), call)
        return struct.unpack_from("<I", call, 28)[0], data.raw

    def close(self) -> None:
        os.close(self.file)


def used(file: int) -> int:
    """Bytes of video memory in use on the first GPU, over all clients."""
    call = ctypes.create_string_buffer(5 * 8 + 32 * 8)
    ioctl(file, request(0xE4, len(call), kind="S"), call)
    return int(struct.unpack_from("<Q", call, 40)[0])


def serve(machine: Path, place: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start the manager for a description, on the directory ``place``; it ends with this thread."""
    ready, write_end = os.pipe()
    words: Sequence[str] = ["--ready-fd", str(write_end), "--die-with-parent", *options, str(machine), str(place)]
    place.mkdir(exist_ok=True)
    program = build("nvc-sim-manager") / "nvc-sim-manager"
    started = subprocess.Popen([program, *words], pass_fds=[write_end], stdout=subprocess.DEVNULL)
    os.close(write_end)
    with open(ready, "rb") as pipe:
        assert pipe.read(1) == b"\0", "the manager did not start"
    return started


def with_manager(directory: Path, body: Callable[[Path], Any]) -> Any:
    """What ``body`` returns for the directory of a machine's nodes, which are served below ``directory`` until then."""
    (directory / "machine").write_text(machine_text(load("h200"), nodes=True))
    manager = serve(directory / "machine", directory / "nodes")
    try:
        return body(directory / "nodes")
    finally:
        manager.send_signal(signal.SIGTERM)
        assert manager.wait(40) == 0
        assert os.listdir(directory / "nodes") == [], "the mount is gone"
