"""The acceptor without an agent: what it refuses, what it holds, and when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.agent import admission
from nvc.agent.admission import LOCK, Acceptors
from nvc.agent.connections import bind
from nvc.agent.journal import Journal
from nvc.agent.state.records import prepare
from tests.support import leftovers
from tests.support.acceptors import acceptor, processes, watchdogs
from tests.support.contained import KEY, Contained
from tests.support.native import build
from tests.support.opened import names

pytestmark = pytest.mark.root


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    build("nvc-monitor", "nvc-supervisor")
    made = tmp_path / "agent"
    prepare(str(made))
    return made


@pytest.fixture
def contained(tmp_path: Path) -> Iterator[Callable[..., Contained]]:
    made: list[Contained] = []

    def start(*arguments: Any, **changes: Any) -> Contained:
        made.append(Contained(tmp_path, *arguments, **changes))
        return made[-1]

    yield start
    for one in made:
        one.end()


class Alone:
    """An acceptor without an agent. A context manager."""

    def __init__(self, directory: Path, program: str = "nvc-monitor") -> None:
        self.directory, self.program = directory, program
        self.socket = bind(str(directory / "listen"))
        self.log = directory.parent / "acceptor.log"
        programs = [build(program) / program, str(self.socket.fileno()), directory]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*programs, build("nvc-supervisor") / "nvc-supervisor"], pass_fds=[self.socket.fileno()], stderr=log
            )

        def holds() -> bool:
            with contextlib.suppress(FileNotFoundError):
                return (directory / LOCK).read_text().split()[:1] == [str(self.process.pid)]
            return False

        assert leftovers.until(holds, seconds=20)
        assert leftovers.until(self.is_prepared, seconds=20)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def is_prepared(self) -> bool:
        """Whether the supervisor is there, the last of what is made while no container comes."""
        # Its own, for its watchdog, and the supervisor's.
        return sum("pidfd" in name for name in names(self.process.pid)) == 2

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def close(self) -> None:
        """End every acceptor, those too that wait for an agent, or for the acceptor before."""

        def none() -> bool:
            pids = [*watchdogs(str(self.directory)), *processes(self.program, str(self.directory))]
            pids += _successors(self.directory)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        assert leftovers.until(none, seconds=20)
        self.process.wait(20)
        self.socket.close()


@pytest.fixture
def alone(directory: Path) -> Iterator[Alone]:
    made = Alone(directory)
    yield made
    made.close()


def test_an_acceptor_of_an_agent_before_is_found_by_one_reading_of_the_kernels_list(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list has all sockets, several of each tenant: read four times a second it took the agent 2 % with 150."""
    read: list[str] = []
    inode_of = admission.inode_of
    monkeypatch.setattr(admission, "inode_of", lambda path: (read.append(path), inode_of(path))[1])
    acceptors = Acceptors(str(alone.directory), Journal(-1))
    for _ in range(5):
        acceptors.look()
    assert len(read) == 1 and acceptors._started == []
    os.unlink(alone.directory / "listen")
    assert acceptors._listening() == 0
    with bind(str(alone.directory / "listen")):
        acceptors._listening()
        assert len(read) == 2, "another one has the name"
    acceptors._keep(None)


