"""Ways by which code in a supervisor (native/test/malicious_supervisor.c) once reached beyond its container."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.guard.supervisors import ATTACHED, Supervisors
from nvc.share.store import start_time
from tests.nvc.guard.test_confinement import container, devices, first_of, share
from tests.support import leftovers
from tests.support.firsts import FirstProcess
from tests.support.native import build

__all__ = ["devices"]
pytestmark = pytest.mark.root

#: A process of the host that says when its memory was written.
VICTIM = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
place = libc.mmap(ctypes.c_void_p(0x10000000), 4096, 3, 0x32, -1, 0)
print("here", flush=True)
end = time.monotonic() + 8
while time.monotonic() < end and ctypes.string_at(0x10000000, 5) != b"owned":
    time.sleep(0.02)
print(ctypes.string_at(0x10000000, 5), os.getuid(), flush=True)
"""


def may_pass_descriptors() -> bool:
    """Whether a monitor can have CAP_SYS_RESOURCE (linux/capability.h: 24) here."""
    text = Path("/proc/self/status").read_text()
    return bool(int(text.partition("CapBnd:")[2].split()[0], 16) & 1 << 24)


@contextlib.contextmanager
def attacked(
    devices: Path, attack: str, monkeypatch: pytest.MonkeyPatch, first: int = 0, number: int = 1
) -> Iterator[Supervisors]:
    """first: the container's first process; 0: another one."""
    build("nvc-monitor", "nvc-supervisor", "malicious-supervisor")
    monkeypatch.setenv("NVC_TEST_ATTACK", attack)
    monkeypatch.setenv("NVC_TEST_REPORT", str(devices.parent / "report"))
    with FirstProcess() as another, Supervisors(str(devices)) as made:
        made._supervisor = made._supervisor.replace("nvc-supervisor", "malicious-supervisor")
        made.add(number, share(devices), 1, first=(first, start_time(first)) if first else another.key)
        pids = made.pids(number)
        try:
            yield made
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(KeyError, OSError):
                tenant = made._tenant(number)
                made.forget(number)
                assert tenant.process is not None
                tenant.process.wait()


#: Before that: a filter that allows everything.
FILTERED = """
import ctypes
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("rows", ctypes.c_void_p)]
rows = ctypes.create_string_buffer(b"\\x06\\0\\0\\0\\0\\0\\xff\\x7f", 8)
program = Program(1, ctypes.addressof(rows))
assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0
assert ctypes.CDLL(None).prctl(22, 2, ctypes.byref(program), 0, 0) == 0
"""
#: Its first thread ends, and another one goes on.
HEADLESS = f"""
import ctypes, threading
threading.Thread(target=exec, args=({VICTIM!r}, {{}})).start()
ctypes.CDLL(None).syscall(60, 0)
"""


def reported(devices: Path) -> str:
    """What the supervisor's code wrote."""
    report = devices.parent / "report"
    return report.read_text() if report.exists() else ""


