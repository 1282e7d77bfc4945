"""The simulated manager behind real descriptors: system calls, last closes, hostile callers, the mount's end."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.sim.description import load
from nvc.sim.machine_text import machine_text
from tests.support.isolation import in_namespaces
from tests.support.manager import (
    ALLOC,
    FREE,
    SUBDEVICE,
    Client,
    ioctl,
    request,
    serve,
    used,
)
from tests.support.native import build

pytestmark = pytest.mark.root

GIB = 1 << 30
Body = Callable[[Path], Any]


@pytest.fixture
def served(tmp_path: Path) -> Callable[..., Any]:
    """Runs a function with the directory of a served machine, in namespaces that end with it."""
    build("nvc-sim-manager")

    def run(body: Body, *, pid: bool = False) -> Any:
        return in_namespaces(_with_manager, tmp_path, body, pid=pid, timeout=40)

    return run


def _with_manager(directory: Path, body: Body) -> Any:
    (directory / "machine").write_text(machine_text(load("h200"), nodes=True))
    manager = serve(directory / "machine", directory / "nodes")
    try:
        return body(directory / "nodes")
    finally:
        manager.send_signal(signal.SIGTERM)
        assert manager.wait(20) == 0
        assert os.listdir(directory / "nodes") == [], "the mount is gone"


def until(holds: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.002)
    return holds()


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


def _last_close(place: Path) -> list[int]:
    watcher = os.open(place / "nvidiactl", os.O_RDWR)
    client = Client(place)
    client.memory(1, GIB)
    copy = os.dup(client.file)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    client.close()
    seen = [used(watcher)]
    os.close(copy)
    seen.append(used(watcher))
    os.close(write_end)
    os.waitpid(child, 0)
    return [*seen, used(watcher)]


def test_memory_goes_with_the_last_descriptor_of_the_open_file(served: Any) -> None:
    """A duplicate keeps it, and so does a forked child; whoever asks after the last one is told that it is free."""
    assert [GIB, GIB, 0] == served(_last_close)


def _mapping(place: Path) -> int:
    watcher = os.open(place / "nvidiactl", os.O_RDWR)
    client = Client(place)
    client.memory(1, GIB)
    with mmap.mmap(client.file, 1 << 16, mmap.MAP_SHARED) as mapped:
        mapped[:4] = b"abcd"
        client.close()
        assert mapped[:4] == b"abcd"
        kept = used(watcher)
    assert until(lambda: used(watcher) == 0)
    return kept


def test_a_mapping_holds_the_open_file_like_a_descriptor(served: Any) -> None:
    assert served(_mapping) == GIB


def _killed(place: Path) -> tuple[int, int]:
    watcher = os.open(place / "nvidiactl", os.O_RDWR)
    child = os.fork()
    if child == 0:
        client = Client(place)
        for handle in range(100):
            client.memory(handle + 1, GIB)
        signal.pause()
    assert until(lambda: used(watcher) == 100 * GIB)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return used(watcher), Client(place).memory(1, 100 * GIB)[0]


def test_a_killed_process_leaves_nothing(served: Any) -> None:
    assert (0, 0) == served(_killed)


def _pointers(place: Path) -> list[str]:
    client = Client(place)
    told = []
    with mmap.mmap(-1, 8192) as pages:
        end = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + 8192
        gone = mmap.mmap(-1, 4096)
        hole = ctypes.addressof(ctypes.c_char.from_buffer(gone))
        ctypes.CDLL(None).munmap(ctypes.c_void_p(hole), ctypes.c_size_t(4096))
        for address in (0, 16, hole, end - 8, 1 << 63, (1 << 64) - 8):
            for direction in (0, 3):
                try:
                    ioctl(client.file, request(ALLOC, 48, direction=direction), address)
                    told.append(f"{address:x} went through")
                except OSError as error:
                    told.append(error.strerror)
        del gone
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


def _race(place: Path) -> tuple[int, int]:
    """Threads and processes that allocate and free the same handles until they are stopped."""
    watcher = os.open(place / "nvidiactl", os.O_RDWR)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            client = Client(place)

            def work(client: Client = client) -> None:
                while True:
                    client.memory(7, 3 << 30)
                    call = ctypes.create_string_buffer(struct.pack("<IIII", client.handle, 0, 7, 0), 16)
                    ioctl(client.file, request(FREE, 16), call)

            for _ in range(4):
                threading.Thread(target=work, daemon=True).start()
            signal.pause()
        children.append(child)
    most = 0
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        most = max(most, used(watcher))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return most // (12 << 30), used(watcher)


def test_racing_callers_and_kills_in_the_middle_of_calls_leave_exact_books(served: Any) -> None:
    over, left = served(_race)
    assert over <= 1
    assert left == 0


def _channel(client: Client) -> None:
    client.allocate(0x5C000001, 0x200, 0xA06C, struct.pack("<IIIII", 0, 0, 0, 1, 0))
    client.allocate(0x200, 0x201, 0xC86F, bytes(368))


def _waiting(place: Path) -> tuple[float, float, int]:
    client = Client(place)
    _channel(client)
    progress = struct.pack("<IIQQQQQII", client.handle, 0x201, 1, 60 * 10**9, 0, 0, 0, 0, 0)
    child = os.fork()
    if child == 0:
        ioctl(client.file, request(0xE1, len(progress), kind="S"), ctypes.create_string_buffer(progress, len(progress)))
        os._exit(0)
    time.sleep(0.05)
    start = time.monotonic()
    for handle in range(100):
        client.memory(300 + handle, 1 << 21)
    others = time.monotonic() - start
    start = time.monotonic()
    submit = struct.pack("<IIQQII", client.handle, 0x201, 20 * 10**6, 1, 0, 0)
    ioctl(client.file, request(0xE0, len(submit), kind="S"), ctypes.create_string_buffer(submit, len(submit)))
    _, status = os.waitpid(child, 0)
    return others, time.monotonic() - start, status


def test_a_waiting_call_blocks_nobody_and_wakes_when_the_work_is_done(served: Any) -> None:
    others, work, status = served(_waiting)
    assert others < 1
    assert 0.02 <= work < 2
    assert status == 0


def _interrupted(place: Path) -> str:
    client = Client(place)
    _channel(client)
    progress = struct.pack("<IIQQQQQII", client.handle, 0x201, 1, 60 * 10**9, 0, 0, 0, 0, 0)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        ioctl(client.file, request(0xE1, len(progress), kind="S"), ctypes.create_string_buffer(progress, len(progress)))
    except OSError as error:
        return str(error.strerror)
    return "it went on"


def test_a_signal_interrupts_a_wait(served: Any) -> None:
    assert served(_interrupted) == "EINTR"


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
    assert (0, 0x1F) == served(_passed)


def _first_calls(place: Path) -> int:
    begin, done = threading.Barrier(8), []

    def call() -> None:
        first, second = (os.open(place / "nvidia-uvm", os.O_RDWR) for _ in range(2))
        ioctl(first, 0x30000001, ctypes.create_string_buffer(16))
        begin.wait(10)
        named = ctypes.create_string_buffer(struct.pack("<iI", first, 1), 8)
        ioctl(second, 0x4B, named)
        done.append(struct.unpack_from("<I", named, 4)[0])

    threads = [threading.Thread(target=call, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
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
    """In a pid namespace of its own, a process sees itself as 1, and not who is outside."""
    inner, outer, own = served(_pids)
    assert inner == [1]
    assert outer == [own]


def _busy_end(place: Path) -> int:
    client = Client(place)
    return client.file


def test_the_mount_goes_although_a_node_is_open(served: Any) -> None:
    """The fixture looks: the directory is empty after the manager's end."""
    assert served(_busy_end) >= 0


def _managed(place: Path) -> list[int]:
    """UVM's requests are plain numbers, of which the kernel copies nothing."""
    file = os.open(place / "nvidia-uvm", os.O_RDWR)
    told = []
    for number, size, at in ((37, 40, 36), (0x30000001, 16, 8), (37, 40, 36), (73, 24, 16)):
        call = ctypes.create_string_buffer(b"\xee" * size, size)
        ioctl(file, number, call)
        told.append(struct.unpack_from("<I", call, at)[0])
    with mmap.mmap(file, 1 << 21, mmap.MAP_SHARED, offset=0x7F0000000000) as mapped:
        told.append(mapped[0])
    return told


def test_the_node_of_managed_memory_takes_plain_numbers_and_mappings_at_their_address(served: Any) -> None:
    """Not initialised (0x40), initialised, a GPU that nobody has (0x12), a range off any page (0x1E), a mapping that
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
