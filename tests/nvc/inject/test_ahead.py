"""Services that are forked before it is known what for."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nvc.__main__ as command
from nvc.base.log import Log
from nvc.container import service as container_service
from nvc.driver import service as driver_service
from nvc.driver import standby
from nvc.inject import ahead
from nvc.model import Host
from nvc.sim import host
from nvc.sim.create import create
from rpc import process
from tests.support.demo_service import is_reaped
from tests.support.native import build

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Host:
    build()
    directory = tmp_path_factory.mktemp("machine") / "h200"
    create(str(directory), "h200")
    return host(str(directory))


@pytest.fixture(autouse=True)
def untaken() -> Iterator[None]:
    yield
    driver_service.in_advance = container_service.in_advance = None
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def has_ended(pid: int) -> bool:
    """Whether it ends within five seconds; it is reaped."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    return False


def test_the_driver_service_is_taken_and_gives_its_rights_up(machine: Host) -> None:
    early = standby.StandbyDriver()
    with driver_service.start(machine, uid=1234, gid=44, deadline=10, log=Log.none()) as client:
        assert early._client.pid == client.pid
        assert client.system().gpu_count == 1
        found = status(client.pid)
        assert machine.root == os.readlink(f"/proc/{client.pid}/root")
        assert driver_service.in_advance is None, "it is taken once"
    assert ("\t".join(["1234"] * 4), "\t".join(["44"] * 4)) == (found["Uid"], found["Gid"])
    assert ["0" * 16] * 3 == [found[name] for name in ("CapInh", "CapPrm", "CapEff")]
    assert ("1", "2") == (found["NoNewPrivs"], found["Seccomp"])
    assert is_reaped(client.pid)


def test_a_log_is_not_lost(machine: Host, tmp_path: Path) -> None:
    early = standby.StandbyDriver()
    log = Log(os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    with driver_service.start(machine, uid=None, gid=None, deadline=10, log=log) as client:
        assert early._client.pid != client.pid
        assert is_reaped(early._client.pid)
        assert client.system().gpu_count == 1


def test_one_that_died_is_replaced(machine: Host) -> None:
    early = standby.StandbyDriver()
    os.kill(early._client.pid, 9)
    os.waitid(os.P_PID, early._client.pid, os.WEXITED | os.WNOWAIT)
    with driver_service.start(machine, uid=None, gid=None, deadline=10, log=Log.none()) as client:
        assert early._client.pid != client.pid
        assert client.system().gpu_count == 1


def test_one_that_is_not_needed_ends_with_its_socket(machine: Host) -> None:
    early = standby.StandbyDriver()
    # Forked later: a copy of the socket there would keep the first one from its end.
    ahead.begin_container()
    later = container_service.start(deadline=10, log=Log.none())
    process.private.discard(early._end.fileno())
    early._end.close()
    assert has_ended(early._client.pid)
    later.close()
    later._client.reap()


def test_the_container_service_is_taken_once(machine: Host, tmp_path: Path) -> None:
    ahead.begin_container()
    first = container_service.start(deadline=10, log=Log.none())
    second = container_service.start(deadline=10, log=Log.none())
    assert first._client.pid != second._client.pid
    assert not first._wait, "init reaps it"
    ahead.begin_container()
    with_log = Log(os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    third = container_service.start(deadline=10, log=with_log)
    assert container_service.in_advance is None
    assert third._wait, "another, which has the log"
    for client in (first, second, third):
        client.close()
    assert has_ended(first._client.pid)


@pytest.mark.parametrize(
    ("words", "inventory", "begun"),
    [
        pytest.param(["list"], False, ["driver"], id="cold"),
        pytest.param(["list"], True, [], id="warm"),
        pytest.param(["--no-cache", "info"], True, ["driver"], id="no-cache"),
        pytest.param(["--sim=/machine", "list"], False, [], id="simulated"),
        pytest.param(["--load-kmods", "configure", "--device=0", "/r"], True, ["container"], id="configure"),
        pytest.param(["configure", "--device=0", "/r"], False, ["driver"], id="configure-cold"),
        pytest.param(["configure", "--dry-run", "/r"], True, [], id="dry-run"),
        pytest.param(["cdi", "list"], False, [], id="another-list"),
        pytest.param(["--version"], False, [], id="no-command"),
    ],
)
def test_what_is_begun(
    words: list[str], inventory: bool, begun: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[str] = []
    path = tmp_path / "inventory.json"
    if inventory:
        path.touch()
    monkeypatch.setattr("nvc.driver.places.CACHE", str(path))
    monkeypatch.setattr(ahead, "begin_driver", lambda: seen.append("driver"))
    monkeypatch.setattr(ahead, "begin_container", lambda: seen.append("container"))
    command._begin_services(words)
    assert begun == seen


def test_nothing_is_begun_where_a_stream_is_closed() -> None:
    """The next descriptor would become that stream."""
    child = os.fork()
    if child == 0:
        os.close(1)
        command._begin_services(["--no-cache", "list"])
        os._exit(int("nvc.driver.standby" in sys.modules and driver_service.in_advance is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
