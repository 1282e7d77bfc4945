"""Real helpers: how they start, what they inherit and what they must not."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rpc.process
from rpc.client import Client
from rpc.errors import RemoteError
from rpc.process import start
from tests.support.demo_service import SERVICE, Answer, Question, gone, handlers, is_reaped, open_descriptors, telling

ROOT = Path(__file__).parents[2]


def test_a_call_runs_in_another_process(running: Callable[..., Client]) -> None:
    client = running(telling(lambda: f"{os.getpid()} {os.getppid()}"))
    assert f"{client.pid} {os.getpid()}" == client.call("run", Question()).text
    assert Answer("xyxy") == client.call("double", Question("xy"))


def test_large_requests_replies_and_descriptors_cross(running: Callable[..., Client]) -> None:
    client = running()
    text = "x\udc80" * 500_000
    answer, fds = client.call_with_fds("give", Question(text), [0, 1, 2])
    assert text == answer.text
    assert [os.fstat(fd).st_ino for fd in (0, 1, 2)] == list(answer.numbers)
    assert not any(os.get_inheritable(fd) for fd in fds)
    for fd in fds:
        os.close(fd)


def test_the_helper_has_only_its_own_socket(running: Callable[..., Client]) -> None:
    """With another service's end it would keep that one from ever seeing end of file."""

    def sockets() -> str:
        found = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
        return " ".join(name for name in found if name.startswith("socket:"))

    running()
    running()
    third = running(telling(sockets))
    inherited = {os.readlink(f"/proc/self/fd/{fd}") for fd in open_descriptors() if _is_open(fd)}
    own = set(third.call("run", Question()).text.split())
    assert 1 == len(own - inherited)
    ours = {os.readlink(f"/proc/self/fd/{client._channel.fileno()}") for client in rpc.process._clients}
    assert not own & ours


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_what_is_private_is_not_the_helpers(running: Callable[..., Client]) -> None:
    read, write = os.pipe()
    rpc.process.private.add(write)
    try:
        client = running()
        os.close(write)
        assert select.select([read], [], [], 60)[0]  # end of file, while the helper lives
        assert os.read(read, 1) == b""
        assert not gone(client.pid, 0.1)
    finally:
        rpc.process.private.discard(write)
        os.close(read)


def test_a_helper_of_a_helper_may_have_the_number_of_what_was_private(running: Callable[..., Client]) -> None:
    read, write = os.pipe()
    rpc.process.private.add(write)

    def ask() -> str:
        taken = []
        while write not in taken:  # the helper has closed it: all below are in use after this
            taken.append(os.open("/dev/null", os.O_RDONLY))
        os.close(read)
        os.close(write)
        with start(SERVICE, handlers(telling(lambda: f"{read, write}"))) as helper:
            return str(helper.call("run", Question()).text)

    try:
        assert read < write
        assert running(telling(ask)).call("run", Question()).text == f"{read, write}"
    finally:
        rpc.process.private.discard(write)
        os.close(read)
        os.close(write)


def test_the_callers_standard_streams_are_not_the_helpers(running: Callable[..., Client]) -> None:
    client = running(telling(lambda: " ".join(os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1))))
    assert "/dev/null /dev/null" == client.call("run", Question()).text


@pytest.mark.parametrize("closed", [(0,), (0, 1), (1,), (0, 1, 2)], ids=str)
def test_a_channel_on_a_standard_stream_survives(closed: tuple[int, ...]) -> None:
    """A caller that was started with stdin closed gets descriptor 0 from socketpair."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for fd in closed:
                os.close(fd)
            with start(SERVICE, handlers()) as client:
                status = int(client.call("double", Question("a")) != Answer("aa"))
        finally:
            os._exit(status)
    assert 0 == os.waitpid(child, 0)[1]


def test_signal_handlers_of_the_caller_do_not_run_in_the_helper(running: Callable[..., Client]) -> None:
    def handlers_now() -> str:
        return repr([signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)])

    before = signal.signal(signal.SIGHUP, lambda *_: None), signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        client = running(telling(handlers_now))
        blocked = running(telling(lambda: repr(signal.pthread_sigmask(signal.SIG_BLOCK, []))))
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGCHLD, before[1])
    default, ignore = signal.SIG_DFL, signal.SIG_IGN
    assert repr([default, ignore, default, default]) == client.call("run", Question()).text
    assert "set()" == blocked.call("run", Question()).text
    assert set() == signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_prepare_runs_in_the_helper_before_the_first_call(tmp_path: Path, running: Callable[..., Client]) -> None:
    client = running(telling(os.getcwd), prepare=lambda: os.chdir(tmp_path))
    assert str(tmp_path) == client.call("run", Question()).text
    assert str(tmp_path) != os.getcwd()


def test_a_prepare_that_fails_is_the_answer_to_every_call(running: Callable[..., Client]) -> None:
    def prepare() -> None:
        raise PermissionError(1, "no chroot for you")

    client = running(prepare=prepare, translate=lambda error: {"kind": type(error).__name__})
    for verb in ("double", "run"):
        with pytest.raises(RemoteError, match="no chroot for you") as caught:
            client.call(verb, Question())
        assert {"kind": "PermissionError"} == caught.value.data


def test_a_helper_that_hangs_in_prepare_is_timed_out(running: Callable[..., Client]) -> None:
    client = running(prepare=lambda: time.sleep(600), deadline=0.2)
    with pytest.raises(RemoteError, match=r"demo rpc error: timed out: double: no answer in 0\.2 s"):
        client.call("double", Question())
    assert is_reaped(client.pid)


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda: sys.exit(7), id="sys.exit"),
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGKILL), id="killed"),
        pytest.param(lambda: os._exit(7), id="exit"),
    ],
)
def test_a_prepare_that_ends_the_process_is_a_dead_helper(
    running: Callable[..., Client], leave: Callable[[], None]
) -> None:
    client = running(prepare=leave)
    with pytest.raises(RemoteError, match=r"failed to process request: double: the helper (died|ended) \("):
        client.call("double", Question())
    assert is_reaped(client.pid)


def test_no_exit_handler_and_no_finally_of_the_caller_runs_in_the_helper(tmp_path: Path) -> None:
    """The helper must never return into the caller's code, also not by an exception."""
    command = [sys.executable, Path(__file__).parent / "programs/end_in_prepare.py", tmp_path / "log"]
    done = subprocess.run(command, capture_output=True, timeout=30)
    assert (b"", b"unflushed ") == (done.stderr, done.stdout)
    assert "finally exit " == (tmp_path / "log").read_text()


@pytest.mark.parametrize("deadline", [0, -1, float("nan")])
def test_a_deadline_must_be_positive(deadline: float) -> None:
    with pytest.raises(ValueError, match="a deadline of"):
        start(SERVICE, handlers(), deadline=deadline)


def test_handlers_must_be_the_services() -> None:
    with pytest.raises(ValueError, match="verbs and handlers differ"):
        start(SERVICE, {})


def test_a_fork_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = open_descriptors()
    monkeypatch.setattr(os, "fork", no_fork)
    with pytest.raises(BlockingIOError):
        start(SERVICE, handlers())
    assert before == open_descriptors()
    assert set() == signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_no_descriptor_left_is_an_error_and_leaves_nothing() -> None:
    import resource

    before = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(fd) for fd in before)
    filler = [os.dup(0) for _ in range(highest + 1)]
    limit = max(filler) + 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            start(SERVICE, handlers())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filler:
            os.close(fd)
    assert before == open_descriptors()
