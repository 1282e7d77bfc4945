"""The process that does nvc-runtime's edits one after the other: for which callers, and what one leaves to the next."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.prefork import editor as prefork_editor
from nvc.prefork import server
from tests.hook.runtime.test_entry32 import filters
from tests.nvc.prefork.test_hostile_callers import process
from tests.nvc.prefork.test_server import PROGRAMS_OF_TESTS, SECONDS, Process, packet
from tests.nvc.prefork.test_standby_workers import children, idle, is_gone, name, stop, waits
from tests.support import fuse
from tests.support.leftovers import wait_until
from tests.support.traced import traced

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


def pending(pid: int) -> int:
    """Signals that wait for a process, as a mask; 0 when it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/status").read_text().partition("ShdPnd:")[2].split()[0], 16)
    return 0


def editors(process: Process) -> list[int]:
    return [pid for pid in children(process.popen.pid) if name(pid) == "nvc:[edit]"]


@pytest.fixture
def editor(process: Process, edit: Callable[[], socket.socket]) -> int:
    """It, after the first edit."""
    assert editors(process) == []
    assert done(edit()) == SKIPPED
    wait_until(lambda: any(waits(pid) for pid in editors(process)))
    [found] = editors(process)
    return found


def test_it_does_the_next_ones_and_keeps_nothing_of_them(
    process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    files = sorted(os.listdir(f"/proc/{editor}/fd"))
    for _ in range(3):
        assert done(edit()) == SKIPPED
        wait_until(lambda: waits(editor))
        assert editors(process) == [editor]
        assert sorted(os.listdir(f"/proc/{editor}/fd")) == files
        assert os.readlink(f"/proc/{editor}/cwd") == "/"
    assert process.whole()


def test_one_that_hangs_holds_up_no_other_client(
    tmp_path: Path, process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    """Attack: a bundle on a file system that does not answer. It is not waited for before another editor is made."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    try:
        with fuse.mounted(bundle):
            with process.ask(packet("nvc-runtime", ("create", f"--bundle={bundle}", "x"))) as hung:
                assert hung.recv(16) == b"R"
                hung.send(b"G")
                hung.settimeout(WAITED_S)
                with pytest.raises(TimeoutError):
                    hung.recv(16)
                begun = time.monotonic()
                assert done(edit()) == SKIPPED
                assert process.whole()
                assert time.monotonic() - begun < server.LATE_S + 1
                wait_until(lambda: any(waits(pid) for pid in editors(process)))
                idle(process)
                [found] = [pid for pid in editors(process) if name(pid) == "nvc:[edit]" and pid != editor]
                assert not is_gone(editor)
                assert done(edit()) == SKIPPED
                wait_until(lambda: waits(found))
            wait_until(lambda: is_gone(editor))  # its client went
        assert done(edit()) == SKIPPED
        assert editors(process) == [found]
    finally:
        subprocess.run(["umount", bundle], check=True)


def test_one_that_was_stopped_keeps_no_client_waiting(
    process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    """Attack: a container's root with the machine's processes."""
    stop(editor)
    begun = time.monotonic()
    assert done(edit()) == SKIPPED
    assert time.monotonic() - begun < server.LATE_S
    wait_until(lambda: is_gone(editor))
    wait_until(lambda: any(waits(pid) for pid in editors(process)))  # not only after another edit


def test_one_that_does_not_begin_keeps_no_client_waiting_without_end(
    process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    with traced(editor):
        begun = time.monotonic()
        assert done(edit()) == SKIPPED
        assert server.LATE_S < time.monotonic() - begun < SECONDS
    wait_until(lambda: is_gone(editor))


def test_one_that_was_killed_is_replaced_without_a_failed_edit(
    process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    os.kill(editor, signal.SIGKILL)
    assert done(edit()) == SKIPPED
    assert done(edit()) == SKIPPED
    wait_until(lambda: [pid for pid in editors(process) if pid != editor])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_of_its_client_ends_the_edit_alone(
    process: Process, editor: int, edit: Callable[[], socket.socket], number: int
) -> None:
    with traced(editor):
        client = edit()
        client.send(b"K" + bytes([number]))
        wait_until(lambda: pending(editor) >> number - 1 & 1)
    assert done(client) == -number
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

        def others() -> list[int]:
            return [pid for pid in editors(process) if pid != editor]

        def asks() -> bool:
            assert done(edit()) == SKIPPED
            time.sleep(server.START_S / 4)  # starts that follow each other: one is made between them all the same
            return True

        wait_until(lambda: others() or (asks() and others()))
        [found] = others()
        wait_until(lambda: waits(found))
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
    wait_until(lambda: is_gone(editor))
    assert process.whole()


def test_a_container_that_is_to_be_refused_the_drivers_leaves_no_filter(
    tmp_path: Path, process: Process, editor: int, edit: Callable[[], socket.socket]
) -> None:
    """Attack: hooks that may give shares, and no GPU. The refusal is the runtime's own, and for good."""
    place = tmp_path / "etc/nvc"
    place.mkdir(parents=True)
    (place / "config.toml").write_text('[share]\nguard = "require"\n')
    entry = {"path": "/usr/bin/nvc-cdi-hook", "args": ["nvc-cdi-hook", "share"]}
    config = json.loads((tmp_path / "config.json").read_text()) | {"hooks": {"createContainer": [entry]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("create", f"--bundle={tmp_path}", "x")
    with process.ask(packet("nvc-runtime", words, (f"XDG_CONFIG_HOME={tmp_path}/etc",))) as client:
        assert client.recv(16) == b"R"
        client.send(b"G")
        assert done(client) == SKIPPED
    assert done(edit()) == SKIPPED
    wait_until(lambda: waits(editor))
    assert json.loads((tmp_path / "config.json").read_text()) == config
    assert filters(Path(f"/proc/{editor}/status").read_text()) == filters(Path("/proc/self/status").read_text())


# --- edits that leave something ---------------------------------------------------------------------------------------


def directory_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/cwd")
    return ""


TIDIED = ("descriptor", "high", "streams", "umask", "directory", "variable", "signals")
ENDED = ("filter", "rights", "group", "limit", "nice")


@pytest.fixture
def untidy(tmp_path: Path) -> Iterator[tuple[dict[str, Any], Callable[[str], dict[str, Any]]]]:
    """What was there in a process of its own, and what does others: each tells what it finds, and leaves something."""
    made = Process(tmp_path, [sys.executable, str(PROGRAMS_OF_TESTS / "serve_untidy_edits.py")])

    def begin(leaves: str) -> dict[str, Any]:
        ours, theirs = socket.socketpair()
        ours.settimeout(SECONDS)
        directory = os.open(tmp_path, os.O_PATH)
        with made.connect() as client, ours:
            data = packet("nvc-runtime", ("create", "x"), ("PATH=/usr/bin", f"LEAVE={leaves}"))
            socket.send_fds(client, [data], [*[theirs.fileno()] * 3, directory])
            theirs.close()
            os.close(directory)
            assert client.recv(16) == b"R"
            client.send(b"G")
            assert done(client) == 0
            # It may be unmounted now, and read to the end.
            assert str(tmp_path) not in [directory_of(pid) for pid in editors(made)]
            return dict(json.loads(b"".join(iter(lambda: ours.recv(1 << 16), b""))))

    try:
        alone = begin("")  # in a fork of the server
        wait_until(lambda: any(waits(pid) for pid in editors(made)))
        yield alone, begin
    finally:
        assert made.end() == 0


@pytest.mark.parametrize("leaves", ["", *TIDIED, *ENDED])
def test_nothing_that_an_edit_leaves_is_there_for_the_next(
    untidy: tuple[dict[str, Any], Callable[[str], dict[str, Any]]], leaves: str
) -> None:
    alone, edited = untidy
    before, after = edited(leaves), edited("")
    pids = [one.pop("pid") for one in (alone, before, after)]
    assert pids[0] != pids[1]
    assert (pids[1] == pids[2]) == (leaves not in ENDED)
    assert alone == before == after
