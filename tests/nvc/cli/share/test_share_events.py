"""``nvc-py share events``: the past from the journal, the new from the agent, each event one line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.journal import Journal
from nvc.base.errors import InputError, PrivilegeError
from nvc.cli.share import events as share_events
from nvc.cli.share.events import begin, line, parse
from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare
from tests.support.agent_status import UUIDS
from tests.support.fake_agent import FakeAgent

ROOT = Path(__file__).parents[4]
NOW = 1_700_000_000.0
DENIAL = {
    "time": NOW,
    "event": "denial",
    "container": "4f0c",
    "tenant": 1,
    "reason": "over-quota",
    "number": "0x40",
    "pid": 4711,
    "repeated": 2,
    "when": NOW - 0.2,
}
GONE = {"time": NOW + 1, "event": "gone", "container": "77aa", "tenant": 2}

Events = Callable[..., tuple[int, str, str]]


@pytest.fixture
def events(command: Callable[..., Any]) -> Events:
    def run(*words: str) -> tuple[int, str, str]:
        ran: tuple[int, str, str] = command("share", "events", *words, program="nvc-py")
        return ran

    return run


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journalctl that prints what the agent's own journal wrote, and notes how it was called."""
    log = tmp_path / "log"
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY)
    agent = Journal(descriptor)
    for event in (DENIAL, GONE):
        agent.write(
            str(event["event"]), **{name: value for name, value in event.items() if name not in ("time", "event")}
        )
    os.close(descriptor)
    with log.open("a") as file:
        file.write("Started nvc-agent.\n[1, 2]\n{}\n")
    program = tmp_path / "bin/journalctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/called\ncat {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return tmp_path / "called"


def test_the_past_comes_from_the_journal(events: Events, journal: Path) -> None:
    code, out, err = events("--since=10m")
    assert (0, "") == (code, err)
    first, second = out.splitlines()
    assert first.endswith("denial container=4f0c tenant=1 reason=over-quota number=0x40 pid=4711 repeated=2")
    assert second.endswith("gone container=77aa tenant=2")
    called = journal.read_text().split()
    assert "--unit=nvc-agent.service" in called and "--follow" not in called
    since = next(float(word.partition("@")[2]) for word in called if word.startswith("--since=@"))
    assert abs(time.time() - 600 - since) < 60


def test_with_json_each_event_is_an_object_a_line(events: Events, journal: Path) -> None:
    code, out, _ = events("--json")
    assert 0 == code
    assert ["denial", "gone"] == [json.loads(text)["event"] for text in out.splitlines()]


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (["--container=4f"], ["denial"]),
        (["--container=x"], []),
        (["--kind=gone"], ["gone"]),
        (["--kind=gone", "--kind=denial"], ["denial", "gone"]),
    ],
)
def test_events_are_chosen(words: list[str], kinds: list[str], events: Events, journal: Path) -> None:
    code, out, _ = events("--json", *words)
    assert (0, kinds) == (code, [json.loads(text)["event"] for text in out.splitlines()])


def test_the_past_is_followed_without_a_gap(events: Events, journal: Path) -> None:
    code, out, _ = events("--since=1h", "--follow")
    assert (0, 2) == (code, len(out.splitlines()))
    assert "--follow" in journal.read_text().split()


def test_a_container_is_named_as_its_engine_does(command: Callable[..., Any], journal: Path, tmp_path: Path) -> None:
    directory = str(tmp_path / "nvc/share")
    limits = Limits((ResolvedGpu(UUIDS[0], 0, 1 << 30),), driver="580.1", container="4f0c")
    record = StoredShare("4f0c", "4f0c", os.getpid(), store.start_time(os.getpid()), name="team/web/server")
    store.create(record, limits, b"", directory=directory)

    def shown(word: str) -> list[str]:
        words = ("share", f"--store={directory}", "events", "--since=1d", "--json", f"--container={word}")
        return [json.loads(line)["event"] for line in command(*words, program="nvc-py").out.splitlines()]

    assert shown("web/server") == shown("server") == shown("4f0c") == ["denial"]
    assert shown("77aa") == ["gone"], "one that the store does not have any more is named by its id"
    assert shown("db/server") == []


