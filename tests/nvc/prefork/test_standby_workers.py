"""The worker that is forked in advance: it has no caller until it is given one, and ends when told."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.prefork import caller, server
from tests.nvc.prefork.test_server import LAST, SECONDS, Process, packet
from tests.support.leftovers import wait_until
from tests.support.traced import traced

pytestmark = pytest.mark.root


def children(pid: int) -> list[int]:
    """Of ``pid``, by their stat files."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def is_gone(pid: int) -> bool:
    """Ended; whether init has noticed or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def stop(pid: int) -> None:
    """Stop it. On a busy machine it runs for a while yet: a server that asked it then would wait for LATE_S."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T")


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def idle(process: Process) -> tuple[int, int]:
    """The idle worker and its container service, once both wait."""
    found: list[tuple[int, int]] = []

    def ready() -> bool:
        for found_idle in children(process.popen.pid):
            if name(found_idle) == "nvc:[idle]":
                found[:] = [(found_idle, child) for child in children(found_idle) if name(child) == "nvc:[container]"]
        return bool(found) and all(waits(pid) for pid in found[0])

    wait_until(ready)
    return found[0]


def waits(pid: int) -> bool:
    """In a socket, for its first packet."""
    try:
        return Path(f"/proc/{pid}/syscall").read_text().split()[0] in WAITING
    except OSError:
        return False


#: recvmsg and poll, which a service waits in (asm/unistd_64.h, asm-generic/unistd.h: ppoll).
WAITING = ("47", "7") if os.uname().machine == "x86_64" else ("212", "73")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_it_does_the_next_request_and_another_takes_its_place(process: Process) -> None:
    worker, service = idle(process)
    assert process.whole()
    wait_until(lambda: is_gone(worker))
    assert is_gone(service)
    assert idle(process)[0] != worker


def test_one_that_was_killed_is_replaced_without_a_failed_request(process: Process) -> None:
    worker, service = idle(process)
    os.kill(worker, signal.SIGKILL)
    assert process.whole()
    assert idle(process)[0] != worker
    wait_until(lambda: is_gone(service))


def test_what_a_caller_lent_is_let_go_before_the_answer(process: Process) -> None:
    """It may unmount its directory, and reads to the end of what we print."""
    read, write = os.pipe()
    directory = os.open(tempfile.gettempdir(), os.O_PATH)
    idle(process)
    with process.connect() as client, os.fdopen(read, "rb"):
        socket.send_fds(client, [packet()], [write, write, write, directory])
        os.close(write)
        os.close(directory)
        assert client.recv(16) == b"R"
        client.send(b"G")
        assert client.recv(16)[:1] == b"S"
        os.set_blocking(read, False)
        said = b""
        while part := os.read(read, 4096):  # BlockingIOError while another process holds the other side
            said += part
        assert said.startswith(b"nvc-py: ")


def test_its_service_may_die_as_well(process: Process) -> None:
    os.kill(idle(process)[1], signal.SIGKILL)
    assert process.whole()


def test_one_that_was_stopped_keeps_no_client_waiting(process: Process) -> None:
    """Attack: a container's root with the machine's processes. All that waits ends, stopped or not."""
    worker, service = idle(process)
    for pid in (service, worker):
        stop(pid)
    begun = time.monotonic()
    assert process.whole()
    assert time.monotonic() - begun < server.LATE_S
    wait_until(lambda: is_gone(worker) and is_gone(service))
    assert idle(process)[0] != worker


def test_one_that_does_not_begin_keeps_no_client_waiting_without_end(process: Process) -> None:
    worker, service = idle(process)
    with traced(worker):
        begun = time.monotonic()
        assert process.whole()
        assert server.LATE_S < time.monotonic() - begun < SECONDS
    wait_until(lambda: is_gone(worker) and is_gone(service))
    assert idle(process)[0] != worker


def test_one_of_which_a_tracer_keeps_the_status_is_replaced(process: Process) -> None:
    """Attack: it has ended for good, and its parent is not told how."""
    worker, _ = idle(process)
    with traced(worker):
        os.kill(worker, signal.SIGKILL)
        assert idle(process)[0] != worker
    assert process.whole()
    wait_until(lambda: not Path(f"/proc/{worker}").exists())


def test_its_service_may_be_stopped_as_well(process: Process) -> None:
    worker, service = idle(process)
    wait_until(lambda: waiting(service))
    stop(service)
    begun = time.monotonic()
    assert process.whole()
    assert time.monotonic() - begun < server.LATE_S
    wait_until(lambda: is_gone(worker) and is_gone(service))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_goes_with_the_prefork_server(process: Process, number: signal.Signals) -> None:
    both = idle(process)
    process.popen.send_signal(number)

    assert process.popen.wait(SECONDS) == (0 if number == signal.SIGTERM else -number)
    wait_until(lambda: all(is_gone(pid) for pid in both))


