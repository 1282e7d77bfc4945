"""``nvc-py top`` and ``share ls --watch`` in a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.share import store
from tests.support.agent_status import saying, status, tenant
from tests.support.fake_agent import FakeAgent

ROOT = Path(__file__).parents[4]


class Terminal:
    """``nvc-py`` in a pseudo terminal of a given size."""

    def __init__(self, words: list[str], columns: int = 100, rows: int = 30) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            # Not execv: readline, once imported, puts sizes into the environment behind Python's back.
            environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
            environment = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
            os.execve(sys.executable, [sys.executable, "-m", "nvc", *words], environment)
        self.resize(columns, rows)
        self.text = ""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, word: str, seconds: float = 60) -> None:
        """Read until ``word`` was printed since the last call."""
        end = time.monotonic() + seconds
        while word not in self.text:
            ready, _, _ = select.select([self.descriptor], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{word!r} is not in {self.text[-2000:]!r}"
            try:
                self.text += os.read(self.descriptor, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"it ended without {word!r}: {self.text[-2000:]!r}") from None
        self.text = self.text.partition(word)[2]

    def press(self, key: str) -> None:
        os.write(self.descriptor, key.encode())

    def end(self) -> tuple[int, str]:
        """(exit code, the rest of what it printed)."""
        try:
            while more := os.read(self.descriptor, 65536):
                self.text += more.decode(errors="replace")
        except OSError:
            pass  # a pseudo terminal's end
        os.close(self.descriptor)
        _, waited = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(waited), self.text


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*words: str, **size: int) -> Terminal:
        started.append(Terminal(list(words), **size))
        return started[-1]

    yield start
    for one in started:
        try:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # it ended by itself


def test_a_terminal_is_filled_and_given_back(socket: str, directory: str, terminal: Callable[..., Terminal]) -> None:
    with FakeAgent(socket, status=saying(status(tenant()))):
        shown = terminal("top", "--agent", socket, "--store", directory, "--interval=0.2")
        shown.until("\x1b[?1049h")  # the other screen
        shown.until("agent 1.2")
        shown.until("4711")
        shown.press("p")
        shown.until("agent 1.2")
        shown.until("agent 1.2")
        shown.press("q")
        code, rest = shown.end()
    assert 0 == code
    assert "\x1b[?1049l" in rest and "Traceback" not in rest


def test_in_a_terminal_too_an_agent_may_go_and_come(
    socket: str, directory: str, terminal: Callable[..., Terminal]
) -> None:
    agent = FakeAgent(socket, status=saying(status(tenant())))
    shown = terminal("top", "--agent", socket, "--store", directory, "--interval=0.2")
    shown.until("agent 1.2")
    agent.close()
    shown.until("trying again")
    with FakeAgent(socket, status=saying(status(tenant()))):
        shown.until("agent 1.2")
        shown.press("\x03")  # Control-C
        code, rest = shown.end()
    assert 0 == code
    assert "Traceback" not in rest


def test_a_window_of_another_size_is_drawn_anew(socket: str, directory: str, terminal: Callable[..., Terminal]) -> None:
    many = status(*(tenant(number) for number in range(20)))
    with FakeAgent(socket, status=saying(many)):
        shown = terminal("top", "--agent", socket, "--store", directory, "--interval=600", rows=10)
        shown.until("0 lines above")
        shown.press("j")
        shown.until("1 lines above")
        shown.resize(30, 8)
        shown.until("1 lines above")
        shown.press("q")
        assert 0 == shown.end()[0]


def test_share_ls_is_watched_in_place(directory: str, container: str, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("share", "--store", directory, "ls", "--watch", "--interval=0.1")
    shown.until("\x1b[?1049h")
    shown.until("shimmed")
    store.remove("shimmed", directory)
    shown.until("no container here has a share")
    shown.press("q")
    code, rest = shown.end()
    assert 0 == code and "Traceback" not in rest
