"""Run a piece of a test as root in namespaces of its own, so that it leaves nothing behind, also when it fails."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.leftovers import until

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
PR_SET_PDEATHSIG = 1
#: Seconds that a child has to say what went wrong, once its time is over, before it is killed.
_GRACE = 15
_libc = ctypes.CDLL(None, use_errno=True)


class ChildFailed(AssertionError):
    """The isolated function raised; the text is its traceback."""


def in_namespaces(function: Callable[..., Any], *args: Any, pid: bool = False, timeout: int = 100) -> Any:
    """Fork, enter a private mount namespace (and with ``pid`` a pid namespace), call, return the pickled result.

    Everything mounted inside is gone when the child ends; with ``pid`` every process started inside as well.
    timeout: seconds, after which the child is ended, whatever it waits for: no wait here is without a limit.
    Raises ChildFailed with the child's traceback.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        status = 1
        try:
            # The handler of the parent's own limit would only be called once a system call has come back.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(timeout)
            enter_namespaces(CLONE_NEWNS | (CLONE_NEWPID if pid else 0))
            status = _second_child(function, args, write_end) if pid else _call(function, args, write_end)
        except BaseException:
            os.write(write_end, pickle.dumps((False, traceback.format_exc())))
        finally:
            os._exit(status)
    os.close(write_end)
    try:
        data = _read(read_end, time.monotonic() + timeout + _GRACE)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(read_end)
        status = _reap(child)
    if not data:
        raise ChildFailed(f"isolated test ended without a result, wait status {status}")
    good, value = pickle.loads(data)
    if not good:
        raise ChildFailed("\n" + value)
    return value


def enter_namespaces(kinds: int = CLONE_NEWNS) -> None:
    """Of this process; its mounts reach no other namespace."""
    _check(_libc.unshare(kinds), "unshare")
    _check(_libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "mount private")


def together(bodies: Mapping[str, Callable[[], Any]], timeout: int = 60) -> None:
    """Call each ``in_namespaces``, all at once: for what waits. Raises ChildFailed that names those that failed."""
    ends = {}
    for name, body in bodies.items():
        ends[name], write_end = os.pipe()
        if os.fork() == 0:
            try:
                in_namespaces(body, timeout=timeout)
            except BaseException:
                os.write(write_end, traceback.format_exc()[-60_000:].encode())
            finally:
                os._exit(0)
        os.close(write_end)
    end = time.monotonic() + timeout + 2 * _GRACE
    failed = {name: text.decode() for name, pipe in ends.items() if (text := _read(pipe, end))}
    for pipe in ends.values():
        os.close(pipe)
        os.wait()
    if failed:
        raise ChildFailed("\n".join(f"{name}: {text}" for name, text in failed.items()))


def mount_bind(source: str, target: str) -> None:
    """Show ``source`` at ``target``; only in a function that runs in_namespaces. Raises OSError."""
    _check(_libc.mount(source.encode(), target.encode(), None, MS_BIND, None), f"mount {source} on {target}")


def end_with_parent() -> None:
    """The calling process is killed when the thread ends that forked it. Raises OSError."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")


def _read(pipe: int, end: float) -> bytes:
    data = b""
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise ChildFailed("isolated test hangs: no result in time, and its limit did not end it")
        some = os.read(pipe, 1 << 16)
        if not some:
            return data
        data += some


def _reap(child: int) -> int:
    """Its wait status; a child that is stuck in the kernel even after SIGKILL is left to itself, and said so."""
    end = time.monotonic() + _GRACE
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid != 0:
            return status
        time.sleep(0.002)
    raise ChildFailed(f"isolated test's process {child} cannot be ended")


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
            end_with_parent()
            _check(_libc.mount(b"proc", b"/proc", b"proc", 0, None), "mount proc")
        finally:
            os._exit(_call(function, args, pipe))
    os.close(pipe)
    return os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])


@contextlib.contextmanager
def pid_namespace() -> Iterator[int]:
    """The pid of a process that is the first one of a pid namespace, as a pod's pause process is."""
    with subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "300"]) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            assert until(lambda: bool(children.read_text().split()), seconds=30)
            yield int(children.read_text().split()[0])
        finally:
            process.kill()
