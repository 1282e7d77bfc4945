"""Stopping a helper that unwinds: SIGTERM raises ``Stop`` in the running handler, outside of critical sections.

An exception between a change and its entry in the undo log would leave the change behind, and one during undo would
leave the rest. So a handler marks its critical sections:

    with Deferred():            a change and its undo entry: Stop waits for its end, at most CHANGE_TIMEOUT_S
    with Deferred(firm=True):   undo: Stop waits for its end

UNWIND_LIMIT_S after Stop an alarm kills the process, because the caller that would kill it may have died. The same
holds for an undo that nothing stopped (``limit_undo``): a file system may not answer.

A process that waits for such a file system (FUSE) runs no handler, and with SIGTERM pending no other signal but SIGKILL
wakes it. While its caller lives that ends it; when the caller has died, a timer does (``kill_after``).
Works in the main thread of a process with one thread; without ``install`` (in a test, in the caller) it does nothing.
"""

from __future__ import annotations

from rpc.errors import Stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    # ``signal`` is ``_signal`` behind three enums, which cost more than a fork.
    import signal as _signal
    from collections.abc import Callable
else:
    import _signal

#: Seconds that a change may take to finish: it is a few system calls, unless a file system does not answer.
CHANGE_TIMEOUT_S = 0.5
#: Seconds that everything after Stop may take.
UNWIND_LIMIT_S = 2
#: From a call's deadline, or from end of file, until the timer ends the helper: longer than its caller takes for that.
SURPLUS_S = 4.0
#: Of a call: more than any deadline, and less than the timer can take.
MAX_SECONDS = 1e8

#: Has the kernel kill this process after so many seconds, 0 for never: set by a helper's ``prepare``, as a fork has no
#: timer of its parent's.
kill_after: Callable[[float], None] | None = None
_seconds = 0.0
_deferred = 0
_firm = 0
_wanted = False
_installed = False


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
    global _deferred, _firm, _wanted, _installed
    # A helper forked inside a block of its caller's does not inherit the block.
    _deferred, _firm, _wanted, _installed = 0, 0, False, True
    _signal.signal(_signal.SIGTERM, _on_term)


def limit_call(seconds: float) -> None:
    """A call begins that its caller waits for so long; 0.0: the end of this process does."""
    global _seconds
    _seconds = seconds
    resume()


def pause() -> None:
    """It waits for its caller, in a socket: any signal wakes it."""
    if kill_after is not None:
        kill_after(0.0)


def resume() -> None:
    """It works again, and may do so from now as long as from its beginning."""
    if kill_after is not None:
        kill_after(_seconds + SURPLUS_S)


def limit_undo() -> None:
    """Undo begins: from here on it has UNWIND_LIMIT_S, until ``undone``."""
    if _installed:
        _limit()


def undone() -> None:
    """The limit is over, unless SIGTERM has come."""
    if _installed and not _wanted and _signal.getsignal(_signal.SIGTERM) is _on_term:
        _signal.alarm(0)


def _on_term(*_: object) -> None:
    global _wanted
    # Once: what follows is not interrupted a second time.
    _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
    if not _deferred:
        _raise()
    _wanted = True
    _signal.signal(_signal.SIGALRM, _on_alarm)
    _signal.setitimer(_signal.ITIMER_REAL, CHANGE_TIMEOUT_S)


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
    _signal.alarm(UNWIND_LIMIT_S)
