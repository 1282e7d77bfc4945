"""Monitors of tenants: which callers are answered, and what is ended. The real programs, no containers."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from nvc.guard import channel
from nvc.guard.channel import HEAD, OPEN, Connection, connect
from nvc.guard.supervisors import ATTACHED, Supervisors
from nvc.share.store import start_time
from tests.nvc.guard.test_supervisors import (
    SHARE,
    Firsts,
    alone,
    devices,
    directory,
    end,
    first,
    firsts,
    start,
)
from tests.support import leftovers
from tests.support.contained import Contained

__all__ = ["alone", "devices", "directory", "first", "firsts"]
pytestmark = pytest.mark.root


def test_a_damaged_plan_is_not_adopted_and_changes_nothing(devices: str, directory: str, firsts: Firsts) -> None:
    plan = Path(directory, "tenants/1/plan")
    pids = start(devices, directory, 1, firsts())
    with Supervisors(devices, directory) as guard:
        guard.find_again(1)
        whole = plan.read_bytes()
        with plan.open("r+b") as file:
            file.write(b"\xff" * len(whole))
        time.sleep(0.1)
        guard.refresh(1)
    with Supervisors(devices, directory) as after:
        with pytest.raises(ValueError, match="a plan of version"):
            after.find_again(1)
        with plan.open("r+b") as file:
            file.write(whole)
        assert after.find_again(1) == SHARE
        assert after.pids(1) == pids


def test_a_late_answer_is_not_taken_for_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "SECONDS", 0.05)
    ours, monitor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = Connection(ours)
    with monitor, contextlib.closing(connection):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                connection.command(HEAD.pack(OPEN, 0))
        ends = os.pipe()
        for result in (0, 0):
            socket.send_fds(monitor, [HEAD.pack(OPEN, result)], [ends[1]])
        os.close(ends[1])
        monitor.send(HEAD.pack(OPEN, -errno.EBUSY))
        with pytest.raises(OSError, match="Device or resource busy"):
            connection.command(HEAD.pack(OPEN, 0))
        assert os.read(ends[0], 1) == b"", "descriptors of late answers are closed"
        os.close(ends[0])
        monitor.send(HEAD.pack(OPEN, 0))
        connection.command(HEAD.pack(OPEN, 0))


def test_a_monitor_answers_root_alone_and_no_packet_ends_it(devices: str, directory: str, firsts: Firsts) -> None:
    start(devices, directory, 1, firsts())
    path = f"{directory}/tenants/1/monitor"
    assert os.stat(path).st_mode & 0o777 == 0o600
    with Supervisors(devices, directory) as guard:
        guard.find_again(1)
        for packet in (b"x", HEAD.pack(77, 0), HEAD.pack(channel.LISTEN, 0), HEAD.pack(channel.ATTACH, 0)):
            with connect(path) as connected:
                connected.send(packet)
                answer = connected.recv(100)
                assert answer == b"" or HEAD.unpack(answer)[1] < 0
        with connect(path) as connected:
            socket.send_fds(connected, [HEAD.pack(OPEN, 0)], [0] * 17)
            assert connected.recv(100) == b""
        held = [connect(path) for _ in range(40)]
        guard.refresh(1)
        for one in held:
            one.close()
        os.chmod(path, 0o666)
        assert asked_by_another(path) == b""
        guard.refresh(1)
        with connect(path) as connected:
            connected.send(HEAD.pack(OPEN, 0))
            assert HEAD.unpack_from(connected.recv(100)) == (0, 0)


def asked_by_another(path: str) -> bytes:
    """What an ordinary user is answered that asks for the tenant's counters."""
    os.chmod(os.path.dirname(path), 0o711)
    place = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    script = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('monitor')\n"
        "try: s.send(bytes.fromhex(sys.argv[1])); sys.stdout.buffer.write(s.recv(100))\n"
        "except (BrokenPipeError, ConnectionResetError): pass"
    )
    try:
        return subprocess.run(
            ["/usr/bin/python3", "-IS", "-c", script, HEAD.pack(OPEN, 0).hex()],
            preexec_fn=lambda: os.fchdir(place),
            user=65534,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    finally:
        os.close(place)


def test_an_answer_that_comes_late_is_not_that_of_the_next_request(alone: Supervisors, firsts: Firsts) -> None:
    alone.add(1, SHARE, 1, first=firsts())
    _, supervisor = alone.pids(1)
    listener, other = os.pipe()
    os.kill(supervisor, signal.SIGSTOP)
    with pytest.raises(OSError) as raised:
        alone.listen(1, listener)
    assert raised.value.errno == errno.ETIMEDOUT
    os.kill(supervisor, signal.SIGCONT)
    assert leftovers.until(lambda: alone.status(1).listeners == 1, seconds=20)
    with pytest.raises(OSError) as raised:
        alone.attach(1, listener, (1, 2), [])
    assert raised.value.errno == errno.EINVAL, "it is guarded, not attached"
    alone.refresh(1)
    for number in (listener, other):
        os.close(number)


def test_what_has_the_filter_of_a_tenant_that_is_over_is_ended_at_its_next_call(
    devices: str, directory: str, tmp_path: Path
) -> None:
    """Its listener went with the monitor: its calls were answered ENOSYS."""
    (tmp_path / "agent").mkdir(exist_ok=True)
    with Supervisors(devices, directory) as guard, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/agent/listen")
        server.listen()
        one = Contained(tmp_path)
        try:
            connection, _ = server.accept()
            with connection:
                _, (listener,), _, _ = socket.recv_fds(connection, 4096, 1)
            guard.add(1, SHARE, 1, first=(one.pid, start_time(one.pid)))
            pids = guard.pids(1)
            guard.listen(1, listener)
            os.close(listener)
            guard.remove(1)
            assert leftovers.until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), seconds=30)
            time.sleep(0.2)
            one.say()
            assert one.process.wait(20) == -signal.SIGKILL
        finally:
            one.end()


def test_attached_processes_run_on_without_their_supervisor(alone: Supervisors) -> None:
    with subprocess.Popen(["sleep", "300"]) as process:
        pinned = os.pidfd_open(process.pid)
        number = ATTACHED | 5
        alone.add(number, SHARE, 1, first=(process.pid, start_time(process.pid)))
        alone.attach(number, pinned, (1, 2), [])
        alone.refresh(number)
        assert alone.attached(number)[0] == 1
        with pytest.raises(OSError, match="17 channels of 17 files"):
            alone.attach(number, pinned, (1, 2), [(1, 2, 3, one) for one in range(17)])
        pids = alone.pids(number)
        os.kill(pids[1], signal.SIGKILL)
        assert end([*pids])
        assert process.poll() is None
        process.kill()
        os.close(pinned)
