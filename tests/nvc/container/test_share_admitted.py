"""The share step of a guarded container's start: the agent says whether its requests fit, and the store is not read."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent.connections import bind
from nvc.agent.control import ControlSocket
from nvc.agent.journal import Journal
from nvc.agent.promised import PromisedRequests
from nvc.agent.verbs import Verbs
from nvc.base.errors import AgentError, ContainerError
from nvc.base.undo import Undo
from nvc.share import fits, store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu, Room
from nvc.share.store import StoredShare, start_time
from tests.support import leftovers, share_step

GIB = 1 << 30
UUID = "GPU-b8058b66-3950-5eb2-94c2-df90166ee487"
ROOM = Room(UUID, 80 * GIB, always=False)
#: Names of files and directories that were opened, or listed, while ``counted``.
OPENED: list[str] = []
COUNTING = threading.Event()


def _opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and COUNTING.is_set():
        OPENED.append(str(arguments[0]))


sys.addaudithook(_opened)


def limits(request: int, most: int = 80) -> Limits:
    return Limits((ResolvedGpu(UUID, 0, request * GIB, request=request * GIB, most=most * GIB),), driver="580.105.08")


def add(shares: str, key: str, request: int, *, since: int | None = None, group: str = "") -> None:
    """By a start that no agent guards."""
    pid = os.getpid()
    record = StoredShare(key, key, pid, start_time(pid) if since is None else since, group=group)
    store.create(record, limits(request), b"", directory=shares)


@pytest.fixture
def shares(tmp_path: Path) -> str:
    (tmp_path / "rootfs").mkdir()
    directory = str(tmp_path / "s")
    add(directory, "first", 8)
    return directory


def start(shares: str, key: str, request: int, agent: str, undo: Undo | None = None, pid: int = 0) -> bool:
    rootfs = str(Path(shares).parent / "rootfs")
    return share_step.start(shares, key, rootfs, limits(request), (ROOM,), agent, undo, pid)


def no_more_than(count: int) -> bool:
    """Whether this process has so many files open."""
    return len(os.listdir("/proc/self/fd")) <= count


def keys(shares: str) -> list[str]:
    return sorted(name for name in os.listdir(shares) if not name.startswith("."))


@contextmanager
def agent(shares: str, control: str, workers: int = 4) -> Iterator[tuple[str, asyncio.AbstractEventLoop]]:
    """One that serves ``fits`` of a store. workers: of the pool that all but this verb have."""
    promised = PromisedRequests(shares)
    owner: Any = SimpleNamespace(promised=promised)
    serving = ControlSocket(bind(control), Verbs(owner).handlers(), Journal(-1), lambda: -1)
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(workers))
    task = loop.create_task(serving.serve())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield control, loop
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        promised.close()


@pytest.fixture
def asked(shares: str, tmp_path: Path) -> Iterator[str]:
    with agent(shares, str(tmp_path / "control")) as (control, _):
        yield control


def test_a_start_opens_as_many_files_beside_hundreds_as_beside_one(tmp_path: Path) -> None:
    """It read all entries twice, and once more with the store's lock: 48 ms beside 500 containers."""
    counts = {}
    for number in (1, 60):
        place = tmp_path / str(number)
        (place / "rootfs").mkdir(parents=True)
        shares = str(place / "s")
        for key in range(number):
            add(shares, f"c{key}", 1)
        with agent(shares, str(place / "control")) as (control, _):
            assert start(shares, "before", 1, control)  # the agent reads all of it once
            before = len(os.listdir("/proc/self/fd"))
            OPENED.clear()
            COUNTING.set()
            assert start(shares, "new", 15, control)
            assert start(shares, "new", 16, control) is False, "a second step: the tighter one stays"
            assert start(shares, "new", 14, control), "what it has does not count beside it"
            COUNTING.clear()
            assert leftovers.until(partial(no_more_than, before), seconds=30)
        counts[number] = len(OPENED)
    assert counts[1] == counts[60] > 9


def test_what_does_not_fit_is_refused_and_leaves_nothing(shares: str, asked: str) -> None:
    assert start(shares, "a", 60, asked)
    undo = Undo()
    with pytest.raises(ContainerError, match=r"a request of 13Gi does not fit .* 2 other containers"):
        start(shares, "b", 13, asked, undo)
    undo.rollback()
    assert keys(shares) == ["a", "first"]
    assert start(shares, "b", 12, asked)


