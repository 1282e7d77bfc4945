"""A process that root stops on its way to its supervisor: it is guarded later, and keeps no container waiting."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.nvc.agent.test_admission import contained, directory, manager, tenants, words
from tests.support import leftovers, registered
from tests.support.contained import KEY, Contained
from tests.support.service_manager import Manager

__all__ = ["contained", "directory", "manager"]
pytestmark = pytest.mark.root
FREEZER = Path("/sys/fs/cgroup/freezer")
#: Seconds until both have a supervisor.
SOON = 4.0
#: linux/ptrace.h, wait(2).
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 17, 0x4206, 0x4207, 0x40000000


@contextmanager
def by_a_signal(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def by_a_tracer(pid: int) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0
    assert libc.ptrace(PTRACE_INTERRUPT, pid, None, None) == 0
    try:
        yield
    finally:
        os.waitpid(pid, WALL)
        assert libc.ptrace(PTRACE_DETACH, pid, None, None) == 0


@contextmanager
def by_the_freezer(pid: int) -> Iterator[None]:
    """In another cgroup than before, as well."""
    if not FREEZER.is_dir():
        pytest.skip("no hierarchy of version 1")
    made = FREEZER / f"nvc-test-{os.getpid()}-{pid}"
    made.mkdir()
    (made / "cgroup.procs").write_text(str(pid))
    (made / "freezer.state").write_text("FROZEN")
    try:
        yield
    finally:
        (made / "freezer.state").write_text("THAWED")
        (FREEZER / "cgroup.procs").write_text(str(pid))
        made.rmdir()


@pytest.mark.parametrize("stopped", [by_a_signal, by_a_tracer, by_the_freezer])
def test_a_container_that_is_stopped_on_its_way_is_guarded_and_keeps_no_other_waiting(
    tmp_path: Path,
    directory: Path,
    manager: Manager,
    contained: Callable[..., Contained],
    stopped: Callable[[int], AbstractContextManager[None]],
) -> None:
    manager.start(*words(directory))
    for key in (KEY, "c2"):
        registered.ask(directory / "control", key)
    one = contained()
    assert leftovers.until(lambda: os.listdir(directory / "pending"), seconds=20), "its runtime has sent the listener"
    with stopped(one.pid):
        begin = time.monotonic()
        one.enter(tmp_path / "share")
        one.say()
        assert leftovers.until(lambda: tenants(directory) == [KEY], seconds=20), "not when it goes on"
        other = contained(id="c2")
        other.enter(tmp_path / "share", "c2")
        assert other.maps(), manager.log.read_text()
        assert time.monotonic() - begin < SOON
        assert one.answer(0.1) == ""
    assert one.answer() == "mapped\n", manager.log.read_text()
