"""What a command waits for, on a terminal's standard error, once that takes long.

``waiting`` marks a wait wherever it is; nothing is shown unless the command line has called ``show``. A timer's signal
draws: a thread would be in the way of this process's forks and namespaces.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    # ``signal`` is ``_signal`` behind three enums.
    import signal as _signal
    from typing import Any
else:
    import _signal

#: Seconds of silence, and between two pictures.
SILENCE_S, EACH_S = 2.0, 1.0
_ERASE = "\r\x1b[2K"
_STDERR = 2

#: In front of the text; "": nothing is shown.
_program = ""
#: What is waited for, the outermost wait first.
_texts: list[str] = []
_began = 0.0
_drawn = ""
_before: Any = None


def show(program: str) -> None:
    """Show waits from now on, where standard error is a terminal. program: the name in front of them."""
    global _program
    _program = program if os.isatty(_STDERR) else ""


def hide() -> None:
    """Show nothing from now on."""
    global _program
    _program = ""


class waiting:
    """A context manager around a wait. text: what is waited for; waits may be inside others."""

    __slots__ = ("_is_shown", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_shown = False

    def __enter__(self) -> None:
        if _program:
            self._is_shown = True
            _texts.append(self._text)
            if len(_texts) == 1:
                _begin()

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            _texts.pop()
            if not _texts:
                _end()


def _begin() -> None:
    global _began, _drawn, _before
    _began, _drawn = time.monotonic(), ""
    try:
        _before = _signal.signal(_signal.SIGALRM, _draw)
    except ValueError:  # not in the main thread
        _before = None
        return
    _signal.setitimer(_signal.ITIMER_REAL, SILENCE_S, EACH_S)


def _end() -> None:
    if _before is not None:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        _signal.signal(_signal.SIGALRM, _before)
    if _drawn and not _is_dumb():
        _write(_ERASE)


def _draw(*_: object) -> None:
    global _drawn
    if not _texts:
        return
    text = "".join(char if char.isprintable() else "?" for char in f"{_program}: {': '.join(_texts)}")
    if _is_dumb():  # a line for each wait: nothing can be erased
        if _drawn != text:
            _write(f"{text} ...\n")
        _drawn = text
        return
    _drawn = f"{text} ({time.monotonic() - _began:.0f} s)"
    try:
        columns = os.get_terminal_size(_STDERR).columns
    except OSError:
        columns = 0
    _write(f"{_ERASE}{_drawn[: columns - 1] if columns > 1 else _drawn}")


def _is_dumb() -> bool:
    return os.environ.get("TERM", "dumb") == "dumb"


def _write(text: str) -> None:
    try:
        os.write(_STDERR, text.encode("utf-8", "replace"))
    except OSError:
        pass  # there is nowhere to show it