def test_an_agent_takes_no_name_from_a_socket_between_two_acceptors(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lets go of the lock before the next one has it. Another socket in its place lost what waited there."""
    acceptors = Acceptors(str(directory), Journal(-1))
    monkeypatch.setattr(acceptors, "_start", lambda listening: None)
    with bind(str(directory / "listen")):
        before = os.stat(directory / "listen").st_ino
        acceptors.look()
        assert os.stat(directory / "listen").st_ino == before
        later = time.monotonic() + admission._RESTART_S
        monkeypatch.setattr(time, "monotonic", lambda: later)
        acceptors.look()
        assert os.stat(directory / "listen").st_ino != before, "nothing accepts there"
    acceptors.close()


@pytest.mark.skipif(not os.path.exists("/proc/sys/kernel/perf_event_paranoid"), reason="the kernel makes no counters")
def test_an_acceptor_has_a_counter_before_a_container_comes(alone: Alone) -> None:
    """The kernel makes the first one of a machine in 10 ms, for which a node's first container waited."""
    assert "anon_inode:[perf_event]" in names(alone.process.pid), "it is made before the acceptor holds the lock"


def _successors(directory: Path) -> list[int]:
    """Pids of those that wait."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text() == "nvc-successor\n":
                found += [int(entry.name)] * (os.fsencode(directory) in (entry / "cmdline").read_bytes().split(b"\0"))
    return found


def test_the_next_acceptor_is_made_before_a_container_comes(alone: Alone, contained: Callable[..., Contained]) -> None:
    """Its start took a container's first call a quarter of a millisecond and half of a processor."""
    (successor,) = leftovers.until(lambda: _successors(alone.directory), seconds=20)
    contained()
    assert leftovers.until(lambda: acceptor(alone.directory)[0] == successor, seconds=20)
    assert leftovers.until(lambda: len(_successors(alone.directory)) == 1, seconds=20), "it has one of its own"
    (waiting,) = _successors(alone.directory)
    os.kill(waiting, signal.SIGKILL)
    contained()
    assert leftovers.until(lambda: acceptor(alone.directory)[0] not in (0, successor, waiting), seconds=20)
    assert leftovers.until(lambda: len(_successors(alone.directory)) == 1, seconds=20), (
        "one that was killed is replaced"
    )
    os.kill(acceptor(alone.directory)[0], signal.SIGTERM)
    assert leftovers.until(lambda: not _successors(alone.directory), seconds=20), "it ends with the one before it"


def test_the_next_acceptor_accepts_when_the_one_before_is_killed(
    alone: Alone, contained: Callable[..., Contained]
) -> None:
    """What waited at the socket was lost where the agent was killed, too: its process ran on with ENOSYS."""
    (successor,) = leftovers.until(lambda: _successors(alone.directory), seconds=20)
    alone.process.send_signal(signal.SIGSTOP)
    waiting = contained()
    assert leftovers.until(lambda: select.select([alone.socket], [], [], 0)[0] != [], seconds=20)
    alone.socket.close()
    alone.process.kill()
    alone.process.wait(20)
    pending = alone.directory / "pending" / str(successor)
    assert leftovers.until(pending.exists, seconds=20), "it took it"
    assert waiting.process.poll() is None


MESSAGE = json.dumps({"fds": ["seccompFd"], "pid": 7, "state": {"id": KEY, "status": "creating", "pid": 7}}).encode()


@pytest.mark.parametrize(
    ("data", "descriptors", "said"),
    [
        (b"", 0, ""),
        (b"{", 0, "its message ends and is not JSON"),
        (b"x", 0, "its message is not JSON"),
        (b'{"a":"' + b"x" * (2 << 20), 1, "longer than 1 MiB"),
        (MESSAGE, 0, "no seccomp listener"),
        (MESSAGE, 3, "no seccomp listener"),
        (MESSAGE, 17, "too many descriptors"),
    ],
    ids=["nothing", "half", "no JSON", "huge", "no descriptor", "other descriptors", "many descriptors"],
)
def test_what_is_no_listener_is_refused_and_nothing_stays_open(
    alone: Alone, data: bytes, descriptors: int, said: str
) -> None:
    before = alone.files()
    for number in range(2):
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.connect(str(alone.directory / "listen"))
            if data:
                sent = socket.send_fds(client, [data[:4096]], [0] * descriptors)
                client.sendall(data[sent:])
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
        if said:
            assert leftovers.until(lambda: len(alone.events()) > number, seconds=20)  # noqa: B023
    assert len(alone.events()) == (2 if said else 0)
    assert all(said in one["message"] and one["event"] == "refused" for one in alone.events())
    if len(data) > 4096:  # it may take longer than one that is to accept waits for it: then the next one does
        assert leftovers.until(lambda: acceptor(alone.directory)[0] != 0, seconds=20)
        return
    assert leftovers.until(lambda: alone.files() == before, seconds=20), alone.files()
    assert acceptor(alone.directory)[0] == alone.process.pid, "the same goes on"


def test_a_message_that_does_not_end_is_refused_in_time(alone: Alone) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(alone.directory / "listen"))
        client.sendall(b"{")
        client.settimeout(20)
        assert client.recv(1) == b""
    assert leftovers.until(lambda: bool(alone.events()), seconds=20)
    assert "no whole message came within 5 s" in alone.events()[0]["message"]


