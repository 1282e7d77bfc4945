"""Whether this machine can serve the simulated manager's nodes (it needs /dev/fuse, and root), and file systems of a
user's that answer late, or not at all.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.injection import mount
from tests.support.isolation import end_with_parent

DEVICE = "/dev/fuse"


def missing() -> str:
    """Why it cannot, or ""."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{DEVICE}: {os.strerror(error.errno or 0)}"
    return ""


def needed() -> None:
    """For modules whose tests, or whose users' tests, are nothing without it: skips them. As an ordinary user they are
    skipped one by one, since they need root.
    """
    why = missing()
    if why and os.geteuid() == 0:
        pytest.skip(f"no simulated manager here: {why}", allow_module_level=True)


@contextmanager
def mounted(place: Path) -> Iterator[int]:
    """A file system on ``place``, file or directory, and the descriptor that its requests come from: none is answered
    until it is read, and every look into it waits.
    """
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    mode = "40000" if place.is_dir() else "100000"
    mount("fuse", place, "fuse", 0, f"fd={device},rootmode={mode},user_id=0,group_id=0,allow_other")
    try:
        yield device
    finally:
        os.close(device)


# linux/fuse.h: numbers of requests; headers of a request and of an answer.
_LOOKUP, _FORGET, _GETATTR, _INIT, _INTERRUPT, _BATCH_FORGET = 1, 2, 3, 26, 36, 42
_REQUEST, _ANSWER = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
_INITIALISED = struct.Struct("=IIIIHHIIHHIIIIII")
_ATTRIBUTES = struct.Struct("=QIIQQQQQQIIIIIIIIII")


@contextmanager
def slow(place: Path, seconds: float) -> Iterator[None]:
    """A directory on ``place`` without names, where nothing can be made: every answer comes after ``seconds``."""
    with mounted(place) as device:
        pid = os.fork()
        if pid == 0:
            try:
                end_with_parent()
                serve(device, seconds)
            finally:
                os._exit(1)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def serve(device: int, seconds: float) -> None:
    """Answer what is asked of a directory without names, each after ``seconds``."""
    while True:
        request = os.read(device, 1 << 17)
        _, kind, number, *_ = _REQUEST.unpack_from(request)
        if kind in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            continue
        body, error = b"", errno.ENOENT if kind == _LOOKUP else errno.ENOSYS
        if kind == _INIT:
            body, error = _INITIALISED.pack(7, 23, 0, 0, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0), 0
        elif kind == _GETATTR:
            body, error = _ATTRIBUTES.pack(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0), 0
        if kind != _INIT:
            time.sleep(seconds)
        try:
            os.write(device, _ANSWER.pack(_ANSWER.size + len(body), -error, number) + body)
        except FileNotFoundError:
            continue  # the process that asked has ended
