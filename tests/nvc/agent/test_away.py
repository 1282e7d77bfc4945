"""``share set``, ``pause`` and ``resume`` of a guarded container while no agent runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.guard.plan_file import open_plan
from nvc.guard.scheduling import EDGES, PERIOD_US, edges
from nvc.guard.supervisors import Supervisors
from nvc.share import limits
from nvc.share.protocol import Client
from tests.nvc.agent.test_admission import contained, directory, supervisor, tenants, words
from tests.support import registered
from tests.support.contained import KEY, Contained
from tests.support.native import CHECKOUT
from tests.support.service_manager import Manager

__all__ = ["contained", "directory"]
pytestmark = pytest.mark.root

GIB = 1 << 30


@pytest.fixture
def manager(tmp_path: Path, directory: Path) -> Iterator[Manager]:
    """Nothing holds the control socket while there is no agent."""
    (tmp_path / "manager").mkdir()
    with Manager(tmp_path / "manager", directory, ("listen",)) as made:
        yield made


@pytest.fixture
def tenant(tmp_path: Path, directory: Path, manager: Manager, contained: Callable[..., Contained]) -> Contained:
    """A guarded container; the agent was killed."""
    manager.start(*words(directory))
    registered.ask(directory / "control", KEY)
    made = contained()
    made.enter(tmp_path / "share")
    assert made.maps(), manager.log.read_text()
    supervisor(manager)
    manager.kill()
    return made


def share(place: Path, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "nvc", "share", "--store", str(place / "share"), verb, KEY, *arguments),
            *("--agent", str(place / "agent/control")),
        ],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def planned(directory: Path) -> tuple[limits.Limits, tuple[int, int, int]]:
    """The tenant's limits and phase, as its plan has them."""
    plan = open_plan(str(directory / "tenants/1"))
    try:
        return limits.decode(plan.limits), plan.phase(0)
    finally:
        plan.close()


def in_force(directory: Path) -> bool:
    """Whether the supervisor took the plan that is there."""
    with Supervisors(directory=str(directory)) as found:
        found.find_again(1)
        plan = open_plan(str(directory / "tenants/1"))
        try:
            return found._tenant(1).counters.generation == plan.generation
        finally:
            plan.close()


def test_a_share_is_changed_and_kept_by_the_next_agent(
    tmp_path: Path, directory: Path, manager: Manager, tenant: Contained
) -> None:
    done = share(tmp_path, "set", "mem=512Mi,cap=30%")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines()[-1] == "in force: the container's supervisor holds it"
    now, phase = planned(directory)
    assert (now.gpus[0].memory, now.gpus[0].cap) == (GIB // 2, 300)
    assert phase[2] - phase[1] == phase[0] * 3 // 10 > 0
    assert in_force(directory)
    assert share(tmp_path, "set", "weight=20").stdout.endswith("; weight and priority, when an agent answers again\n")
    manager.start(*words(directory))
    assert tenants(directory) == [KEY]
    with Client(str(directory / "control")) as client:
        (gpu,) = client.call("status")["tenants"][0]["gpus"]
    assert (gpu["limit"], gpu["cap"], gpu["weight"]) == (GIB // 2, 300, 20)
    now, phase = planned(directory)
    assert (now.gpus[0].memory, phase[2] - phase[1]) == (GIB // 2, phase[0] * 3 // 10)


def test_a_container_is_paused_and_resumed(
    tmp_path: Path, directory: Path, manager: Manager, tenant: Contained
) -> None:
    assert share(tmp_path, "pause").stdout == f"{KEY} is paused: its supervisor holds it\n"
    assert planned(directory)[0].paused and in_force(directory)
    assert share(tmp_path, "resume").stdout == f"{KEY} is resumed: its supervisor holds it\n"
    assert not planned(directory)[0].paused and in_force(directory)
    share(tmp_path, "pause")
    manager.start(*words(directory))
    with Client(str(directory / "control")) as client:
        assert client.call("status")["tenants"][0]["paused"]


def test_a_supervisor_that_does_not_take_it_is_told(
    tmp_path: Path, directory: Path, manager: Manager, tenant: Contained
) -> None:
    hung = supervisor(manager)
    os.kill(hung, signal.SIGSTOP)
    try:
        done = share(tmp_path, "set", "mem=512Mi")
    finally:
        os.kill(hung, signal.SIGCONT)
    assert done.returncode == 1
    assert "the change is written, and not in force: " in done.stderr and "start nvc-agent" in done.stderr


def test_a_container_that_is_not_guarded_is_changed_in_the_file_alone(
    tmp_path: Path, directory: Path, manager: Manager, tenant: Contained
) -> None:
    record = directory / "tenants/1.json"
    before = planned(directory)
    data = json.loads(record.read_text())
    record.write_text(json.dumps({**data, "pid": 1}))  # an earlier container's
    done = share(tmp_path, "set", "mem=512Mi")
    record.write_text(json.dumps(data))
    assert done.returncode == 0 and "in force" not in done.stdout
    assert planned(directory) == before


def test_a_cap_that_could_not_be_kept_is_refused_and_nothing_is_written(
    tmp_path: Path, directory: Path, manager: Manager, tenant: Contained
) -> None:
    """Without an agent no edge was counted."""
    assert share(tmp_path, "set", "cap=30%").returncode == 0
    assert share(tmp_path, "set", "cap=100%").returncode == 0
    others = edges(PERIOD_US, 1)
    for number in range(2, 2 + EDGES // others):
        made = directory / "tenants" / str(number)
        made.mkdir()
        made.joinpath("plan").write_bytes((directory / "tenants/1/plan").read_bytes())
        record = json.loads((directory / "tenants/1.json").read_text())
        (directory / f"tenants/{number}.json").write_text(json.dumps({**record, "number": number, "key": f"k{number}"}))
        plan = open_plan(str(made))
        plan.set_phase(0, PERIOD_US, 0, 1000)
        plan.close()
    before = planned(directory)
    done = share(tmp_path, "set", "cap=30%")
    assert done.returncode == 1 and "its cap cannot be kept" in done.stderr and "start nvc-agent" in done.stderr
    assert planned(directory) == before
    entry = limits.decode((tmp_path / "share" / KEY / "limits").read_bytes())
    assert entry.gpus[0].cap == 1000
    assert share(tmp_path, "set", "mem=512Mi").returncode == 0
