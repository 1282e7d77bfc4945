"""The pre-fork server against clients that do not mean well, and the agent that keeps one."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hook.warm import programs
from nvc.agent import standby
from nvc.prefork import request as prefork_request
from nvc.prefork import server
from nvc.prefork.request import Refused

ROOT = Path(__file__).parents[3]
PROGRAMS_OF_TESTS = Path(__file__).parent / "programs"
HEADER = struct.Struct("=8sIIII4Q")
SECONDS = 40
PROGRAMS = programs()
#: As an installation's lib/nvc-py/bin/nvc-warm does.
START = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hook.warm import run; run()"]
LAST = 4194303  # no process has it

pytestmark = pytest.mark.root


def packet(
    program: str = "nvc-py",
    arguments: tuple[str, ...] = ("configure", "--device=0", f"--pid={LAST}", "/nowhere"),
    environment: tuple[str, ...] = ("PATH=/usr/bin:/bin",),
    *,
    count: int | None = None,
    magic: bytes = b"nvcrun1\0",
    mask: int = 0o22,
    stamp: tuple[int, ...] | None = None,
) -> bytes:
    """A request as native/client makes it."""
    texts = b"".join(os.fsencode(text) + b"\0" for text in (program, *arguments, *environment))
    own = prefork_request.stamp_of(str(ROOT)) if stamp is None else stamp
    return HEADER.pack(magic, len(arguments) if count is None else count, len(environment), mask, 0, *own) + texts


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_a_request_is_read_as_it_was_meant() -> None:
    words = ("configure", "", "ü\udcff")
    request = prefork_request.decode(packet(arguments=words, environment=("A=1", "A=2", "B=", "=C", "D")))

    assert (request.program, request.words, request.mask) == ("nvc-py", words, 0o22)
    assert request.environment == {"A": "1", "B": ""}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 64,
        packet(magic=b"nvcrun2\0"),
        packet(count=3),
        packet(count=2**32 - 1),
        packet(mask=0o10000),
        packet()[:-1],
        packet(arguments=("x" * (96 << 10),)),
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        prefork_request.decode(data)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("list",),
        ("configure", "--device=0", "/tree"),
        ("configure", "--pid=0", "/tree"),
        ("configure", "--pid=-5", "/tree"),
        ("configure", "--pid=5", "--pid=0", "/tree"),
        ("configure", "--device", "--pid=5", "/tree"),
        ("configure", "--pid=5", "--nothing", "/tree"),
        ("--help", "configure", "--pid=5", "/tree"),
        ("configure", "--pid=5", "--usage", "/tree"),
        ("runtime", "configure", "--pid=5"),
        ("--debug=/proc/self/fd/7", "configure", "--pid=5", "/tree"),
        ("--debug=/dev/tty", "configure", "--pid=5", "/tree"),
    ],
)
def test_what_only_the_caller_can_do_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(Refused):
        prefork_request.check(prefork_request.decode(packet(arguments=words)), PROGRAMS)


@pytest.mark.parametrize(
    "variable",
    ["LD_PRELOAD=x", "LD_LIBRARY_PATH=", "GLIBC_TUNABLES=x", "LANG=C.ISO-8859-1", "_NVC_PY_COMPLETE=zsh_source"],
)
def test_variables_that_work_at_a_start_are_refused(variable: str) -> None:
    with pytest.raises(Refused):
        prefork_request.check(prefork_request.decode(packet(environment=(variable,))), PROGRAMS)


def test_what_containers_are_started_with_is_taken() -> None:
    for environment in ((), ("LANG=en_US.UTF-8", "HOME=/root"), ("LC_ALL=C.utf8", "LANG=de_DE"), ("LANG=C",)):
        prefork_request.check(prefork_request.decode(packet(environment=environment)), PROGRAMS)


def test_the_compiled_client_has_the_same_numbers() -> None:
    header = (ROOT / "native/client/client.h").read_text()

    assert f'"{standby.RUN}"' in header
    assert '#define REQUEST_MAGIC "nvcrun1"' in header
    assert f"REQUEST_LIMIT = {prefork_request.LIMIT // 1024} * 1024," in header
    assert f"REQUEST_DESCRIPTORS = {prefork_request.DESCRIPTORS}," in header
    names = (ROOT / "native/client/place.c").read_text().split("NAMES[] = {")[1].split("}")[0]
    assert f'#define CDI_HOOK "{prefork_request.CDI[0]}"' in header
    asking = [*prefork_request.CONFIGURE, *prefork_request.HOOK, *prefork_request.CDI]
    assert [name.strip('" \n') for name in names.split(",") if name.strip()][: len(asking)] == asking


# --- the process ------------------------------------------------------------------------------------------------------


class Process:
    """The pre-fork server of this checkout."""

    def __init__(self, directory: Path, start: list[str] = START) -> None:
        self.path = str(directory / "run")
        listener = standby.listen(self.path)
        self.popen = subprocess.Popen(
            [*start, str(listener.fileno()), str(ROOT), str(os.getpid()), ""],
            pass_fds=(listener.fileno(),),
            stdout=subprocess.PIPE,
        )
        listener.close()
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == b"ready\n"

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(SECONDS)
        client.connect(self.path)
        return client

    def ask(self, data: bytes, descriptors: int = 4) -> socket.socket:
        """Send a request; the connection."""
        client = self.connect()
        with tempfile.TemporaryFile() as file:
            directory = os.open("/", os.O_PATH)
            given = [file.fileno(), file.fileno(), file.fileno(), directory, *[file.fileno()] * 8][:descriptors]
            try:
                socket.send_fds(client, [data], given)
            finally:
                os.close(directory)
        return client

    def answer(self, data: bytes, descriptors: int = 4) -> bytes:
        with self.ask(data, descriptors) as client:
            return client.recv(16)

    def whole(self) -> bool:
        """It still does what it is there for."""
        with self.ask(packet()) as client:
            assert client.recv(16) == b"R"
            client.send(b"G")
            kind, status = struct.unpack("=ci", client.recv(16))
            return kind == b"S" and os.waitstatus_to_exitcode(status) == 1

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.popen.pid}/fd"))

    def end(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(SECONDS)
        finally:
            self.popen.kill()
            assert self.popen.stdout is not None
            self.popen.stdout.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    try:
        before = made.descriptors()
        yield made
        for _ in range(2):
            until = time.monotonic() + SECONDS
            while made.descriptors() != before:  # nothing of a client stays open
                assert time.monotonic() < until, made.descriptors()
                time.sleep(0.01)
            assert made.whole()
    finally:
        assert made.end() == 0


@pytest.mark.parametrize(
    ("data", "descriptors"),
    [
        (b"x", 4),
        (packet(), 0),
        (packet(), 3),
        (packet(), 5),
        (packet(), 12),
        (packet(count=77), 4),
        (packet() + b"\0" * (100 << 10), 4),
        (packet(stamp=(1, 2, 3, 4)), 4),
        (packet(program="sh"), 4),
    ],
)
def test_a_hostile_request_is_answered_no(process: Process, data: bytes, descriptors: int) -> None:
    assert process.answer(data, descriptors) == b"N"


def test_nothing_begins_before_go(process: Process) -> None:
    with process.ask(packet()) as client:
        assert client.recv(16) == b"R"
        client.send(b"K\x0f")
        assert client.recv(16) == b""  # that was not go
    with process.ask(packet()) as client:
        assert client.recv(16) == b"R"


def test_signals_that_are_not_a_callers_are_not_handed_on(process: Process) -> None:
    with process.ask(packet()) as client:
        assert client.recv(16) == b"R"
        client.send(b"G")
        for data in (b"K\x09", b"K\x13", b"K", b"KKK", b"G", b"\0" * 4000):
            try:
                client.send(data)
            except OSError:
                break  # it has ended
        assert client.recv(16)[:1] == b"S"


def test_slow_clients_are_left_and_delay_no_other(process: Process) -> None:
    slow = [process.connect() for _ in range(20)]
    half = process.ask(packet())
    assert half.recv(16) == b"R"
    assert process.whole()
    for client in (*slow, half):
        assert client.recv(16) == b""
        client.close()


def test_there_is_an_upper_limit(process: Process) -> None:
    many = [process.connect() for _ in range(server.MAX_SESSIONS)]
    try:
        with process.connect() as client:
            assert client.recv(16) == b"N"
    finally:
        for client in many:
            client.close()


def test_another_user_is_not_served(process: Process) -> None:
    script = PROGRAMS_OF_TESTS / "connect_as_another.py"
    done = subprocess.run([sys.executable, script, process.path], capture_output=True, text=True, timeout=SECONDS)

    assert done.stdout == "refused\n"


def test_it_is_small(process: Process) -> None:
    rollup = Path(f"/proc/{process.popen.pid}/smaps_rollup").read_text()
    private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))

    assert private < 24 << 10  # KiB


# --- the agent's side -------------------------------------------------------------------------------------------------


def library(directory: Path) -> Path:
    """What the pre-fork server needs of an installation: this checkout, with the program that is executed."""
    made = directory / "lib/nvc-py"
    (made / "bin").mkdir(parents=True)
    (made / "nvc").symlink_to(ROOT / "nvc")
    program = made / "bin" / standby.PROGRAM
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "$(cat <<\'PY\'\n{START[2]}\nPY\n)" "$@"\n')
    program.chmod(0o755)
    return made


def test_an_installation_without_clients_has_no_prefork_server(tmp_path: Path) -> None:
    asyncio.run(standby.Standby(str(tmp_path / "run"), library=str(tmp_path)).start())

    assert not (tmp_path / "run").exists()


def test_a_caller_with_what_the_server_may_not_take_over_is_told_of_once(tmp_path: Path) -> None:
    """Each of its hooks became a Python program, and nothing said so."""
    program, said = library(tmp_path) / "bin" / standby.PROGRAM, list[str]()
    program.rename(f"{program}-itself")
    program.write_text(f'#!/bin/sh\nexec setpriv --bounding-set=-sys_nice,-sys_resource nice "{program}-itself" "$@"\n')
    program.chmod(0o755)

    async def scene() -> None:
        keeping = standby.Standby(str(tmp_path / "run"), said.append, str(program.parents[1]))
        await keeping.start()
        try:
            for _ in range(2):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                    client.connect(str(tmp_path / "run"))
                    socket.send_fds(client, [packet()], [0, 0, 0, 0])
                    assert await asyncio.to_thread(client.recv, 16) == b"N"
            await until(lambda: said)
        finally:
            await keeping.stop()

    asyncio.run(asyncio.wait_for(scene(), 30))
    assert ["CAP_SYS_NICE" in line for line in said] == [True]


def test_it_is_renewed_while_the_socket_stays(tmp_path: Path) -> None:
    said: list[str] = []

    async def scene() -> None:
        keeping = standby.Standby(str(tmp_path / "run"), said.append, str(library(tmp_path)))
        await keeping.start()
        try:
            first, inode = keeping.pid, os.stat(tmp_path / "run").st_ino
            assert os.stat(tmp_path / "run").st_mode & 0o777 == 0o600
            await keeping.renew()
            second = keeping.pid
            assert second not in (0, first)
            await until(lambda: not os.path.exists(f"/proc/{first}"))
            os.kill(second, signal.SIGKILL)
            await until(lambda: keeping.pid not in (0, second))
            assert os.stat(tmp_path / "run").st_ino == inode
        finally:
            await keeping.stop()
        await keeping.stop()
        assert not os.path.exists(tmp_path / "run")
        assert keeping.pid == 0

    asyncio.run(asyncio.wait_for(scene(), 30))
    assert [line for line in said if "it died" in line]


async def until(condition: object) -> None:
    assert callable(condition)
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


def test_it_ends_with_its_agent(tmp_path: Path) -> None:
    script = PROGRAMS_OF_TESTS / "keep_standby.py"
    command = [sys.executable, script, str(tmp_path / "run"), str(library(tmp_path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        pidfd = os.pidfd_open(int(agent.stdout.readline()))
        try:
            agent.kill()
            assert select.select([pidfd], [], [], SECONDS)[0]
        finally:
            os.close(pidfd)
