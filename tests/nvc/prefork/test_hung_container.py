"""Hooks in a container of which a file system does not answer, when their caller is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hook import cdi
from nvc.base.budgets import IMAGE_TIMEOUTS
from nvc.linux import const, syscalls
from rpc.stop import SURPLUS_S
from tests.nvc.prefork.test_server import Process, packet
from tests.nvc.prefork.test_standby_workers import children, idle, is_gone, process
from tests.support import fuse
from tests.support.injection import MS_BIND, MS_REC, make_rootfs, mount

__all__ = ["process"]
fuse.needed()
pytestmark = pytest.mark.root
TIMEOUT_S = 1
WORDS = ("create-symlinks", f"--timeout={TIMEOUT_S}", "--link", "a::/etc/b")
#: As long as its caller would have waited, with what is undone, and somewhat for this machine.
LIMIT_S = TIMEOUT_S * IMAGE_TIMEOUTS + SURPLUS_S + 3.0


def by_client(server: Process, state: int, out: int) -> None:
    client = server.connect()
    here = os.open("/", os.O_PATH)
    socket.send_fds(client, [packet("nvc-cdi-hook", WORDS, ())], [state, out, out, here])
    assert client.recv(16) == b"R"
    client.send(b"G")
    client.recv(16)


def by_itself(server: Process, state: int, out: int) -> None:
    os.dup2(state, 0)
    sys.argv = ["nvc-cdi-hook", *WORDS]
    cdi.outcome()


@pytest.fixture
def container(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A root directory, and the device with the file system that is to be its /etc: nothing reads it."""
    device = os.open(fuse.DEVICE, os.O_RDWR)
    yield make_rootfs(tmp_path / "rootfs"), device
    os.close(device)


def start(run: Callable[[Process, int, int], None], server: Process, place: Path, root: Path, device: int) -> int:
    """A hook of the container at createContainer; its process."""
    state = {"ociVersion": "1.0", "id": "x", "status": "creating", "pid": 1, "bundle": str(place), "root": str(root)}
    (place / "state").write_text(json.dumps(state))
    (place / "config.json").write_text("{}")
    child = os.fork()
    if child:
        return child
    try:
        syscalls.unshare(const.CLONE_NEWNS)
        syscalls.mount(None, "/", None, const.MS_REC | const.MS_PRIVATE)
        mount(str(root), root, None, MS_BIND | MS_REC)
        given = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
        mount("fuse", root / "etc", "fuse", 0, given)
        os.close(device)  # with this process its end would be the file system's
        run(server, os.open(place / "state", os.O_RDONLY), os.open(place / "out", os.O_WRONLY | os.O_CREAT))
    finally:
        os._exit(1)


def holding(pid: int, root: Path) -> list[int]:
    """Processes below ``pid`` that wait for the file system, in the kernel."""
    found = []
    for child in children(pid):
        try:
            waits = "fuse" in Path(f"/proc/{child}/wchan").read_text()
        except OSError:
            continue
        found += [child] if waits else holding(child, root)
    return found


@pytest.mark.parametrize("kind", ["standby worker", "fork", "program"])
def test_nothing_of_ours_is_left_long_after_its_caller(
    tmp_path: Path, process: Process, container: tuple[Path, int], kind: str
) -> None:
    """Attack: the caller is killed; a process that waits for the file system handles no signal."""
    root, device = container
    worker, _ = idle(process)
    if kind == "fork":
        os.kill(worker, signal.SIGSTOP)
    caller = start(by_itself if kind == "program" else by_client, process, tmp_path, root, device)
    try:
        end = time.monotonic() + 10
        above = caller if kind == "program" else process.popen.pid
        while not (found := holding(above, root)):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        os.kill(caller, signal.SIGKILL)
        os.waitpid(caller, 0)
    time.sleep(0.1)
    assert not all(is_gone(pid) for pid in found), "it was to be attacked"
    end = time.monotonic() + LIMIT_S
    while not all(is_gone(pid) for pid in found):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert process.whole()