def victim(*before: str, text: str = VICTIM) -> subprocess.Popen[str]:
    return subprocess.Popen([*before, sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


def test_the_memory_of_a_process_that_an_administrator_puts_into_the_pid_namespace(
    devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsenter --target PID --pid: the host's mount namespace, root, every capability."""
    with container() as one:
        try:
            first = first_of(one)
            with (
                attacked(devices, "scan", monkeypatch, first),
                victim("nsenter", f"--pid=/proc/{first}/ns/pid") as joined,
            ):
                assert joined.stdout is not None
                said = joined.stdout.read()
                assert "owned" not in said, said
        finally:
            one.kill()


@pytest.fixture
def in_cgroup() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process that is alone in a cgroup of version 1, and the file by which others join."""
    freezer = Path("/sys/fs/cgroup/freezer")
    if not freezer.exists():
        pytest.skip("no v1 freezer")
    cgroup = freezer / f"nvc-test-{os.getpid()}"
    cgroup.mkdir()
    joins = cgroup / "cgroup.procs"
    try:
        with subprocess.Popen(["sleep", "100"]) as one:
            try:
                joins.write_text(str(one.pid))
                yield one, joins
            finally:
                one.kill()
    finally:
        leftovers.until(lambda: not joins.read_text(), seconds=30)
        cgroup.rmdir()


def test_the_memory_of_a_process_that_joins_the_cgroup(
    devices: Path, monkeypatch: pytest.MonkeyPatch, in_cgroup: tuple[subprocess.Popen[bytes], Path]
) -> None:
    """runc exec puts its process into the container's cgroup before it enters any namespace."""
    one, joins = in_cgroup
    with attacked(devices, "scan", monkeypatch, one.pid), victim() as joined:
        assert joined.stdout is not None
        joined.stdout.readline()
        joins.write_text(str(joined.pid))
        said = joined.stdout.read()
        assert "owned" not in said, said


def test_a_mount_namespace_whose_number_is_used_again(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container without a cgroup and pid namespace of its own has ended; its supervisor has not."""
    one = subprocess.Popen(["unshare", "--mount", "sleep", "100"])
    assert leftovers.until(lambda: Path(f"/proc/{one.pid}/comm").read_text() == "sleep\n", seconds=30)
    number = os.stat(f"/proc/{one.pid}/ns/mnt").st_ino
    with attacked(devices, "scan", monkeypatch, one.pid):
        one.kill()
        one.wait()
        said, same = "", 0
        for _ in range(1):
            time.sleep(0.5)
            with victim("unshare", "--mount") as other:
                assert other.stdout is not None
                other.stdout.readline()
                same = os.stat(f"/proc/{other.pid}/ns/mnt").st_ino
                said = other.stdout.read()
        assert "owned" not in said, (said, number, same)


def test_the_memory_of_the_monitor(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with attacked(devices, "monitor-memory", monkeypatch):
        said = reported(devices)
        assert '"done"' in said
        assert "monitor-memory" not in said, said


def test_the_socket_that_the_agent_and_all_others_log_to(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd gives a service one stream socket of journald's."""
    own, others = socket.socketpair()
    kept = os.dup(2)
    with own, others:
        os.dup2(others.fileno(), 2)
        try:
            with attacked(devices, "shutdown", monkeypatch):
                try:
                    others.send(b"a line of the agent")
                    error = ""
                except OSError as failed:
                    error = str(failed)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        assert error == ""


def test_the_processes_of_the_host(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a number that no test beside this one has, whose supervisors would have the same user.
    with attacked(devices, "forks", monkeypatch, number=4711):
        found = [json.loads(line) for line in reported(devices).splitlines() if '"forks"' in line]
        assert found[0]["value"] < 200


def test_it_ends_with_its_tenant(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with attacked(devices, "stay", monkeypatch) as made:
        monitor, supervisor = made.pids(1)
        tenant = made._tenant(1)
        process, tenant.process = tenant.process, None
        assert process is not None
        with contextlib.suppress(OSError):
            made.remove(1)

        def alive() -> list[int]:
            return [pid for pid in (monitor, supervisor) if process.poll() is None and os.path.exists(f"/proc/{pid}")]

        leftovers.until(lambda: not alive(), seconds=30)
        before = reported(devices)
        time.sleep(1.5)
        said = reported(devices).removeprefix(before)
        left = alive()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        process.wait()
        assert (left, said) == ([], "")


def test_a_process_that_it_makes_ends_with_its_tenant(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with attacked(devices, "orphan", monkeypatch) as made:
        _, supervisor = made.pids(1)
        (child,) = [int(word) for word in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
        try:
            made.remove(1)
            assert leftovers.until(lambda: not os.path.exists(f"/proc/{child}"), seconds=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(not may_pass_descriptors(), reason="no CAP_SYS_RESOURCE")
def test_descriptors_in_flight_of_uid_0_of_another_container(
    devices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The kernel counts descriptors in flight for each uid, and a monitor has no CAP_SYS_RESOURCE."""
    program = tmp_path / "inflight"
    source = Path(__file__).parents[3] / "tests/system/programs/inflight.c"
    subprocess.run([shutil.which("cc") or "cc", "-o", str(program), str(source)], check=True)
    with subprocess.Popen([str(program)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert "Too many references" in other.stdout.readline()
            build("nvc-monitor", "nvc-supervisor")
            with FirstProcess() as first, Supervisors(str(devices)) as made:
                made.add(1, share(devices), 1, first=first.key)
        finally:
            other.kill()


def test_a_filtered_process_of_the_host(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor of attached processes reaches no process, whichever was attached."""
    with attacked(devices, "scan", monkeypatch, number=ATTACHED | 1), victim(text=FILTERED + VICTIM) as other:
        assert other.stdout is not None
        said = other.stdout.read()
        assert "here" in said
        assert "owned" not in said, said


def test_a_process_whose_first_thread_has_ended_is_the_containers(
    devices: Path, monkeypatch: pytest.MonkeyPatch, in_cgroup: tuple[subprocess.Popen[bytes], Path]
) -> None:
    """/proc/PID/cgroup of a thread that has ended says "/" of version 1."""
    one, joins = in_cgroup
    join = f"open('{joins}', 'w').write('0')\n"
    found = []
    with attacked(devices, "scan", monkeypatch, one.pid):
        for text in (FILTERED + join + VICTIM, FILTERED + join + HEADLESS):
            # The scan of all pids takes longer on a busy machine.
            text = text.replace("monotonic() + 8", "monotonic() + 60")
            with victim(text=text) as other:
                assert other.stdout is not None
                found.append("owned" in other.stdout.read())
    assert found == [True, True]


def test_a_container_ends_with_a_supervisor_that_left_a_process(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with container() as one:
        try:
            first = first_of(one)
            with attacked(devices, "orphan", monkeypatch, first) as made:
                _, supervisor = made.pids(1)
                place = Path(f"/proc/{supervisor}/task/{supervisor}/children")
                child = int(place.read_text())
                os.kill(supervisor, signal.SIGKILL)
                try:
                    assert leftovers.until(lambda: not os.path.exists(f"/proc/{first}"), seconds=30)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
        finally:
            one.kill()
