"""native/client against an agent of the test's own: what it makes of the packets that it gets."""

from __future__ import annotations

import select
import signal
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.warm import client_at

pytestmark = pytest.mark.root
SECONDS = 20
CODE, PYTHON = 7, 9


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """In an installation without more than it looks for; its agent's socket is ``agent``."""
    client_at(tmp_path / "agent", tmp_path / "client")
    for place in ("bin", "lib/nvc-py/bin", "lib/nvc-py/nvc"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "lib/nvc-py/nvc/__init__.py").touch()
    python = tmp_path / "lib/nvc-py/bin/nvc-py"
    python.write_text(f"#!/bin/sh\nexit {PYTHON}\n")
    python.chmod(0o755)
    return (tmp_path / "client").rename(tmp_path / "bin/nvc-py")


def test_an_answer_that_crosses_with_a_signal_is_not_lost(tmp_path: Path, client: Path) -> None:
    """The agent had ended the connection with the signal unread: the client said that the agent had died."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "agent"))
        listener.listen()
        listener.settimeout(SECONDS)
        with subprocess.Popen([client, "configure", "--pid=1", "/"], stderr=subprocess.PIPE) as process:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(SECONDS)
                assert connection.recv(1 << 17)
                connection.send(b"R")
                assert connection.recv(16) == b"G"
                assert leftovers.until(lambda: _catches(process.pid, signal.SIGTERM), seconds=SECONDS)
                process.send_signal(signal.SIGTERM)
                assert select.select([connection], [], [], SECONDS)[0]
                process.send_signal(signal.SIGSTOP)
                assert leftovers.until(lambda: _field(process.pid, "State:") == "T", seconds=SECONDS)
                connection.send(struct.pack("=ci", b"S", CODE << 8))
            process.send_signal(signal.SIGCONT)
            _, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, said) == (CODE, b"")


def _catches(pid: int, number: int) -> bool:
    return bool(int(_field(pid, "SigCgt:"), 16) >> number - 1 & 1)


def _field(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/status").read_text().partition(name)[2].split()[0]
