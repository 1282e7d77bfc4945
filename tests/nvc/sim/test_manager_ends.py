"""The simulated manager when something ends: descriptors, mappings, processes, waiting calls, the mount."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.leftovers import wait_until
from tests.support.manager import FREE, Client, ioctl, request, used

pytestmark = pytest.mark.root

GIB = 1 << 30


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
    """A duplicate keeps it, and so does a forked child; after the last one the memory is reported as free."""
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
    wait_until(lambda: used(watcher) == 0)
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
    wait_until(lambda: used(watcher) == 100 * GIB)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return used(watcher), Client(place).memory(1, 100 * GIB)[0]


def test_a_killed_process_leaves_nothing(served: Any) -> None:
    assert (0, 0) == served(_killed)


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
    assert others < 30, "the call would wait for 60 s"
    assert 0.02 <= work < 30
    assert status == 0


def _interrupted(place: Path) -> str:
    client = Client(place)
    _channel(client)
    progress = struct.pack("<IIQQQQQII", client.handle, 0x201, 1, 60 * 10**9, 0, 0, 0, 0, 0)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # the first may come before the call
    try:
        ioctl(client.file, request(0xE1, len(progress), kind="S"), ctypes.create_string_buffer(progress, len(progress)))
    except OSError as error:
        return str(error.strerror)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "it went on"


def test_a_signal_interrupts_a_wait(served: Any) -> None:
    assert served(_interrupted) == "EINTR"


def _busy_end(place: Path) -> int:
    client = Client(place)
    return client.file


def test_the_mount_goes_although_a_node_is_open(served: Any) -> None:
    """The fixture looks: the directory is empty after the manager's end."""
    assert served(_busy_end) >= 0
