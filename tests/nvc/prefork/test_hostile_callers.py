"""The pre-fork server against a container's root that has its socket: mounted by mistake, or handed on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nvc.agent import registrations
from nvc.base.errors import AgentError
from nvc.prefork import packets, server
from nvc.share import store
from tests.nvc.prefork.test_server import PROGRAMS, PROGRAMS_OF_TESTS, ROOT, SECONDS, START, Process, packet
from tests.support.isolation import in_namespaces

pytestmark = pytest.mark.root
#: Another client's work is done by then: far less than a descriptor lingers, or a file system waits.
SOON = 60.0
FEWER = ("setpriv", "--bounding-set=-sys_admin")
MOUNTING = ("setpriv", "--bounding-set=-sys_module", "unshare", "--mount")
NESTED = ("unshare", "--user", "--map-root-user", "--mount")
#: With a kernel that tells of a process that connected its number alone (before Linux 6.5).
BEFORE = "import nvc.prefork.caller; nvc.prefork.caller._SO_PEERPIDFD = 12345; from hook.warm"
OLD = [*START[:2], START[2].replace("from hook.warm", BEFORE)]
CONNECT = "import socket, sys; one = socket.socket(fileno=int(sys.argv[1])); one.connect(sys.argv[2])"
GO = "; socket.send_fds(one, [sys.stdin.buffer.read()], [0, 1, 2, 0]); one.send(b'G')"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    try:
        yield made
    finally:
        assert made.end() == 0


@contextmanager
def hostile(process: Process, kind: str, *words: str) -> Iterator[None]:
    """A caller of ``programs/send_hostile.py`` that had sent its request before the server looked, and stays."""
    command = [*words, sys.executable, PROGRAMS_OF_TESTS / "send_hostile.py", process.path, kind]
    process.popen.send_signal(signal.SIGSTOP)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as caller:
        assert caller.stdin is not None and caller.stdout is not None
        caller.stdin.write(packet())
        caller.stdin.close()
        try:
            try:
                assert caller.stdout.readline() == b"sent\n"
            finally:
                process.popen.send_signal(signal.SIGCONT)
            yield
        finally:
            caller.kill()


@pytest.mark.parametrize(
    ("kind", "words"), [("lingers", FEWER), ("lingers", NESTED), ("looked-at", MOUNTING)], ids=lambda value: str(value)
)
def test_a_caller_with_less_than_the_machines_root_holds_up_no_other(
    process: Process, kind: str, words: tuple[str, ...]
) -> None:
    """Attack: what the server closes, or looks at, waits for as long as the caller likes."""
    begun = time.monotonic()
    for _ in range(3):
        with hostile(process, kind, *words):
            assert process.whole()
    assert time.monotonic() - begun < SOON


def test_more_than_the_closers_queue_holds_hold_up_no_other(process: Process) -> None:
    with hostile(process, "lingers", *FEWER):
        flood = "import socket, sys\nfor _ in range(800): socket.socket(1, 5).connect(sys.argv[1])"
        begun = time.monotonic()
        subprocess.run([*FEWER, sys.executable, "-c", flood, process.path], check=True, timeout=SECONDS)
        assert process.whole()
        assert time.monotonic() - begun < SOON


def test_callers_that_keep_on_connecting_leave_the_others_their_turn() -> None:
    class Endless:
        count = 0

        def accept(self) -> tuple[socket.socket, str]:
            self.count += 1
            assert self.count < 10_000
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            other.close()
            return one, ""

        def fileno(self) -> int:
            return 0

    listener = Endless()
    made = server.Server(listener, str(ROOT), PROGRAMS, "")  # type: ignore[arg-type]
    made._accept()

    assert 0 < listener.count <= 64


def test_an_error_of_a_descriptors_close_is_not_the_servers() -> None:
    """Attack: its file system answers with one."""
    reader, writer = os.pipe()
    os.close(reader)

    packets.close_all([reader, writer])

    with pytest.raises(OSError, match="Bad file"):
        os.fstat(writer)


# --- a number that is another process's by now ------------------------------------------------------------------------


def succeed(pid: int) -> subprocess.Popen[bytes]:
    """A process of ours with that number."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        made = subprocess.Popen(["sleep", "60"])
        if made.pid == pid:
            return made
        made.kill()
        made.wait()
    raise AssertionError(f"no process got the number {pid}")


@pytest.mark.parametrize("is_early", [False, True], ids=["go when asked", "go at once"])
def test_a_caller_with_the_number_of_a_better_one_is_not_served(tmp_path: Path, *, is_early: bool) -> None:
    """Attack: it connects and ends, its connection is another's, and so is its number when the server looks.

    In a pid namespace: of the machine's, numbers that were just free would be given again to processes of all tests.
    """
    answers = in_namespaces(succeeded, tmp_path, is_early, pid=True)
    assert not [one for one in answers if one[:1] == b"S"]


def succeeded(tmp_path: Path, is_early: bool) -> list[bytes]:
    """What such a caller is answered."""
    process = Process(tmp_path, OLD)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(SECONDS)
    process.popen.send_signal(signal.SIGSTOP)
    try:
        program = CONNECT + GO if is_early else CONNECT
        words = [*FEWER, sys.executable, "-c", program, str(client.fileno()), process.path]
        with subprocess.Popen(words, pass_fds=[client.fileno()], stdin=subprocess.PIPE) as caller:
            assert caller.stdin is not None
            caller.stdin.write(packet())
            caller.stdin.close()
            assert caller.wait(SECONDS) == 0
        another = succeed(caller.pid)
        try:
            if not is_early:
                socket.send_fds(client, [packet()], [0, 1, 2, 0])
            process.popen.send_signal(signal.SIGCONT)
            answers = []
            with suppress(ConnectionResetError):
                answers.append(client.recv(16))
                if answers == [b"R"]:
                    if not is_early:
                        client.send(b"G")
                    answers.append(client.recv(16))
            return answers
        finally:
            another.kill()
            another.wait()
    finally:
        client.close()
        process.popen.send_signal(signal.SIGCONT)
        assert process.end() == 0


def test_a_runtime_that_has_ended_is_not_registered(tmp_path: Path) -> None:
    """Attack: its number is another process's when the worker registers it."""
    known = registrations.Registrations(str(tmp_path))
    started = store.start_time(os.getpid())
    with pytest.raises(AgentError, match="has ended"):
        known.add("c", "/b", 1, 2, os.getpid(), started - 1)
    assert len(known) == 0

    assert known.add("c", "/b", 1, 2, os.getpid(), started).runtime_start == started
