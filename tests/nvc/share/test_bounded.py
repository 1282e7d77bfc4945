"""Work that may never come back, and descriptors that are not answered for."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.linux import syscalls
from nvc.share import bounded, processes, region, store
from nvc.share.region import RegionSlot
from tests.support import fuse, leftovers
from tests.support.isolation import end_with_parent, in_namespaces

SILENT = pytest.mark.skipif(os.geteuid() == 0 and bool(fuse.missing()), reason="no file system can be served here")


def test_what_work_says_comes_back() -> None:
    assert "größer" == bounded.run(lambda: "größer", 10)
    assert "" == bounded.run(lambda: "", 10)


def test_work_that_hangs_is_given_up_and_ended() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        bounded.run(lambda: signal.pause() or "", 0.1)
    assert time.monotonic() - began < 50
    assert leftovers.until(lambda: bounded.run(str, 10) == "" and not has_child(), seconds=30)


def has_child() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # it is not reaped here
    except ChildProcessError:
        return False
    return True


def test_a_child_that_ended_late_is_reaped_by_the_next_call() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    bounded._left.add(child)
    assert leftovers.until(lambda: bounded.run(str, 10) == "" and child not in bounded._left, seconds=30)
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_work_keeps_none_of_our_locks(tmp_path: Path) -> None:
    """A child that hangs must not hold the lock of a container's entry."""
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)

    def work() -> str:
        try:
            os.fstat(held)
        except OSError:
            return "closed"
        return "open"

    assert "closed" == bounded.run(work, 10)
    os.close(held)


#: Seconds after which the silent file system is taken away from under the process that waits for it.
_SILENCE = 5


def _silent(path: str, ready: int) -> None:
    """A file system that never answers, until the limit, or the end of the process that forked this one.

    A process waits for it in the kernel; the connection ends with the only descriptor, so no wait outlives this.
    """
    end_with_parent()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_SILENCE)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=100000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"silent", path.encode(), b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
    os.write(ready, b"1")
    while True:
        signal.pause()


@contextlib.contextmanager
def silent_file(path: str) -> Iterator[int]:
    """A descriptor of a file whose file system never answers, served by a process of its own."""
    Path(path).touch()
    reading, ready = os.pipe()
    server = os.fork()
    if server == 0:
        try:
            _silent(path, ready)
        finally:
            os._exit(1)
    os.close(ready)
    try:
        assert os.read(reading, 1) == b"1", "the silent file system was not mounted"
        descriptor = os.open(path, os.O_PATH)
        yield descriptor
        os.close(descriptor)
    finally:
        os.close(reading)
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def _look(directory: str) -> dict[int, int]:
    with open(f"{directory}/region", "wb") as file:
        file.write(region.header_bytes())
    descriptor = os.open(f"{directory}/region", os.O_RDWR)
    zero = (0,) * region.MAX_GPUS
    namespace, started = os.stat("/proc/self/ns/pid").st_ino, store.start_time(os.getpid())
    slot = RegionSlot(0, os.getpid(), namespace, started, "x", False, zero, zero, zero, zero, zero)
    with silent_file(f"{directory}/silent"):
        return processes.host_pids(descriptor, [slot])


def _stat_silent(directory: str) -> int:
    with silent_file(f"{directory}/silent") as descriptor:
        try:
            os.stat(f"/proc/self/fd/{descriptor}")
        except OSError as error:
            return error.errno
    return 0


@SILENT
@pytest.mark.root
def test_a_process_with_files_that_never_answer_is_found_all_the_same(tmp_path: Path) -> None:
    """A tenant's own file system must not stop a list of shares."""
    assert 1 == len(in_namespaces(_look, str(tmp_path), pid=True, timeout=60))


@SILENT
@pytest.mark.root
def test_the_silent_file_system_is_taken_away_from_a_process_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above relies on: its file does hold up a plain stat, but for no longer than its server's limit."""
    monkeypatch.setattr(sys.modules[__name__], "_SILENCE", 1)
    began = time.monotonic()
    assert in_namespaces(_stat_silent, str(tmp_path), pid=True, timeout=60) == errno.ENOTCONN
    assert 0.9 < time.monotonic() - began < 50


def test_a_file_is_told_without_asking_for_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    expected = path.stat()
    kind, file, _ = syscalls.statx_cached(str(path))
    assert (expected.st_mode & 0o170000, (expected.st_dev, expected.st_ino)) == (kind, file)
    assert os.stat("/dev/null").st_rdev == syscalls.statx_cached("/dev/null")[2]