def test_a_message_that_does_not_end_keeps_no_container_waiting(
    alone: Alone, contained: Callable[..., Contained]
) -> None:
    """Each kept all others for 5 s."""
    slow = [socket.socket(socket.AF_UNIX) for _ in range(10)]
    for one in slow:
        one.connect(str(alone.directory / "listen"))
        one.sendall(b"{")
    begin = time.monotonic()
    contained()
    pending = alone.directory / "pending"
    assert leftovers.until(lambda: list(pending.iterdir()) != [], seconds=20)
    assert time.monotonic() - begin < 20
    for one in slow:
        one.close()


def test_only_root_may_send_a_listener(alone: Alone) -> None:
    (alone.directory / "listen").chmod(0o666)
    script = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('listen'); s.sendall(b'{}'); s.recv(1)"
    place = os.open(alone.directory, os.O_PATH)
    words = ["/usr/bin/python3", "-IS", "-c", f"try: exec({script!r})\nexcept OSError: pass"]
    subprocess.run(words, preexec_fn=lambda: os.fchdir(place), user=65534, check=True, timeout=20)
    os.close(place)
    assert leftovers.until(lambda: bool(alone.events()), seconds=20)
    assert alone.events()[0]["message"] == "its user is not root"


def test_a_listener_in_hand_keeps_no_other_waiting(alone: Alone, contained: Callable[..., Contained]) -> None:
    one, other = contained(), contained()
    assert leftovers.until(lambda: len(processes("nvc-monitor", str(alone.directory))) == 3, seconds=20)
    assert leftovers.until(lambda: acceptor(alone.directory)[0] not in (0, alone.process.pid), seconds=20)
    assert (one.process.poll(), other.process.poll()) == (None, None)


def test_a_listener_whose_processes_ended_is_not_held(alone: Alone, contained: Callable[..., Contained]) -> None:
    one = contained()
    assert leftovers.until(lambda: len(processes("nvc-monitor", str(alone.directory))) == 2, seconds=20)
    one.end()
    assert leftovers.until(lambda: alone.process.poll() is not None, seconds=30)
    assert (alone.process.returncode, alone.events()) == (0, [])


def test_a_process_whose_message_is_none_is_ended_at_its_first_call(
    alone: Alone, contained: Callable[..., Contained]
) -> None:
    """Its listener was closed: its calls were answered ENOSYS, and it ran on unguarded."""
    nested: list[object] = []
    for _ in range(100):
        nested = [nested]
    one = contained(annotations=nested)
    assert leftovers.until(lambda: bool(alone.events()), seconds=20)
    assert one.process.poll() is None
    # What ends its callers keeps nothing of the acceptor's: the next one takes the lock.
    other = contained()
    assert leftovers.until(lambda: acceptor(alone.directory)[0] not in (0, alone.process.pid), seconds=20)
    other.end()
    one.say()
    assert one.process.wait(20) == -signal.SIGKILL
    assert leftovers.until(lambda: len(processes("nvc-monitor", str(alone.directory))) == 1, seconds=20)


