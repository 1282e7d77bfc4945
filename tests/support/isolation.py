"""Run a piece of a test as root in namespaces of its own, so that it leaves nothing behind, also when it fails."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


class ChildFailed(AssertionError):
    """The isolated function raised; the text is its traceback."""


def in_namespaces(function: Callable[..., Any], *args: Any, pid: bool = False, timeout: int = 60) -> Any:
    """Fork, enter a private mount namespace (and with ``pid`` a pid namespace), call, return the pickled result.

    Everything mounted inside is gone when the child ends; with ``pid`` every process started inside as well.
    Raises ChildFailed with the child's traceback.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        status = 1
        try:
            signal.alarm(timeout)
            _check(_libc.unshare(CLONE_NEWNS | (CLONE_NEWPID if pid else 0)), "unshare")
            _check(_libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "mount private")
            status = _second_child(function, args, write_end) if pid else _call(function, args, write_end)
        except BaseException:
            os.write(write_end, pickle.dumps((False, traceback.format_exc())))
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        raise ChildFailed(f"isolated test ended without a result, wait status {status}")
    good, value = pickle.loads(data)
    if not good:
        raise ChildFailed("\n" + value)
    return value


def mount_bind(source: str, target: str) -> None:
    """Show ``source`` at ``target``; only in a function that runs in_namespaces. Raises OSError."""
    _check(_libc.mount(source.encode(), target.encode(), None, MS_BIND, None), f"mount {source} on {target}")


def _check(result: int, call: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), call)


def _call(function: Callable[..., Any], args: tuple[Any, ...], pipe: int) -> int:
    try:
        data = pickle.dumps((True, function(*args)))
    except BaseException:
        data = pickle.dumps((False, traceback.format_exc()))
    with os.fdopen(pipe, "wb") as out:
        out.write(data)
    return 0


def _second_child(function: Callable[..., Any], args: tuple[Any, ...], pipe: int) -> int:
    init = os.fork()
    if init == 0:
        try:
            _check(_libc.mount(b"proc", b"/proc", b"proc", 0, None), "mount proc")
        finally:
            os._exit(_call(function, args, pipe))
    os.close(pipe)
    return os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
