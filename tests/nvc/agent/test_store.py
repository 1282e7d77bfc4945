"""Listeners when agents are killed: in systemd's descriptor store, which outlives the keeper too, and on their way."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.agent.state.records import prepare
from nvc.guard.protocol import Client
from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare
from tests.support import leftovers, registered
from tests.support.guarded import build_launcher
from tests.support.service_manager import Manager

pytestmark = pytest.mark.root

KEY = "c1"
GPU = ResolvedGpu("GPU-11111111-2222-3333-4444-555555555555", 0, 1 << 30)
#: Maps a file shared, not from its beginning, which is announced, for every line that it reads.
PROGRAM = Path(__file__).parent / "programs/map_on_request.py"


@pytest.fixture
def shares(tmp_path: Path) -> Path:
    made = tmp_path / "share"
    prepare(str(tmp_path / "agent"))
    return made


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that gives its listener to the agent's socket as a runtime does."""
    launcher = build_launcher(tmp_path)
    message = {"fds": ["seccompFd"], "pid": "@", "state": {"id": KEY, "status": "creating", "pid": 0, "bundle": "/"}}
    (tmp_path / "message").write_text(json.dumps(message).replace('"@"', "PID"))
    (tmp_path / "mapped").write_bytes(bytes(8192))
    words = [launcher, tmp_path / "agent/listen", tmp_path / "filter", tmp_path / "message"]
    process = subprocess.Popen(
        [*words, "/usr/bin/python3", PROGRAM, tmp_path / "mapped"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate(timeout=20)


def enter(process: subprocess.Popen[str], shares: Path) -> None:
    """What a container's hook does."""
    limits = Limits((GPU,), (), "580.105.08", KEY)
    record = StoredShare(KEY, KEY, process.pid, store.start_time(process.pid))
    store.create(record, limits, b"", directory=str(shares))


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    """Its next line; "" when none comes."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 30)
    return process.stdout.readline() if ready else ""


def kill_keeper(directory: Path) -> None:
    for name in os.listdir("/proc"):
        try:
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0") if name.isdigit() else []
        except OSError:
            continue
        if str(directory).encode() in words and any(word.endswith(b"keeper.py") for word in words):
            with open(os.pidfd_open(int(name)), "rb") as keeper:
                os.kill(int(name), signal.SIGKILL)
                assert select.select([keeper], [], [], 30)[0], "it does not end"


@pytest.mark.parametrize("says_store", [True, False], ids=["systemd 254", "systemd 252"])
def test_what_the_store_has_outlives_agent_and_keeper(
    tmp_path: Path, shares: Path, request: pytest.FixtureRequest, says_store: bool
) -> None:
    directory = tmp_path / "agent"
    words = ("agent", "--directory", str(directory), "--store", str(shares))
    (tmp_path / "manager").mkdir()
    with Manager(tmp_path / "manager", directory, ("listen", "control"), says_store=says_store) as manager:
        manager.start(*words)
        registered.ask(directory / "control", KEY)
        tenant: subprocess.Popen[str] = request.getfixturevalue("tenant")
        enter(tenant, shares)
        say(tenant)
        assert answer(tenant) == "mapped\n", manager.log.read_text()
        assert leftovers.until(lambda: list(manager.store) == ["1-1"], seconds=40)
        for _ in range(2):
            # The agent first: with a connection to the keeper it would start another.
            manager.kill()
            kill_keeper(directory)
            say(tenant)
            manager.start(*words)
            assert answer(tenant) == "mapped\n", manager.log.read_text()
            with Client(str(directory / "control")) as client:
                assert [one["container"] for one in client.call("status")["tenants"]] == [KEY]
        assert leftovers.until(lambda: list(manager.store) == ["1-1"], seconds=40)
        # The keeper has what only the store had, and then the other way round: a stop empties the store.
        manager.kill()
        os.close(manager.store.pop("1-1"))
        manager.start(*words)
        say(tenant)
        assert answer(tenant) == "mapped\n", manager.log.read_text()
        assert leftovers.until(lambda: list(manager.store) == ["1-1"], seconds=40)
        tenant.kill()
        assert leftovers.until(lambda: not manager.store, seconds=40), "the store lets go of a container that ended"
    kill_keeper(directory)
    assert manager.told.count("STOPPING=1") == 1


def test_a_listener_on_its_way_is_not_lost_with_an_agent(
    tmp_path: Path, shares: Path, request: pytest.FixtureRequest
) -> None:
    directory = tmp_path / "agent"
    words = ("agent", "--directory", str(directory), "--store", str(shares))
    (tmp_path / "manager").mkdir()
    with Manager(tmp_path / "manager", directory, ("listen", "control")) as manager:
        manager.start(*words)
        registered.ask(directory / "control", KEY)
        tenant: subprocess.Popen[str] = request.getfixturevalue("tenant")
        # The runtime is gone, the hook is slow: the agent waits for the share.
        say(tenant)
        for _ in range(2):
            time.sleep(0.3)
            manager.kill()
            manager.start(*words)
        time.sleep(0.3)
        manager.kill()
        enter(tenant, shares)
        manager.start(*words)
        assert answer(tenant) == "mapped\n", manager.log.read_text()
        # A tenant continues before its event is logged.
        assert leftovers.until(lambda: manager.log.read_text().count('"event":"listener"') == 1, seconds=30)
        assert leftovers.until(lambda: list(manager.store) == ["1-1"], seconds=40)
        # Nothing of the connection is left.
        manager.kill()
        manager.start(*words)
        say(tenant)
        assert answer(tenant) == "mapped\n", manager.log.read_text()
        assert manager.log.read_text().count('"event":"listener"') == 1
    kill_keeper(directory)
