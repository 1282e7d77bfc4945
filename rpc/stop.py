"""Telling a helper that unwinds to stop: SIGTERM raises ``Stop`` in the running handler, but never at a bad moment.

An exception between a change and the note of how to take it back would leave the change behind, and one in the
middle of taking back would leave the rest. So a handler marks these places:

    with Deferred():            a change and its note: Stop waits for the end of the block, or PATIENCE when it hangs
    with Deferred(firm=True):   taking back: Stop waits for the end of the block

After UNWINDING seconds the process is killed by an alarm, because its caller, who would do it, may be gone.
Works in the main thread of a process with one thread; without ``install`` (in a test, in the caller) it does nothing.
"""

from __future__ import annotations

from rpc.errors import Stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    # ``signal`` is ``_signal`` behind three enums, which cost more than a fork.
    import signal as _signal
else:
    import _signal

#: Seconds that a change gets to be finished. It is some system calls, unless a file system does not answer.
PATIENCE = 0.5
#: Seconds that everything after Stop may take.
UNWINDING = 10

_deferred = 0
_firm = 0
_wanted = False


class Deferred:
    """A block that Stop does not interrupt. May be nested. firm: not even when it takes long."""

    __slots__ = ("_is_firm",)

    def __init__(self, *, firm: bool = False) -> None:
        self._is_firm = firm

    def __enter__(self) -> None:
        global _deferred, _firm
        _deferred += 1
        _firm += self._is_firm

    def __exit__(self, *_: object) -> None:
        global _deferred, _firm
        _firm -= self._is_firm
        _deferred -= 1
        if _wanted and not _deferred:
            _raise()


def install() -> None:
    """Make SIGTERM mean Stop in this process."""
    global _deferred, _firm, _wanted
    # A helper forked inside a block of its caller's does not inherit the block.
    _deferred, _firm, _wanted = 0, 0, False
    _signal.signal(_signal.SIGTERM, _on_term)


def _on_term(*_: object) -> None:
    global _wanted
    # Once: what follows is not interrupted a second time.
    _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
    if not _deferred:
        _raise()
    _wanted = True
    _signal.signal(_signal.SIGALRM, _on_alarm)
    _signal.setitimer(_signal.ITIMER_REAL, PATIENCE)


def _on_alarm(*_: object) -> None:
    if not _firm:
        _raise()
    _limit()


def _raise() -> None:
    global _wanted
    _wanted = False
    _limit()
    raise Stop


def _limit() -> None:
    _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)
    _signal.alarm(UNWINDING)
