"""The process that does nvc-runtime's edits one after the other: for which callers, and what one leaves to the next."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.prefork import editor as prefork_editor
from tests.nvc.prefork.test_hostile_callers import process
from tests.nvc.prefork.test_server import SECONDS, Process, packet
from tests.nvc.prefork.test_standby_workers import children, is_gone, name, until, waits

__all__ = ["process"]
pytestmark = pytest.mark.root
SKIPPED = 3
WAITED_S = 0.3


@pytest.fixture
def edit(tmp_path: Path, process: Process) -> Callable[[], socket.socket]:
    """Begins the edit of a container that asks for nothing."""
    (tmp_path / "config.json").write_text(json.dumps({"ociVersion": "1.0.2", "process": {}, "root": {"path": "x"}}))
    data = packet("nvc-runtime", ("create", f"--bundle={tmp_path}", "x"))

    def begin() -> socket.socket:
        client = process.ask(data)
        assert client.recv(16) == b"R"
        client.send(b"G")
        return client

    return begin


def done(client: socket.socket) -> int:
    with client:
        kind, status = struct.unpack("=ci", client.recv(16))
        assert kind == b"S"
        return os.waitstatus_to_exitcode(status)


def editors(process: Process) -> list[int]:
    return [pid for pid in children(process.popen.pid) if name(pid) == "nvc:[edit]"]


@pytest.fixture
def editor(process: Process, edit: Callable[[], socket.socket]) -> int:
    """It, after the first edit."""
    assert editors(process) == []
    assert done(edit()) == SKIPPED
    until(lambda: any(waits(pid) for pid in editors(process)))
    [found] = editors(process)
    return found


def test_it_does_the_next_ones_and_keeps_nothing_of_them(
    process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    files = sorted(os.listdir(f"/proc/{editor}/fd"))
    for _ in range(3):
        assert done(edit()) == SKIPPED
        until(lambda: waits(editor))
        assert editors(process) == [editor]
        assert sorted(os.listdir(f"/proc/{editor}/fd")) == files
        assert os.readlink(f"/proc/{editor}/cwd") == "/"
    assert process.whole()


def test_one_that_hangs_holds_up_no_other_client(
    process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    """Attack: a bundle on a file system that does not answer."""
    os.kill(editor, signal.SIGSTOP)
    with edit() as hung:
        hung.settimeout(WAITED_S)
        with pytest.raises(TimeoutError):
            hung.recv(16)
        begun = time.monotonic()
        assert done(edit()) == SKIPPED
        assert process.whole()
        assert time.monotonic() - begun < SECONDS
    until(lambda: is_gone(editor))  # its client went
    assert done(edit()) == SKIPPED
    until(lambda: [pid for pid in editors(process) if pid != editor])


def test_one_that_was_killed_is_replaced_without_a_failed_edit(
    process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    os.kill(editor, signal.SIGKILL)
    assert done(edit()) == SKIPPED
    assert done(edit()) == SKIPPED
    until(lambda: [pid for pid in editors(process) if pid != editor])


def test_a_signal_of_its_client_ends_the_edit_alone(
    process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    os.kill(editor, signal.SIGSTOP)
    client = edit()
    client.send(b"K" + bytes([signal.SIGTERM]))
    os.kill(editor, signal.SIGCONT)
    assert done(client) in (-signal.SIGTERM, SKIPPED)
    assert done(edit()) == SKIPPED


@contextlib.contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_a_caller_with_other_limits_has_a_process_of_its_own(
    process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    with limited(resource.RLIMIT_NOFILE, 512):
        os.kill(editor, signal.SIGSTOP)  # it would not answer
        assert done(edit()) == SKIPPED
        os.kill(editor, signal.SIGCONT)
        assert done(edit()) == SKIPPED  # the second in a row: it has one that suits it from now on
        until(lambda: [pid for pid in editors(process) if pid != editor] or done(edit()) != SKIPPED)
        [found] = [pid for pid in editors(process) if pid != editor]
        until(lambda: waits(found))
        assert resource.prlimit(found, resource.RLIMIT_NOFILE)[0] == 512


def test_limited_processor_time_is_one_edits(process: Process, edit: Callable[[], socket.socket]) -> None:
    with limited(resource.RLIMIT_CPU, 3600):
        for _ in range(3):
            assert done(edit()) == SKIPPED
        assert process.whole()
        assert editors(process) == []


def test_it_ends_after_its_edits(process: Process, editor: int, edit: Callable[[], socket.socket]) -> None:
    for _ in range(prefork_editor.MAX_EDITS):
        assert done(edit()) == SKIPPED
    until(lambda: is_gone(editor))
    assert process.whole()
