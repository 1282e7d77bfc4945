"""Hooks of a CDI spec by the standby worker: its service is in the container's mount namespace for them alone."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hook.process import DEFAULT_PATH
from nvc.linux import rights
from nvc.prefork import server
from tests.nvc.prefork.test_server import SECONDS, Process, packet
from tests.nvc.prefork.test_standby_workers import children, idle, is_gone, name, process
from tests.support.leftovers import wait_until

__all__ = ["process"]
pytestmark = pytest.mark.root
LOOK = Path(__file__).parent / "programs/look_at_hooks.py"
HOOK = packet("nvc-cdi-hook", ("create-symlinks",), ())


def looked(directory: Path, *words: str) -> tuple[list[dict[str, object]], list[str]]:
    done = subprocess.run(
        [sys.executable, LOOK, *words], capture_output=True, text=True, timeout=SECONDS, cwd=directory
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.splitlines()


def test_the_service_runs_them_where_the_hook_is_and_as_its_own_process_would(tmp_path: Path) -> None:
    (outside,), (said, after) = looked(tmp_path)
    inside = json.loads(said)

    assert inside.pop("namespace") == outside["inside"] != outside["home"]
    assert outside["after"] == outside["home"]  # it holds nothing of the container when the hook ends
    assert inside.pop("rights") & ~rights.mask(rights.PERMITTED) == 0
    assert inside == {"state": [255, 123], "caller": [7, 8], "environment": {"PATH": DEFAULT_PATH}, "mask": 0o22}
    assert "by the hooks" in (tmp_path / "log").read_text()
    assert after == "forked"  # the second time


def test_what_they_raise_is_raised_and_the_container_left(tmp_path: Path) -> None:
    (outside, raised), _ = looked(tmp_path, "no such thing")

    assert outside["after"] == outside["home"]
    assert raised == {"error": "InputError", "text": "no such thing"}


def test_one_that_cannot_leave_the_container_ends_without_an_answer(tmp_path: Path) -> None:
    """Attack: what the hooks do in the container takes its rights."""
    (outside, raised), _ = looked(tmp_path, "stay")

    assert outside["after"] == ""
    assert raised["error"] == "MountError"
    assert "CDI hook rpc error: failed to process request: run: the helper ended (exit status 1)" == raised["text"]
    assert "cannot be left: operation not permitted" in (tmp_path / "log").read_text()


def test_no_hook_is_run_where_the_root_is_not_the_machines(tmp_path: Path) -> None:
    """Attack: the runtime has changed the root when the service comes, after the worker."""
    (outside, raised), _ = looked(tmp_path, "pivoted")

    assert outside["after"] == outside["home"]
    assert "is not the machine's" in str(raised["text"])


def test_they_run_where_the_hook_is_whatever_its_proc_says(tmp_path: Path) -> None:
    """Attack: the container's /proc is another by the time that the worker hands its mount namespace over."""
    (outside,), (said, _) = looked(tmp_path, "covered")

    assert json.loads(said)["namespace"] == outside["inside"] != outside["home"]


def test_the_worker_has_left_the_container_too(tmp_path: Path) -> None:
    (tmp_path / "request").write_bytes(HOOK)
    words = [sys.executable, LOOK.with_name("leave_container.py"), tmp_path / "request", tmp_path / "found"]
    subprocess.run(words, stdin=subprocess.DEVNULL, timeout=SECONDS, check=True)
    container, home, meanwhile, after = json.loads((tmp_path / "found").read_text())

    assert (meanwhile, after) == (container, home)
    assert container != home


def ask(process: Process, state: bytes) -> tuple[socket.socket, int]:
    """A hook's request with a state that names no container: the client, and what the hook says on."""
    read, write = os.pipe()
    directory = os.open(tempfile.gettempdir(), os.O_PATH)
    client = process.connect()
    with tempfile.TemporaryFile() as file:
        file.write(state)
        file.seek(0)
        socket.send_fds(client, [HOOK], [file.fileno(), write, write, directory])
    os.close(write)
    os.close(directory)
    assert client.recv(16) == b"R"
    return client, read


def failed(client: socket.socket, read: int) -> str:
    """What it said, when the answer has come: it holds our streams no more."""
    client.send(b"G")
    kind, status = struct.unpack("=ci", client.recv(16))
    assert (kind, os.waitstatus_to_exitcode(status)) == (b"S", 1)
    os.set_blocking(read, False)
    with client, os.fdopen(read, "rb") as file:
        return file.read().decode()


def test_the_next_worker_is_forked_when_the_container_has_started(process: Process) -> None:
    """Two at once: the worker has one, and the other is forked for."""
    worker, service = idle(process)
    first, second = ask(process, b""), ask(process, b"[]")
    begun = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert "container state on stdin is empty" in failed(*first)
    assert "not a JSON object" in failed(*second)
    wait_until(lambda: is_gone(worker) and is_gone(service))
    found, _ = idle(process)

    fields = Path(f"/proc/{found}/stat").read_text().rpartition(")")[2].split()
    assert int(fields[19]) / os.sysconf("SC_CLK_TCK") - begun >= server.START_S - 0.02
    assert [name(pid) for pid in children(process.popen.pid)].count("nvc:[idle]") == 1
