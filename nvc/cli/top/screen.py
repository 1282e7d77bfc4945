"""A terminal that shows one picture after another until q is pressed; others get them one below the other."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

#: Keys that end it: q, Escape, and Control-D.
END = ("q", "Q", "\x1b", "\x04")
UP, DOWN = ("k", "\x1b[A"), ("j", "\x1b[B", " ")
#: Wider than any line: what is not a terminal does not cut.
UNBOUNDED = 100_000
#: How soon a changed size of the window is seen; seconds.
_GLANCE = 0.25
#: The smallest that is drawn for; a pseudo terminal may say 0.
_COLUMNS, _ROWS = 20, 4


class Screen:
    """Shows lines; a context manager that leaves the terminal as it was.

    output: where to. A terminal gets its whole screen, unless ``whole`` is False.
    """

    def __init__(self, output: Any = None, *, whole: bool = True) -> None:
        self.console = Console(file=output or sys.stdout, highlight=False, soft_wrap=True)
        self.is_whole = whole and self.console.is_terminal and not self.console.is_dumb_terminal
        self.is_terminal = self.console.is_terminal
        self._keys = -1
        self._pending = ""
        self._saved: list[Any] = []
        self._live: Live | None = None
        self._offset = 0
        self._shown: Sequence[Text] = ()
        self._size = self.size

    @property
    def size(self) -> tuple[int, int]:
        """(columns, rows) that there is room for; without a terminal there is no end of it."""
        if not self.console.is_terminal:
            return UNBOUNDED, UNBOUNDED
        found = self.console.size
        return max(found.width, _COLUMNS), max(found.height, _ROWS)

    def __enter__(self) -> Self:
        if self.is_whole:
            self._live = Live(console=self.console, screen=True, auto_refresh=False, transient=True)
            self._live.start()
            if sys.stdin is not None and sys.stdin.isatty():
                self._keys = sys.stdin.fileno()
                self._saved = termios.tcgetattr(self._keys)
                tty.setcbreak(self._keys)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._keys >= 0:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._saved)
            self._keys = -1
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, lines: Sequence[Text]) -> None:
        """Put a picture in the place of the last one, or below it."""
        self._shown = lines
        self._size = self.size
        if not self.is_terminal:  # rich takes 0.3 ms a line for styles that are not there
            self.console.file.write("".join(f"{line.plain}\n" for line in lines))
            self.console.file.flush()
            return
        if self._live is None:
            for line in lines:
                self.console.print(line, no_wrap=True, overflow="ignore", crop=False)
            return
        columns, rows = self._size
        self._offset = max(0, min(self._offset, len(lines) - rows + 1))
        seen = list(lines[self._offset : self._offset + rows])
        if len(lines) > rows:
            below = len(lines) - self._offset - (rows - 1)
            seen = [*seen[: rows - 1], Text(f"{self._offset} lines above, {below} below: j and k move", "dim")]
        picture = Text("\n", no_wrap=True, overflow="ellipsis").join(_cut(line, columns) for line in seen)
        self._live.update(picture, refresh=True)

    def wait(self, seconds: float) -> str:
        """A key, or "" when ``seconds`` have gone by. Moves through a long picture by itself."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            key = self._key(min(left, _GLANCE))
            if key in UP or key in DOWN:
                self._offset = max(0, self._offset + (-1 if key in UP else 1))
                self.show(self._shown)
            elif key:
                return key
            elif self._live is not None and self.size != self._size:
                return "resized"
        return ""

    def _key(self, seconds: float) -> str:
        if self._pending:
            return self._next_key()
        if self._keys < 0:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._keys], [], [], seconds)
        if not ready:
            return ""
        pressed = os.read(self._keys, 16)
        # At the end of the input no key can be pressed any more.
        self._pending = pressed.decode("utf-8", "replace") if pressed else END[0]
        return self._next_key()

    def _next_key(self) -> str:
        """The first of those that were pressed and not taken yet: two may arrive in one read."""
        length = 3 if self._pending.startswith("\x1b[") else 1
        key, self._pending = self._pending[:length], self._pending[length:]
        return key


def _cut(line: Text, columns: int) -> Text:
    if line.cell_len <= columns:
        return line
    short = line.copy()
    short.truncate(columns, overflow="ellipsis")
    return short
