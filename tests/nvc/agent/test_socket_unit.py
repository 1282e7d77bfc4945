"""Sockets that systemd made (nvc-agent.socket): the agent serves them, and leaves them where they are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvc.agent.notify import Systemd
from nvc.agent.state.records import prepare
from nvc.share.protocol import Client
from tests.support import leftovers
from tests.support.acceptors import acceptor, end_acceptor
from tests.support.service_manager import ACTIVATED

pytestmark = pytest.mark.root

NAMES = ("listen", "control")
PRINT = Path(__file__).parent / "programs/print_given_sockets.py"


def listening(directory: Path) -> list[socket.socket]:
    made = []
    for name in NAMES:
        one = socket.socket(socket.AF_UNIX)
        (directory / name).unlink(missing_ok=True)
        one.bind(str(directory / name))
        one.listen(8)
        made.append(one)
    return made


@contextmanager
def agent(directory: Path, sockets: list[socket.socket]) -> Iterator[None]:
    """Ends with SIGTERM."""
    # Numbers that are free here, and then 3 and 4 there.
    numbers = [one.fileno() for one in sockets]
    script = f'exec "$0" "$@" 3<&{numbers[0]} 4<&{numbers[1]}'
    command = [
        sys.executable,
        str(ACTIVATED),
        "agent",
        "--directory",
        str(directory),
        "--store",
        str(directory / "share"),
    ]
    environment = {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "nvc-agent.socket:nvc-agent.socket"} if sockets else {}
    words = ["bash", "-c", script, *command]
    with open(directory / "log", "ab") as log:
        process = subprocess.Popen(words, pass_fds=numbers, stderr=log, env={**os.environ, **environment})
    try:
        assert leftovers.until(lambda: answers(directory, process.pid), seconds=40), (directory / "log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(20)


def answers(directory: Path, pid: int) -> bool:
    log = (directory / "log").read_text()
    return f'"pid":{pid}' in log and '"ready"' in log


def test_the_agent_serves_a_units_sockets_and_leaves_them(tmp_path: Path) -> None:
    directory = tmp_path / "agent"
    prepare(str(directory))
    sockets = listening(directory)
    inodes = [os.stat(directory / name).st_ino for name in NAMES]
    for _ in range(2):
        with agent(directory, sockets), Client(str(directory / "control")) as client:
            assert client.call("status")["tenants"] == []
            assert leftovers.until(lambda: acceptor(directory)[1] == os.fstat(sockets[0].fileno()).st_ino, seconds=20)
        assert [os.stat(directory / name).st_ino for name in NAMES] == inodes
    before = acceptor(directory)
    assert before[0], "it accepts for the next agent"
    # A client that connects between two agents waits for the next.
    with Client(str(directory / "control")) as waiting, agent(directory, sockets):
        assert waiting.call("status")["tenants"] == []
    assert acceptor(directory) == before, "each agent finds the same"
    # Made anew by systemd: an acceptor that listens on the one before is replaced.
    for one in sockets:
        one.close()
    sockets = listening(directory)
    with agent(directory, sockets), Client(str(directory / "control")) as client:
        assert client.call("status")["tenants"] == []
        inode = os.fstat(sockets[0].fileno()).st_ino
        assert leftovers.until(lambda: acceptor(directory)[1] == inode, seconds=20)
        assert acceptor(directory)[0] != before[0]
    for one in sockets:
        one.close()
    end_acceptor(directory)


def test_names_of_a_socket_unit_are_those_of_the_files(tmp_path: Path) -> None:
    one, another = listening(tmp_path)
    another.close()
    end, other = os.pipe()
    done = subprocess.run(
        ["bash", "-c", f'exec "$0" "$@" 3<&{one.fileno()} 4<&{end}', sys.executable, PRINT],
        env={**os.environ, "LISTEN_FDS": "2", "LISTEN_FDNAMES": "nvc-agent.socket:other"},
        pass_fds=(one.fileno(), end),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[('listen', 3), ('other', 4)]\n"
    for number in (end, other):
        os.close(number)
    one.close()
    assert Systemd({"LISTEN_PID": "1", "LISTEN_FDS": "2"}).given == []