def test_entries_that_came_just_now_count(shares: str, asked: str) -> None:
    """Of starts without a guard, and of one that was killed after it had made its entry."""
    assert start(shares, "a", 1, asked)
    for number in range(10):
        add(shares, f"b{number}", 7)
        with pytest.raises(ContainerError, match="does not fit"):
            start(shares, "c", 72 - 7 * (number + 1), asked)
        assert start(shares, "c", 71 - 7 * (number + 1), asked)
        store.remove("c", shares)


def test_ended_containers_that_the_agent_still_counts_are_in_no_others_way(shares: str, asked: str) -> None:
    add(shares, "ended", 70, since=1)
    assert start(shares, "a", 70, asked)


def test_a_second_step_that_gets_more_is_admitted_too(shares: str, asked: str) -> None:
    """What it had by the first step does not count beside it; a GPU that it had not may be full."""
    other = UUID.replace("b8", "c8")
    assert start(shares, "a", 72, asked)
    record = StoredShare("x", "x", os.getpid(), start_time(os.getpid()))
    full = limits(80).replace(gpus=(limits(80).gpus[0].replace(uuid=other),))
    store.create(record, full, b"", directory=shares)
    rooms = (ROOM, ROOM.replace(uuid=other))

    def again(undo: Undo | None = None) -> bool:
        return share_step.start(shares, "a", str(Path(shares).parent / "rootfs"), full, rooms, asked, undo)

    with pytest.raises(ContainerError, match=f"does not fit on GPU {other}"):
        again()
    store.remove("x", shares)
    undo = Undo()
    assert again(undo)
    with store.find("a", shares) as entry:
        assert [gpu.uuid for gpu in entry.limits().gpus] == [UUID, other]
        undo.rollback()
        assert [gpu.uuid for gpu in entry.limits().gpus] == [UUID]


def test_only_its_own_entry_goes_when_a_start_is_undone(shares: str, asked: str) -> None:
    undo = Undo()
    assert start(shares, "a", 1, asked, undo)
    store.remove("a", shares)
    add(shares, "a", 2, since=start_time(os.getpid()) - 1)
    undo.rollback()
    assert keys(shares) == ["a", "first"]


def hang(listener: socket.socket) -> None:
    time.sleep(30)


def take(listener: socket.socket, *answers: bytes, pause: float = 0.0) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            for answer in answers:
                connection.sendall(answer)
                time.sleep(pause)


def end(listener: socket.socket) -> None:
    listener.accept()[0].recv(65536)
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def child(control: str, act: Callable[[socket.socket], None], uid: int = 0) -> Iterator[int]:
    """A process that serves the socket as ``act`` does, and is killed at the end."""
    ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if uid:
                os.setgid(uid)
                os.setuid(uid)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(control)
            listener.listen(1)
            os.write(ready[1], b"x")
            act(listener)
        finally:
            os._exit(0)
    os.read(ready[0], 1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for end in ready:
            os.close(end)


BAD: dict[str, Callable[[socket.socket], None]] = {
    "hangs": hang,
    "is killed while it is asked": end,
    "ends in the middle": lambda listener: take(listener, b'{"ok": true, "fits"'),
    "is of a version without the verb": lambda listener: take(listener, b'{"ok": false, "message": "no verb"}\n'),
    "does not say that it fits": lambda listener: take(listener, b'{"ok": true}\n'),
    "answers nonsense": lambda listener: take(listener, b"[1]\n"),
    "answers what is no JSON": lambda listener: take(listener, b"\xff\n"),
    "answers slowly": lambda listener: take(listener, *[b" "] * 100, pause=0.05),
    "answers without end": lambda listener: take(listener, *[b" " * 60000] * 50),
}


@pytest.mark.parametrize("act", BAD.values(), ids=BAD)
def test_without_an_answer_the_store_decides(
    shares: str, tmp_path: Path, act: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "SECONDS", 0.3)
    control = str(tmp_path / "control")
    with child(control, act):
        begun = time.monotonic()
        with pytest.raises(ContainerError, match="does not fit"):
            start(shares, "a", 73, control)
        assert start(shares, "a", 72, control)
        assert time.monotonic() - begun < 5
    with pytest.raises(ContainerError, match="does not fit"):  # it was killed: its socket's name is left
        start(shares, "b", 1, control)


@pytest.mark.root
def test_a_socket_of_another_user_says_nothing(shares: str, tmp_path: Path) -> None:
    for place in (tmp_path, *tmp_path.parents):
        if place.is_relative_to("/tmp") and place != Path("/tmp"):
            place.chmod(place.stat().st_mode | 0o011)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o777)
    control = str(tmp_path / "theirs/control")
    for uid, is_believed in ((65534, False), (0, True)):
        with child(control, lambda listener: take(listener, b'{"ok": true, "fits": true}\n'), uid):
            found = os.stat(shares)
            question = fits.Question(found.st_dev, found.st_ino, "a", (ROOM,), limits(73).gpus)
            assert fits.ask(control, question) is is_believed
        os.unlink(control)