def test_without_a_journal_there_is_advice(events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = events()
    assert (1, "") == (code, out)
    assert "journalctl: no such file" in err and "--follow shows new ones" in err


def test_a_journal_that_may_not_be_read_is_an_error(events: Events, journal: Path, tmp_path: Path) -> None:
    (tmp_path / "bin/journalctl").write_text("#!/bin/sh\necho 'No journal files: permission denied' >&2\nexit 1\n")
    code, out, err = events("--since=1h")
    assert (1, "") == (code, out)
    assert "permission denied" in err


def test_an_empty_answer_says_why_it_is_empty(events: Events, journal: Path, tmp_path: Path) -> None:
    """A mistyped kind, and a journal that the user may not read, looked like a node that refused nothing."""
    assert events("--kind=denied", "--since=10m") == (0, "", "none of these events since 10m; there are denial, gone\n")
    (tmp_path / "bin/journalctl").write_text("#!/bin/sh\n")
    code, out, err = events("--json")
    assert (0, "") == (code, out)
    assert err.startswith("the journal of nvc-agent.service has no event since 1h")


def test_new_events_come_from_the_agent_also_when_it_was_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "control")
    over = threading.Event()

    def stream(_: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"ok": True}
        yield DENIAL
        over.wait(60)

    agent = FakeAgent(path, events=stream)
    command = [sys.executable, "-m", "nvc", "share", "events", "--follow", "--json", f"--agent={path}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None and following.stderr is not None
        try:
            assert DENIAL == json.loads(following.stdout.readline())
            over.set()
            agent.close()
            assert "trying again" in following.stderr.readline()
            over.clear()
            with FakeAgent(path, events=stream):
                assert "there again" in following.stderr.readline()
                assert DENIAL == json.loads(following.stdout.readline())
                following.send_signal(2)
                assert 0 == following.wait(60)
                over.set()
            assert "Traceback" not in following.stderr.read()
        finally:
            over.set()
            agent.close()
            following.kill()


def test_an_agent_that_only_listens_is_not_there_again(tmp_path: Path) -> None:
    """A connection was taken for an answer: of an agent that hangs it was said every ten seconds."""
    path = str(tmp_path / "control")
    command = [sys.executable, "-m", "nvc", "share", "events", "--follow", f"--agent={path}"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(path)
        silent.listen()
        silent.settimeout(60)
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as following:
            try:
                for _ in range(2):
                    silent.accept()[0].close()
                assert following.stderr is not None
                told = [following.stderr.readline() for _ in range(2)]
                assert all(line.endswith("; trying again\n") for line in told), told
            finally:
                following.kill()


def test_an_agent_that_was_never_there_is_an_error(events: Events, tmp_path: Path) -> None:
    code, out, err = events("--follow", f"--agent={tmp_path}/control")
    assert (1, "") == (code, out)
    assert "no agent listens" in err and "systemctl start nvc-agent" in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", NOW - 90), ("10m", NOW - 600), ("2d", NOW - 172800), ("@5", 5.0), ("2001-09-09T01:46:40+00:00", 1e9)],
)
def test_since_is_a_time(text: str, expected: float) -> None:
    assert expected == begin(text, NOW)


@pytest.mark.parametrize("text", ["", "yesterday", "10", "-5m", "1y", "@x", "2026-13-01", "9" * 40 + "s"])
def test_since_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no time"):
        begin(text, NOW)


def test_nothing_in_an_event_reaches_the_terminal_as_it_is() -> None:
    shown = line({"time": 1e300, "event": "e\x1b[31m", "container": "a b", "list": [1, "\n"], "empty": "", "x": 'a="b'})
    assert shown.isprintable()
    assert ["?", '"e\\u001b[31m"', 'container="a', 'b"'] == shown.split(" ")[:4]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"event"', "[" * 100_000, '{"time": 1}'])
def test_lines_of_others_are_no_events(text: str) -> None:
    assert parse(text) is None


def test_an_agent_that_breaks_off_in_an_event_is_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "control")
    monkeypatch.setattr(share_events, "_RECONNECT_S", 0.01)
    answers = iter([[{"ok": True}, DENIAL], [{"ok": True}, GONE]])

    class Broken(FakeAgent):
        """Hangs up when an answer was given."""

    with Broken(path, events=lambda _: _hang_up(next(answers))):
        found = share_events._from_agent(path)
        assert [DENIAL, GONE] == [next(found), next(found)]
        found.close()  # type: ignore[attr-defined]


def _hang_up(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from messages
    raise ConnectionResetError


def test_a_user_without_access_is_told_and_it_ends(events: Events, tmp_path: Path) -> None:
    def refuse(_: dict[str, Any]) -> Iterator[dict[str, Any]]:
        raise PrivilegeError("events: not for you", hint="be root")
        yield {}

    path = str(tmp_path / "control")
    with FakeAgent(path, events=refuse):
        code, out, err = events("--follow", f"--agent={path}")
    assert (1, "") == (code, out)
    assert "not for you" in err and "be root" in err