def test_what_a_killed_acceptor_had_is_ended_by_the_next_agent(
    alone: Alone, contained: Callable[..., Contained]
) -> None:
    """Its listener went with it: no call of the process would ever be answered by a supervisor."""
    one, told = contained(), list[dict[str, object]]()
    pending = alone.directory / "pending" / str(alone.process.pid)
    assert leftovers.until(pending.exists, seconds=20)
    journal = Journal(-1)
    journal.listen(told.append)
    acceptors = Acceptors(str(alone.directory), journal)
    acceptors.look()
    assert one.process.poll() is None, "the acceptor has it"
    alone.process.kill()
    alone.process.wait(20)
    acceptors.look()
    assert one.process.wait(20) == -signal.SIGKILL
    assert [event["pid"] for event in told if event["event"] == "refused"] == [one.pid]
    assert not pending.exists()
    acceptors.close()


def test_a_listener_that_no_agent_admits_in_time_is_named_and_its_process_ended(
    directory: Path, contained: Callable[..., Contained]
) -> None:
    """It was dropped without its name, and the process ran on with ENOSYS for every call."""
    impatient = Alone(directory, "impatient-monitor")
    try:
        late = contained()
        assert late.process.wait(20) == -signal.SIGKILL
        assert leftovers.until(lambda: bool(impatient.events()), seconds=20)
        told = impatient.events()[-1]
        assert (told["event"], told["container"], told["ended"]) == ("refused", KEY, late.pid)
        assert told["message"] == "no agent admitted it within a minute"
        assert leftovers.until(lambda: list((directory / "pending").iterdir()) == [], seconds=20)
    finally:
        impatient.close()


def test_what_waits_at_a_socket_that_goes_is_ended(alone: Alone, contained: Callable[..., Contained]) -> None:
    alone.process.send_signal(signal.SIGSTOP)
    waiting = contained()
    assert leftovers.until(lambda: select.select([alone.socket], [], [], 0)[0] != [], seconds=20)
    os.unlink(alone.directory / "listen")  # with a name, another acceptor serves what waits
    alone.process.send_signal(signal.SIGTERM)
    alone.process.send_signal(signal.SIGCONT)
    assert waiting.process.wait(20) == -signal.SIGKILL
    assert alone.process.wait(20) == 0
    assert leftovers.until(lambda: bool(alone.events()), seconds=20)
    assert alone.events()[0]["message"] == "the agent was stopped"
    # The process that ends the callers writes its event first, and ends after it.
    assert leftovers.until(lambda: processes("nvc-monitor", str(alone.directory)) == [], seconds=20)


def test_the_next_agent_replaces_one_of_another_version_and_no_other(
    alone: Alone, contained: Callable[..., Contained], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade: what comes is for the installed programs, and what waits at the socket is not lost."""
    same = Acceptors(str(alone.directory), Journal(-1))
    same.look()
    same._keep(None)
    assert acceptor(alone.directory)[0] == alone.process.pid
    installed = alone.directory.parent / "nvc-monitor"
    shutil.copy2(build("nvc-monitor") / "nvc-monitor", installed)
    monkeypatch.setattr(admission, "find", lambda program: str(installed) if program == "nvc-monitor" else "/none")
    alone.process.send_signal(signal.SIGSTOP)
    waiting = contained()
    assert leftovers.until(lambda: select.select([alone.socket], [], [], 0)[0] != [], seconds=20)
    before = acceptor(alone.directory)
    alone.socket.close()
    after = Acceptors(str(alone.directory), Journal(-1))
    after.look()
    alone.process.send_signal(signal.SIGCONT)
    assert alone.process.wait(20) == 0
    pending = alone.directory / "pending"
    assert leftovers.until(lambda: list(pending.iterdir()) != [], seconds=20), "the new one took it"
    now = [before]
    assert leftovers.until(
        lambda: now.append(acceptor(alone.directory)) or now[-1][0] not in (0, before[0]), seconds=20
    )
    assert now[-1][1] == before[1], "the same socket"
    assert waiting.process.poll() is None
    for pid in processes("nvc-monitor", str(alone.directory)):
        assert Path(f"/proc/{pid}/exe").samefile(installed)
    after.close()
