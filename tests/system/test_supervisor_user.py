"""Others under the uid of a supervisor, which any root can take: threads and instances of inotify count by user."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvc.agent import cgroups
from nvc.guard import supervisors
from nvc.guard.supervisors import USER_COUNT, Supervisors
from nvc.share.protocol import Client
from tests.support import cgroupview, leftovers
from tests.support.attacking import GIB, LIMIT, Attack
from tests.support.attacking_uvm import uvm, uvm_keeps
from tests.support.attacks import SOURCES
from tests.support.leftovers import wait_until
from tests.support.native import build
from tests.support.simgpu import SimGpu, with_gpu
from tests.support.tenants import Tenants, build_static, guarded, prepare
from tests.system.test_balance import leaky, machine, started

__all__ = ["machine"]

pytestmark = pytest.mark.root

#: Of the supervisors here: tests beside these have the usual ones.
USERS = supervisors.USERS - 2 * USER_COUNT
#: More than the threads of a supervisor, and than instances of inotify that a user has by default.
TAKEN = 200
HOG = f"""
import ctypes, os, sys, threading, time
user = int(sys.argv[1])
os.setresuid(user, user, user)
instances = [ctypes.CDLL(None).inotify_init1(0) for _ in range(100000 if sys.argv[2] == "inotify" else 0)]
for _ in range({TAKEN} if sys.argv[2] == "threads" else 0):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("taken", flush=True)
time.sleep(600)
"""


@contextmanager
def taken(what: str, tenant: int = 1) -> Iterator[None]:
    """While another process has the uid of the tenant's supervisor, and as many threads or instances as that gets."""
    command = [sys.executable, "-I", "-S", "-c", HOG, str(USERS + tenant), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hog:
        assert hog.stdout
        try:
            assert hog.stdout.readline() == "taken\n"
            yield
        finally:
            hog.kill()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = prepare(tmp_path_factory.mktemp("user"))
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    return directory


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """An agent's, with trees of cgroups that count processes."""
    if (problem := cgroups.prepare(str(tmp_path))) or not list(tmp_path.glob("cgroups*/pids.max")):
        pytest.skip(problem or "no pids controller")
    yield tmp_path
    leftovers.until(lambda: cgroups.remove(str(tmp_path)) or not list(tmp_path.glob("cgroups*")), seconds=20)
    assert not cgroupview.directories(cgroups.tree_name(str(tmp_path)))


def counted(place: Path, directory: Path, function: Callable[[Tenants], None]) -> None:
    def inside(tenants: Tenants) -> None:
        tenants.guard.close()
        tenants.guard = Supervisors("/dev", str(directory), users=USERS)
        function(tenants)
        for tenant in tenants.firsts:  # or they would outlive the agent that has this directory
            tenants.guard.remove(tenant)

    guarded(place, inside)


def test_what_uvm_has_counts_while_threads_of_others_have_the_uid(place: Path, directory: Path) -> None:
    def inside(tenants: Tenants) -> None:
        one = Attack(tenants, place)
        with taken("threads"):
            uvm(one)
        one.end()

    counted(place, directory, inside)


@pytest.mark.parametrize("what", ["threads", "inotify"])
def test_a_container_starts_and_its_limits_change_while_others_have_the_uid(
    place: Path, directory: Path, what: str
) -> None:
    """As a pod without a capability, whose runAsUser it is, stopped every start of a guarded container on the node."""

    def inside(tenants: Tenants) -> None:
        with taken(what):
            tenants.add(memory=LIMIT)
            tenants.guard.phase(1, 0, 50_000, 0, 10_000)
            probe = tenants.probe()
            assert probe.alloc(1024, 100) == [9, 2]
            tenants.update(memory=12 * GIB)
            wait_until(lambda: probe.info()[1] == 12 * GIB, "the new limit is in force")
            wait_until(lambda: tenants.of().frozen_ns > 0, "the cap is in force")

    counted(place, directory, inside)


def without_threads(guard: Supervisors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisors get no further thread, process and watch of epoll (native/test/leaky_supervisor.c)."""
    monkeypatch.setattr(guard, "_supervisor", str(build() / "leaky-supervisor"))
    monkeypatch.setenv("NVC_TEST_HOLE", "threads")


def test_what_uvm_has_counts_without_a_process_for_the_quarantine(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which pieces have other holders is not known then: all that was freed is charged, until no process is left."""

    def inside(tenants: Tenants) -> None:
        without_threads(tenants.guard, monkeypatch)
        one = Attack(tenants, place)
        uvm_keeps(one)
        one.end()

    guarded(place, inside)


def test_processes_that_end_are_seen_without_epoll_and_a_quarantine(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two with memory of one size: whether that is the same memory was asked of a probe that was not there."""

    def inside(tenants: Tenants) -> None:
        without_threads(tenants.guard, monkeypatch)
        tenants.add(memory=LIMIT)
        *others, left = probes = [tenants.probe() for _ in range(4)]
        assert [one.alloc(512, 1) for one in probes] == [[1, 0]] * 4
        for one in others:
            one.begin("die")
        wait_until(lambda: [pid for pid, _ in tenants.guard.processes(1)] == [left.process.pid], "the others are gone")
        assert left.alloc(512, 1) == [1, 0]
        assert left.free() == 0
        assert tenants.guard.lost() == []

    guarded(place, inside)


def test_a_cap_without_a_thread_that_keeps_it_ends_the_container(machine: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with leaky(gpu, "threads") as agent:
            tenant = agent.tenant(memory=LIMIT)
            with (
                started(gpu, tenant, machine, "victim") as program,
                Client(f"{agent.directory}/control", 60.0) as client,
            ):
                assert program.line() == "memory=0"
                client.call("set", container=tenant.name, spec="cap=20%", force=True)
                wait_until(lambda: program.process.poll() is not None, "it is ended")
                wait_until(lambda: agent.events("supervisor-died"), "the monitor says so")

    with_gpu(machine, inside)