def test_the_agent_of_another_store_does_not_know(shares: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    add(other, "a", 1)
    with agent(other, str(tmp_path / "control")) as (control, _):
        assert start(other, "b", 73, control)
        with pytest.raises(ContainerError, match="does not fit"):
            start(shares, "b", 73, control)
        add(shares, "c", 72)
        (tmp_path / "s2").mkdir()
        os.rename(other, tmp_path / "old")  # and of another one in its place, which it did not see come
        os.rename(shares, other)
        with pytest.raises(ContainerError, match="does not fit"):
            start(other, "b", 1, control)


def test_where_all_threads_wait_for_the_store_a_start_is_answered(shares: str, tmp_path: Path) -> None:
    """As with many ``share set`` at once: each waits for the lock that the start holds."""
    with agent(shares, str(tmp_path / "control"), workers=2) as (control, loop):
        end = threading.Event()
        for _ in range(4):
            loop.call_soon_threadsafe(lambda: loop.run_in_executor(None, end.wait))
        try:
            found = os.stat(shares)
            question = fits.Question(found.st_dev, found.st_ino, "a", (ROOM,), limits(72).gpus)
            assert fits.ask(control, question)
        finally:
            end.set()


def test_a_question_that_is_none_is_refused(shares: str, asked: str) -> None:
    from nvc.share.protocol import Client

    with Client(asked) as client:
        for fields in ({}, {"device": 1}, {"device": "x"}):
            with pytest.raises(AgentError, match="fits: Question"):
                client.call("fits", **fields)


@pytest.mark.parametrize("guarded", [(True, True), (True, False)], ids=["both guarded", "one of them"])
def test_of_two_starts_at_once_one_is_admitted_where_one_fits(
    shares: str, tmp_path: Path, guarded: tuple[bool, bool]
) -> None:
    control = str(tmp_path / "control")
    with starter(shares, "a", control if guarded[0] else "") as one, starter(shares, "b", control) as two:
        first = set()
        with agent(shares, control):
            for number in range(100):
                ends = (one, two)[:: 1 if number % 2 else -1]
                for _, told in ends:
                    os.write(told, b"x")
                codes = [os.read(said, 1) for said, _ in (one, two)]
                assert sorted(codes) == [b"n", b"y"]
                first.add(codes.index(b"y"))
                store.remove("ab"[codes.index(b"y")], shares)
        assert first == {0, 1}, "they were at once"


@contextmanager
def starter(shares: str, key: str, control: str) -> Iterator[tuple[int, int]]:
    """A process that starts a container for each byte, and says whether it was admitted: what to read, to write."""
    told, said = os.pipe(), os.pipe()
    pid = os.fork()  # before the agent's threads
    if pid == 0:
        try:
            os.close(told[1])
            while os.read(told[0], 1):
                try:
                    start(shares, key, 40, control, pid=os.getppid())
                    os.write(said[1], b"y")
                except ContainerError as error:
                    os.write(said[1], b"n" if "does not fit" in str(error) else b"?")
        finally:
            os._exit(0)
    os.close(told[0])
    try:
        yield said[0], told[1]
    finally:
        os.close(told[1])
        os.waitpid(pid, 0)
        os.close(said[0])
        os.close(said[1])
