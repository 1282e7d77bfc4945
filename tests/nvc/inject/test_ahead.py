"""Services that are forked before it is known what for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nvc.__main__ as command
from nvc.base.log import Log
from nvc.container import service as container_service
from nvc.driver import service as driver_service
from nvc.driver.service import Begin
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
    """Whether it ends; it is reaped."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    return False


def begun(begin: Begin) -> int:
    """The pid of a driver service that was forked for ``begin``."""
    ahead.begin_driver(begin)
    return process._clients[-1].pid


def test_the_driver_service_initialises_nvml_at_once_and_is_taken_without_rights(machine: Host) -> None:
    pid = begun(Begin(machine, 1234, 44))
    until = time.monotonic() + 30
    while os.readlink(f"/proc/{pid}/root") != machine.root:
        assert time.monotonic() < until, "it has the driver root before it is taken"
        time.sleep(0.005)
    with driver_service.start(machine, uid=1234, gid=44, deadline=10, log=Log.none()) as client:
        assert pid == client.pid
        assert client.system().gpu_count == 1
        found = status(client.pid)
        assert driver_service.in_advance is None, "it is taken once"
    assert ("\t".join(["1234"] * 4), "\t".join(["44"] * 4)) == (found["Uid"], found["Gid"])
    assert ["0" * 16] * 3 == [found[name] for name in ("CapInh", "CapPrm", "CapEff")]
    assert ("1", "2") == (found["NoNewPrivs"], found["Seccomp"])
    assert is_reaped(client.pid)


def test_a_log_is_not_lost(machine: Host, tmp_path: Path) -> None:
    pid = begun(Begin(machine, None, None))
    log = Log(os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    with driver_service.start(machine, uid=None, gid=None, deadline=10, log=log) as client:
        assert pid != client.pid
        assert is_reaped(pid)
        assert client.system().gpu_count == 1


def test_one_that_died_is_replaced(machine: Host) -> None:
    pid = begun(Begin(machine, None, None))
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with driver_service.start(machine, uid=None, gid=None, deadline=10, log=Log.none()) as client:
        assert pid != client.pid
        assert client.system().gpu_count == 1


@pytest.mark.parametrize(("uid", "root"), [(1234, ""), (None, "/")])
def test_one_for_another_host_or_user_is_replaced(machine: Host, uid: int | None, root: str) -> None:
    pid = begun(Begin(machine.replace(root=root or machine.root), None, None))
    with driver_service.start(machine, uid=uid, gid=None, deadline=10, log=Log.none()) as client:
        assert pid != client.pid
        assert is_reaped(pid)
        assert client.system().gpu_count == 1
        assert machine.root == os.readlink(f"/proc/{client.pid}/root")
        assert str(65534 if uid is None else uid) == status(client.pid)["Uid"].split("\t")[0]


@pytest.mark.parametrize(
    ("before", "variables", "known"),
    [
        pytest.param([], {}, True, id="nothing"),
        pytest.param(["--no-cache"], {}, True, id="no-cache"),
        pytest.param(["--no-cache", "--sim={}"], {}, True, id="simulated"),
        pytest.param(["--sim"], {}, False, id="sim-apart"),
        pytest.param(["--sim=/nowhere"], {}, False, id="no-machine"),
        pytest.param(["--sim={}", "--sim={}/x"], {}, False, id="two-machines"),
        pytest.param(["--no-cache"], {"NVC_SIM": "/machine"}, False, id="simulated-by-a-variable"),
        pytest.param([], {"NVC_DEBUG_FILE": "/dev/null"}, False, id="log"),
        *(
            pytest.param([word], {}, False, id=word)
            for word in ("--user", "-u0:0", "--root=/driver", "-r/driver", "--load-kmods", "-k", "--debug=/dev/tty")
        ),
    ],
)
def test_what_is_expected_of_a_command_line(
    before: list[str], variables: dict[str, str], known: bool, machine: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NVC_SIM", "NVC_DEBUG_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = [word.format(machine.root) for word in before]
    wanted = machine if "--sim={}" in before else Host()
    assert ahead.expected(words) == (Begin(wanted, None, None) if known else None)


def test_one_that_is_not_needed_ends_with_its_socket(machine: Host) -> None:
    pid = begun(Begin(machine, None, None))
    unneeded = process._clients[-1]
    # Forked later: a copy of the socket there would keep the first one from its end.
    ahead.begin_container()
    later = container_service.start(deadline=10, log=Log.none())
    unneeded.leave()
    assert has_ended(pid)
    later.close()


def test_the_container_service_is_taken_once(machine: Host, tmp_path: Path) -> None:
    ahead.begin_container()
    first = container_service.start(deadline=10, log=Log.none(), wait=False)
    second = container_service.start(deadline=10, log=Log.none())
    assert first._client.pid != second._client.pid
    ahead.begin_container()
    with_log = Log(os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    third = container_service.start(deadline=10, log=with_log)
    assert container_service.in_advance is None
    assert third._client.pid not in (first._client.pid, second._client.pid), "it has the log"
    for client in (first, second, third):
        client.close()
    assert has_ended(first._client.pid), "it is left to init, by a process that ends"


def test_a_process_that_waits_for_helpers_waits_for_this_one(machine: Host) -> None:
    """crun takes the end of a helper, which a hook leaves, for nothing, and misses the hook's own."""
    ahead.begin_container()
    client = container_service.start(deadline=10, log=Log.none(), wait=True)
    client.close()
    assert is_reaped(client._client.pid)


@pytest.mark.parametrize(
    ("words", "inventory", "begun"),
    [
        pytest.param(["list"], False, ["driver"], id="cold"),
        pytest.param(["list"], True, [], id="warm"),
        pytest.param(["--no-cache", "info"], True, ["driver"], id="no-cache"),
        pytest.param(["--no-cache", "--user=0:0", "info"], True, [], id="another-user"),
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
    monkeypatch.setattr(ahead, "begin_driver", lambda begin: seen.append("driver"))
    monkeypatch.setattr(ahead, "begin_container", lambda: seen.append("container"))
    command._begin_services(words)
    assert begun == seen


def test_nothing_is_begun_where_a_stream_is_closed() -> None:
    """The next descriptor would become that stream."""
    child = os.fork()
    if child == 0:
        os.close(1)
        command._begin_services(["--no-cache", "list"])
        os._exit(int(driver_service.in_advance is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
