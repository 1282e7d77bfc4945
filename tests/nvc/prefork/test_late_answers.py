"""A client of the pre-fork server waits a bounded time, then says why, and the container does not start."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.base import budgets
from nvc.cli.settings import TIMEOUT_LIMIT
from tests.nvc.prefork.test_server import ROOT, SECONDS, Process
from tests.nvc.prefork.test_standby_workers import children, idle, is_gone, name, process
from tests.support import fuse
from tests.support.leftovers import wait_until
from tests.support.warm import client_at

__all__ = ["process"]
pytestmark = pytest.mark.root
#: For each second of --timeout; client.h has 6000.
WAITED_MS = 200
WAITED_S = budgets.TIMEOUT_S * WAITED_MS / 1000
STAGE = ": agent error: no answer of the pre-fork server in "


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """The hook's, in an installation of the server's files."""
    hook = tmp_path / "bin/nvc-hook"
    (tmp_path / "lib/nvc-py/bin").mkdir(parents=True)
    (tmp_path / "lib/nvc-py/nvc").symlink_to(ROOT / "nvc")
    (tmp_path / "lib/nvc-py/bin/nvc-hook").touch()
    hook.parent.mkdir()
    client_at(tmp_path / "run", hook, f"DEFINES=-DNVC_ANSWER_MILLISECONDS={WAITED_MS}")
    return hook


@contextlib.contextmanager
def begun(client: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A start of which the container's state does not come, and its errors."""
    made = subprocess.Popen(
        [client, *words, "prestart"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        yield made
    finally:
        made.kill()
        for stream in (made.stdin, made.stderr):
            if stream:
                stream.close()
        made.wait()


def said(made: subprocess.Popen[bytes]) -> str:
    """All that it says until no process has its standard error; it failed, in time."""
    begun, text = time.monotonic(), b""
    assert made.stderr is not None
    while select.select([made.stderr], [], [], 2 * WAITED_S)[0] and (part := os.read(made.stderr.fileno(), 4096)):
        text += part
    assert time.monotonic() - begun < 2 * WAITED_S, text
    assert made.wait(SECONDS) == 1
    return text.decode()


def working(process: Process) -> int:
    """The worker, when it has the request."""
    found: list[int] = []

    def has_begun() -> bool:
        found[:] = [pid for pid in children(process.popen.pid) if name(pid) == "nvc-hook"]
        return bool(found)

    wait_until(has_begun)
    return found[0]


def test_the_client_has_the_same_numbers() -> None:
    header = (ROOT / "native/client/client.h").read_text()

    assert f"TIMEOUT_SECONDS = {budgets.TIMEOUT_S:g}," in header
    assert f"TIMEOUT_LIMIT = {TIMEOUT_LIMIT:g}," in header


def test_a_server_that_was_stopped_after_ready(process: Process, client: Path) -> None:
    """It has the streams of its clients, and an engine waits for the end of those."""
    idle(process)
    with begun(client) as made:
        worker = working(process)
        process.popen.send_signal(signal.SIGSTOP)
        text = said(made)
        assert text.startswith(f"nvc-hook{STAGE}{WAITED_S:g} s: ")
        assert text.endswith(")\n")
        assert "(hint: " in text
        assert text.count("\n") == 1
        wait_until(lambda: is_gone(worker))
        assert process.popen.wait(SECONDS) == -signal.SIGKILL


def test_a_worker_that_was_stopped(process: Process, client: Path) -> None:
    idle(process)
    with begun(client) as made:
        worker = working(process)
        os.kill(worker, signal.SIGSTOP)
        assert STAGE in said(made)
        wait_until(lambda: is_gone(worker))
    assert process.whole()


def test_a_longer_timeout_is_waited_for_as_much_longer(process: Process, client: Path) -> None:
    idle(process)
    with begun(client, f"--timeout={2 * budgets.TIMEOUT_S}") as made:
        os.kill(working(process), signal.SIGSTOP)
        assert made.stderr is not None
        assert not select.select([made.stderr], [], [], 1.2 * WAITED_S)[0]
        assert f"{STAGE}{2 * WAITED_S:g} s: " in said(made)


def test_a_file_system_whose_server_has_read_the_request(process: Process, client: Path, tmp_path: Path) -> None:
    """No signal ends a process that waits for the answer; what it has of the caller's it keeps until then."""
    fuse.needed()
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    idle(process)
    try:
        with fuse.slow(bundle, SECONDS), begun(client) as made:
            assert made.stdin is not None and made.stderr is not None
            made.stdin.write(json.dumps({"ociVersion": "1.0", "id": "x", "pid": 1, "bundle": str(bundle)}).encode())
            made.stdin.close()
            worker = working(process)
            assert made.wait(2 * WAITED_S) == 1
            assert Path(f"/proc/{worker}/stat").read_text().rpartition(") ")[2][0] == "D"
            assert process.whole()
            # Not up to its end: the worker has it, too.
            assert STAGE in os.read(made.stderr.fileno(), 4096).decode()
    finally:
        subprocess.run(["umount", bundle], check=True)
    wait_until(lambda: is_gone(worker))


def test_a_server_that_runs_is_left(client: Path, tmp_path: Path) -> None:
    """One that answers nothing, as ours never does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "run"))
        listener.listen()
        with begun(client) as made, listener.accept()[0] as connection:
            assert connection.recv(1 << 17)
            connection.send(b"R")
            assert connection.recv(16) == b"G"
            assert STAGE in said(made)
            assert connection.recv(16) == b""