def test_it_goes_at_once_while_others_work(process: Process) -> None:
    """A client that has asked and not said go yet delays no other."""
    both = idle(process)
    with process.ask(packet()) as client:
        assert client.recv(16) == b"R"
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(SECONDS) == 0
    wait_until(lambda: all(is_gone(pid) for pid in both))


def test_a_terminals_signals_do_not_reach_it(process: Process) -> None:
    worker, service = idle(process)

    assert os.getpgid(worker) == os.getpgid(service) != os.getpgid(process.popen.pid)


def test_it_holds_nothing_of_another_request(process: Process) -> None:
    others = [process.ask(packet()) for _ in range(3)]
    assert [client.recv(16) for client in others] == [b"R"] * 3
    assert process.whole()
    worker, service = idle(process)  # forked while three clients had handed over their streams
    for client in others:
        client.close()
    for pid, most in ((worker, 4), (service, 4)):
        for number in os.listdir(f"/proc/{pid}/fd"):
            if int(number) > 2:
                target = os.readlink(f"/proc/{pid}/fd/{number}")
                # The pipes are those of the process that will be ldconfig.
                kinds = ("socket:", "anon_inode:[pidfd]", "/proc/", "/", *(("pipe:",) if pid == service else ()))
                assert target.startswith(kinds), target
                assert "/tmp/tmp" not in target
        sockets = [n for n in os.listdir(f"/proc/{pid}/fd") if os.readlink(f"/proc/{pid}/fd/{n}").startswith("socket:")]
        assert len(sockets) <= most


def test_the_process_of_ldconfig_holds_nothing_but_what_it_needs(process: Process) -> None:
    """It waits in namespaces of its own, with an empty root, and ends with the service."""
    _, service = idle(process)
    wait_until(lambda: waiting(service))
    (sandbox,) = waiting(service)
    links = {number: os.readlink(f"/proc/{sandbox}/fd/{number}") for number in os.listdir(f"/proc/{sandbox}/fd")}

    assert links.pop("0") == "/dev/null"
    assert sorted(target.split(":")[0] for target in links.values() if target != "/") == [
        "/memfd", "pipe", "pipe", "pipe", "socket"
    ]  # fmt: skip
    assert sum(target == "/" for target in links.values()) == 4  # /proc, /sys, /dev and its root
    assert os.listdir(f"/proc/{sandbox}/root") == []
    assert len(Path(f"/proc/{sandbox}/mountinfo").read_text().splitlines()) == 1
    for kind in ("mnt", "pid", "net", "ipc", "uts"):
        assert os.readlink(f"/proc/{sandbox}/ns/{kind}") != os.readlink(f"/proc/{service}/ns/{kind}")
    assert status_of(sandbox, "CapBnd") == 0
    os.kill(service, signal.SIGKILL)
    wait_until(lambda: is_gone(sandbox))


def test_the_service_outlives_its_process_of_ldconfig(process: Process) -> None:
    _, service = idle(process)
    wait_until(lambda: waiting(service))
    (sandbox,) = waiting(service)
    os.kill(sandbox, signal.SIGKILL)
    wait_until(lambda: is_gone(sandbox))
    time.sleep(0.1)
    assert not is_gone(service)  # which starts another when it is needed (tests/nvc/container/ldcache/test_update.py)


def waiting(service: int) -> list[int]:
    """The process that will be ldconfig, once it is ready."""
    found = []
    for word in Path(f"/proc/{service}/task/{service}/children").read_text().split():
        with contextlib.suppress(OSError):  # it may have ended
            found += [int(word)] if os.listdir(f"/proc/{word}/root") == [] else []
    return found


def status_of(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"\n{name}:")[2].split()[0], 16)


LOOK = Path(__file__).parent / "programs/look_at_worker.py"


def test_worker_and_service_become_as_the_caller_is(tmp_path: Path) -> None:
    (tmp_path / "request").write_bytes(packet())
    done = subprocess.run(
        [sys.executable, LOOK, str(tmp_path / "request"), str(tmp_path), str(LAST)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    seen = json.loads(done.stdout)
    status, oom, nice = json.loads(done.stderr.splitlines()[-1])

    assert status == 7
    assert seen == {
        "sandbox": True,
        "same": True,
        "limits": [1, 4096, 8192],
        "oom": min(1000, oom + 7),
        "nice": nice + 3,
        "directory": str(tmp_path),
        "stderr": True,
        "log": True,
        "standby": True,
    }


def test_a_child_gets_the_attributes_of_another() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            ours = caller.attributes_of(child.pid)
            other = ours.replace(
                limits=tuple((n, 99, 100) if n == resource.RLIMIT_NOFILE else (n, s, h) for n, s, h in ours.limits),
                oom_score=min(1000, ours.oom_score + 5),
            )
            caller.apply(other, ours, child.pid)
            assert caller.attributes_of(child.pid) == other != caller.attributes_of(os.getpid())
        finally:
            child.kill()


def test_how_a_caller_is_crosses_whole() -> None:
    attributes = caller.attributes_of(os.getpid())

    assert caller.ProcessAttributes.unpack(attributes.packed() + b"rest") == (attributes, b"rest")
