"""System calls on the simulated manager's nodes: what they answer, also to hostile callers."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from nvc.sim.description import load
from nvc.sim.machine_text import machine_text
from tests.support.isolation import in_namespaces
from tests.support.manager import ALLOC, SUBDEVICE, Client, ioctl, request, serve

pytestmark = pytest.mark.root

GIB = 1 << 30


def _directory(place: Path) -> tuple[list[str], int]:
    return sorted(os.listdir(place)), os.stat(place / "nvidia0").st_mode & 0o777


def test_the_directory_has_the_drivers_nodes(served: Any) -> None:
    assert (["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"], 0o666) == served(_directory)


def _forms(place: Path) -> dict[str, int]:
    client = Client(place)
    forms: dict[str, dict[str, Any]] = {
        "the driver's": {},
        "another type byte": {"kind": "x"},
        "no direction": {"direction": 0},
        "read only": {"direction": 2},
        "write only": {"direction": 1, "kind": "\0"},
    }
    return {name: client.memory(100 + i, 1 << 21, **form)[0] for i, (name, form) in enumerate(forms.items())}


def test_only_low_byte_and_size_of_a_request_count(served: Any) -> None:
    assert set(served(_forms).values()) == {0}


def _pointers(place: Path) -> list[str]:
    client = Client(place)
    told = []
    with mmap.mmap(-1, 4 * mmap.PAGESIZE) as pages:
        end = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + 2 * mmap.PAGESIZE
        hole = end + mmap.PAGESIZE
        # Ours, so that no other memory comes to lie there, and inaccessible.
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(2 * mmap.PAGESIZE), 0) == 0
        for address in (0, 16, hole, end - 8, 1 << 63, (1 << 64) - 8):
            for direction in (0, 3):
                try:
                    ioctl(client.file, request(ALLOC, 48, direction=direction), address)
                    told.append(f"{address:x} went through")
                except OSError as error:
                    told.append(error.strerror)
    return [word for word in told if word != "EFAULT"]


def test_bad_pointers_are_efault(served: Any) -> None:
    assert served(_pointers) == []


def _own_files(place: Path) -> int:
    """The call's struct lies in a mapping of the very file that it is for: the server must serve both at once."""
    client = Client(place)
    with mmap.mmap(client.file, 1 << 20, mmap.MAP_SHARED) as mapped:
        base = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        threads = [
            threading.Thread(target=ioctl, args=(client.file, request(ALLOC, 48, direction=0), base + 4096 * i))
            for i in range(200)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return sum(thread.is_alive() for thread in threads)


def test_arguments_inside_the_nodes_own_mappings_do_not_stop_the_server(served: Any) -> None:
    assert served(_own_files) == 0


def _passed(place: Path) -> tuple[int, int]:
    """Memory exported into another open file of the same process, found by its descriptor."""
    client = Client(place)
    client.memory(1, GIB)
    carrier = os.open(place / "nvidiactl", os.O_RDWR)
    params = bytearray(2128)
    struct.pack_into("<iIH", params, 0, carrier, 0x5C000001, 1)
    struct.pack_into("<I", params, 76, 1)
    struct.pack_into("<H", params, 2124, 1)
    status = client.control(client.handle, 0x3D0B, bytes(params))[0]
    struct.pack_into("<i", params, 0, os.open("/dev/null", os.O_RDWR))
    other = client.control(client.handle, 0x3D0B, bytes(params))[0]
    return status, other


def test_a_descriptor_in_a_call_is_the_callers(served: Any) -> None:
    assert (0, 0x3B) == served(_passed)


def _first_calls(place: Path) -> int:
    begin, done = threading.Barrier(8), []

    def call() -> None:
        first, second = (os.open(place / "nvidia-uvm", os.O_RDWR) for _ in range(2))
        ioctl(first, 0x30000001, ctypes.create_string_buffer(16))
        begin.wait(30)
        named = ctypes.create_string_buffer(struct.pack("<iI", first, 1), 8)
        ioctl(second, 0x4B, named)
        done.append(struct.unpack_from("<I", named, 4)[0])

    threads = [threading.Thread(target=call, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return done.count(0)


def test_callers_that_all_name_descriptors_at_once_are_all_served(served: Any) -> None:
    """The first calls of a new server: it closes its copies of those descriptors, which asks itself the first time."""
    assert [8] * 10 == [served(_first_calls) for _ in range(10)]


def _pids(place: Path) -> tuple[list[int], list[int], int]:
    client = Client(place)
    question = struct.pack("<II", 0, 0x2080).ljust(3812, b"\0")
    inner = in_namespaces(_ask_inside, place, pid=True)
    answer = client.control(SUBDEVICE, 0x2080018D, question)[1]
    count = struct.unpack_from("<I", answer, 8)[0]
    return inner, list(struct.unpack_from(f"<{count}I", answer, 12)), os.getpid()


def _ask_inside(place: Path) -> list[int]:
    client = Client(place)
    question = struct.pack("<II", 0, 0x2080).ljust(3812, b"\0")
    answer = client.control(SUBDEVICE, 0x2080018D, question)[1]
    count = struct.unpack_from("<I", answer, 8)[0]
    return list(struct.unpack_from(f"<{count}I", answer, 12))


def test_processes_are_named_as_the_asker_sees_them(served: Any) -> None:
    """In a pid namespace of its own, a process sees itself as 1, and no process outside."""
    inner, outer, own = served(_pids)
    assert inner == [1]
    assert outer == [own]


def _managed(place: Path) -> list[int]:
    """UVM's requests are plain numbers, of which the kernel copies nothing."""
    file = os.open(place / "nvidia-uvm", os.O_RDWR)
    told = []
    for number, size, at, flags in ((37, 40, 36, 0xEE), (0x30000001, 16, 8, 0), (37, 40, 36, 0xEE), (73, 24, 16, 0xEE)):
        call = ctypes.create_string_buffer(bytes([flags]) * at + b"\xee" * (size - at), size)
        ioctl(file, number, call)
        told.append(struct.unpack_from("<I", call, at)[0])
    with mmap.mmap(file, 1 << 21, mmap.MAP_SHARED, offset=0x7F0000000000) as mapped:
        told.append(mapped[0])
    return told


def test_the_node_of_managed_memory_takes_plain_numbers_and_mappings_at_their_address(served: Any) -> None:
    """Not initialised (0x40), initialised, an unknown GPU (0x12), a range off any page (0x1E), a mapping that
    reads as zeros.
    """
    assert [0x40, 0, 0x12, 0x1E, 0] == served(_managed)


@pytest.mark.parametrize(
    ("driver", "size"),
    [("535.288.01", 436), ("550.163.01", 444), ("555.58.02", 444), ("560.35.03", 460), ("575.64.05", 460), ("", 1028)],
)
def test_memory_is_told_in_a_struct_of_the_releases_own_size(tmp_path: Path, driver: str, size: int) -> None:
    """FB_GET_INFO_V2 has as many entries as the release has numbers; others are refused, as the driver does."""

    def ask(place: Path) -> list[int]:
        client = Client(place)
        asked = struct.pack("<III", 1, 0x9, 0)
        sizes = (436, 444, 452, 460, 1028)
        return [each for each in sizes if client.control(SUBDEVICE, 0x20801303, asked.ljust(each, b"\0"))[0] == 0]

    def serving() -> list[int]:
        text = machine_text(load("h200"), nodes=True)
        have = re.search("^driver=(.*)$", text, re.M)
        assert have is not None
        (tmp_path / "machine").write_text(text.replace(f"driver={have[1]}\n", f"driver={driver or have[1]}\n"))
        manager = serve(tmp_path / "machine", tmp_path / "nodes")
        try:
            return ask(tmp_path / "nodes")
        finally:
            manager.terminate()
            manager.wait(20)

    assert [size] == in_namespaces(serving, timeout=40)


def _priorities(place: Path) -> set[int]:
    """Nice values of the manager's threads; one has answered a call before."""
    Client(place)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    managers = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "nvc-sim-manager\n"]
    return {os.getpriority(os.PRIO_PROCESS, int(task)) for pid in managers for task in os.listdir(f"/proc/{pid}/task")}


def test_it_answers_before_programs_that_compute(served: Any) -> None:
    """A driver is no process. 500 containers that ended at once kept it from the processor, and so stops of caps."""
    assert served(_priorities) == {-20}
