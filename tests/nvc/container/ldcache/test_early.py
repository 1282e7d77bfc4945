"""The process that waits to be ldconfig: with its memory and without, its rights, its end."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

from nvc.container.ldcache import process, sandbox
from nvc.container.ldcache.program import open_program
from nvc.linux import raw_ctypes, syscalls
from tests.support import injection, native
from tests.support.injection import container, isolated, locate
from tests.support.ldconfig import TWO, run, wait_for

root = pytest.mark.root


def _stack(process: int | str) -> int:
    """The main stack's memory in kB."""
    smaps = Path(f"/proc/{process}/smaps").read_text()
    return int(smaps.partition("[stack]")[2].partition("Rss:")[2].split()[0])


def _deepen(kibibytes: int) -> None:
    """Write below the stack, as deep calls do: the kernel extends it."""
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[stack]"))
    end = int(line.split()[0].split("-")[1], 16)
    for page in range(0, kibibytes << 10, 4096):
        here = end - page - 4096
        if here < int(line.split("-")[0], 16):
            ctypes.memset(here, 0, 1)


@root
@isolated
def test_one_that_died_while_it_waited_is_not_missed(rootfs: Path) -> None:
    with open_program("/sbin/ldconfig") as waiting:
        pid = process.in_advance(waiting)
        assert pid == process.in_advance(waiting)  # the same one
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a signal that was sent has not ended it yet
    with container(rootfs) as first:
        run(locate(first, rootfs), "/sbin/ldconfig")
        assert injection.inside(first, rootfs, "/etc/ld.so.cache").exists()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@root
@isolated
def test_one_that_stands_by_has_no_memory_and_no_more_rights(probe: Path) -> None:
    """The same process as one that waits in Python, but for its memory, of which a deep stack is a part."""
    seen = {}
    _deepen(1000)
    assert _stack("self") > 800, "the stack is not deep"
    for way, standby in (("in Python", raw_ctypes.standby), ("standing by", native.extension().standby)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(syscalls, "standby", standby)
            pid = wait_for(probe)
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = {line.split(":")[0]: line.split(":")[1].strip() for line in lines}
        limits = Path(f"/proc/{pid}/limits").read_text()
        maps = Path(f"/proc/{pid}/maps").read_text()
        names = ("Name", "Uid", "Gid", "Groups", *(f"Cap{kind}" for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")))
        assert (_stack(pid) > 800) == (way == "in Python")
        seen[way] = [status[name] for name in (*names, "NoNewPrivs", "Seccomp", "SigIgn", "SigBlk")], limits
        assert os.listdir(f"/proc/{pid}/root") == []
        assert ("python" in maps) == (way == "in Python")
        if way == "standing by":
            assert int(status["SigCgt"], 16) == 0  # the functions are gone
            # exact, which VmRSS is not with its counters for each CPU
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            assert int(rollup.partition("Rss:")[2].split()[0]) < 400, rollup  # kB
        unused = process.take()
        assert unused is not None
        unused.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    assert seen["in Python"] == seen["standing by"]


@root
@pytest.mark.parametrize("way", TWO, indirect=True)
@pytest.mark.parametrize("is_running", [False, True])
def test_it_dies_with_its_service(probe: Path, rootfs: Path, way: str, is_running: bool) -> None:
    @isolated
    def check() -> None:
        with container(rootfs) as container_pid:
            read, write = os.pipe()
            service = os.fork()
            if service == 0:
                with contextlib.suppress(BaseException):
                    os.write(write, b"%d" % wait_for(probe))
                    if is_running:
                        located = locate(container_pid, rootfs)
                        # Changing ids would make the kernel forget the signal.
                        located.container = located.container.replace(owner_uid=100_000, owner_gid=100_001)
                        run(located, probe, "/hang")
                    time.sleep(60)
                os._exit(1)
            pid = int(os.read(read, 16))
            with open(f"/proc/{pid}/comm") as comm:
                end = time.monotonic() + 20
                while is_running and comm.read().strip() == "nvc:[ldconfig]":
                    assert time.monotonic() < end
                    time.sleep(0.01)
                    comm.seek(0)
                gone = os.pidfd_open(pid)
                os.kill(service, signal.SIGKILL)
                os.waitpid(service, 0)
                # Sooner than the limit of its processor time, which it uses up: it may not sleep.
                assert select.select([gone], [], [], 15)[0]

    check()


@root
@pytest.mark.parametrize("way", ["now", *TWO], indirect=True)
@pytest.mark.parametrize("count", [1000, 5000])
def test_many_directories(probe: Path, rootfs: Path, way: str, count: int) -> None:
    """More than the one that was started in advance takes, too."""
    directories = [f"/usr/lib/{number}" for number in range(count)]

    @isolated
    def check() -> None:
        with container(rootfs) as pid:
            seen = run(locate(pid, rootfs), probe, *directories, way=way)

        assert [line[4:] for line in seen if line.startswith("arg=")][5:] == directories

    check()


def test_orders_that_cannot_be_carried_out_leave_everything() -> None:
    standby = native.extension().standby
    orders = bytes(sandbox._ORDERS.size)

    assert standby(orders, bytes(1 << 16), b"") == -errno.ENOSPC
    assert standby(orders, b"", bytes(1 << 20)) == -errno.ENOSPC
    with pytest.raises(ValueError, match="size"):
        standby(orders + b"\0", b"", b"")
    with pytest.raises(ValueError, match="size"):
        standby(orders, b"", struct.pack("=Q", 1))


def test_what_stands_by_needs_no_library() -> None:
    """libc is gone by then."""
    native.extension()
    asked = subprocess.run(
        ["nm", "-u", native.BUILD / "syscall/standby.o"], check=True, capture_output=True, text=True
    ).stdout.split()

    assert set(asked) - {"U"} <= {"__ehdr_start", "_end", "_GLOBAL_OFFSET_TABLE_"}
