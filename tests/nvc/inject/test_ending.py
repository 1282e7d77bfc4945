"""How helpers end: waited for in a process that goes on, left to init by one that ends itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.inject.api import Config, Context
from nvc.sim.create import create
from tests.support.demo_service import is_reaped
from tests.support.native import build

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    build()
    directory = tmp_path_factory.mktemp("machine") / "h200"
    create(str(directory), "h200")
    return str(directory)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Helpers that are forked from now on end when a byte is written here, or when they are killed."""
    reading, writing = os.pipe()
    end = os._exit
    monkeypatch.setattr(os, "_exit", lambda status: (os.read(reading, 1), end(status)))
    yield writing
    os.close(reading)
    os.close(writing)


def test_a_process_that_goes_on_reaps_the_driver_service(
    machine: str, gate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rpc.client.EXIT_TIMEOUT_S", 0.3)
    context = Context(Config(sim=machine, cache=False))
    assert context.inventory().gpus
    (service,) = context._ending
    context.close()
    assert is_reaped(service.pid), "it was ended after EXIT_TIMEOUT_S, and reaped"


def test_a_process_that_ends_does_not_wait_for_the_driver(
    machine: str, gate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rpc.client.EXIT_TIMEOUT_S", 60.0)
    monkeypatch.setattr("rpc.process.init_reaps", lambda: True)  # on a machine, and in most containers
    context = Context(Config(sim=machine, cache=False, wait=False))
    assert context.inventory().gpus
    (service,) = context._ending
    context.close()
    assert os.waitid(os.P_PID, service.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "it has not ended"
    os.write(gate, b"x")
    service.reap()
    assert is_reaped(service.pid)


@pytest.mark.parametrize("words", [["list"], ["info"]])
def test_what_a_command_leaves_ends_by_itself(words: list[str], machine: str) -> None:
    command = [sys.executable, "-m", "nvc", f"--sim={machine}", "--no-cache", *words]
    # With its output in pipes: subprocess.run waits until no process has them open.
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "subreaper.py"), *command], capture_output=True, text=True, timeout=30, cwd=ROOT
    )
    # Of the driver service: it has ended itself, or with its caller (PR_SET_PDEATHSIG).
    assert done.stderr.splitlines()[-1] in (
        "command 0 left []",
        "command 0 left [0]",
        f"command 0 left [{-signal.SIGKILL}]",
    )


@pytest.mark.parametrize(
    ("sigchld", "states"), [("default", []), ("caught", ["Z"]), ("blocked", ["Z"]), ("ignored", [])]
)
def test_nothing_is_left_to_a_process_1_that_does_not_reap(sigchld: str, states: list[str], machine: str) -> None:
    """``docker run IMAGE sleep infinity``, and ``list`` in it again and again. Z: it is left to be reaped."""
    command = [sys.executable, "-m", "nvc", f"--sim={machine}", "--no-cache", "list"]
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, PROGRAMS / "process_1.py"]
    done = subprocess.run([*words, sigchld, *command], capture_output=True, text=True, timeout=30, cwd=ROOT)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, f"left {states}")
