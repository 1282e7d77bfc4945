"""How soon a container ends with its guard, and that it is that container, whatever it shares with others."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nvc.agent import cgroups
from tests.support.agentbed import Held, RunningAgent
from tests.support.attacks import SOURCES
from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.cgroupview import ROOT, remove_when_empty
from tests.support.isolation import pid_namespace
from tests.support.leftovers import wait_until
from tests.support.runtimes import OciRuntime
from tests.support.tenants import build_static
from tests.system.test_agent import agent, behind, empty, machine, tenant, tree
from tests.system.test_supervisor import ended_within, first_process, is_alive, pids, watchdog

__all__ = ["agent", "machine", "tree"]
pytestmark = pytest.mark.system

#: Until the container's first process has ended, on a machine that has a processor for it: one try of TRIES.
SECONDS, TRIES = 0.1, 3


def one_gib(tree: Path, **changes: object) -> Container:
    return replace(tenant(tree, "1", "1024", "0", share="mem=1Gi"), **changes)  # type: ignore[arg-type]


def seconds_to_end(pid: int, victims: tuple[int, ...]) -> float:
    """Between SIGKILL to the victims and the end of the process."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        begin = time.monotonic()
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        assert poll.poll(10_000), f"process {pid} goes on"
        return time.monotonic() - begin
    finally:
        os.close(pidfd)


def own_cgroup(agent: RunningAgent, pid: int) -> str:
    """The cgroup with the limit of memory; it is in the agent's tree."""
    tree = cgroups.tree_name(agent.directory)
    (place,) = {line.split(":")[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if tree in line}
    return place


@pytest.mark.parametrize("killed", ["supervisor", "monitor", "both"])
def test_a_container_ends_within_100_ms(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, killed: str
) -> None:
    took: list[float] = []
    for count in range(1, TRIES + 1):
        with Held(behind(bed, runc, agent), one_gib(tree)) as held:
            assert held.line() == "held"
            first = first_process(agent, held)
            monitor, supervisor = pids(agent, count)
            if Path(agent.directory, cgroups.NAME).is_symlink():  # not without the memory controller
                assert len({own_cgroup(agent, pid) for pid in (monitor, supervisor, watchdog(monitor))}) == 1
            victims = {"supervisor": (supervisor,), "monitor": (monitor,), "both": (monitor, supervisor)}[killed]
            if killed == "both":  # neither sees the other one die
                for victim in victims:
                    os.kill(victim, signal.SIGSTOP)
            took.append(seconds_to_end(first, victims))
        assert empty(agent)
        if took[-1] < SECONDS:
            break
    assert min(took) < SECONDS, took


@pytest.mark.parametrize(("name", "view", "killed"), [("runc", "hybrid", 1), ("crun", "v1", 0)])
def test_a_container_in_the_host_s_pid_namespace(
    bed: Bed, ask: Callable[[str, str], OciRuntime], agent: RunningAgent, tree: Path, name: str, view: str, killed: int
) -> None:
    with (
        Held(behind(bed, ask(name, view), agent), one_gib(tree, joined={"pid": ""})) as held,
        subprocess.Popen(["sleep", "60"]) as stranger,
    ):
        try:
            assert held.line() == "held"
            first = first_process(agent, held)
            assert os.stat(f"/proc/{first}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
            os.kill(pids(agent)[killed], signal.SIGKILL)
            ended_within(first, 2.0)
            assert stranger.poll() is None
        finally:
            stranger.kill()
    assert empty(agent)


def test_one_of_two_containers_of_a_pod(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    with pid_namespace() as pause:
        pod = one_gib(tree, joined={"pid": f"/proc/{pause}/ns/pid"})
        with Held(behind(bed, runc, agent), pod) as kept:
            assert kept.line() == "held"
            with Held(behind(bed, runc, agent), pod) as lost:
                assert lost.line() == "held"
                first, other = first_process(agent, lost), first_process(agent, kept)
                namespaces = {os.stat(f"/proc/{pid}/ns/pid").st_ino for pid in (pause, first, other)}
                assert len(namespaces) == 1
                os.kill(pids(agent, 2)[1], signal.SIGKILL)
                ended_within(first, 2.0)
                assert is_alive(pause)
                code, said = kept.end()
                assert (code, "failed=0 passed=0" in said) == (0, True), said
    assert empty(agent)


@pytest.mark.parametrize("pid", ["own", "host"])
def test_a_container_in_a_cgroup_of_others(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, pid: str
) -> None:
    """As with --cgroups=disabled: its cgroup is not its own, and what else is there goes on."""
    name = bed.name("shared")
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            hierarchies = [ROOT] if (ROOT / "cgroup.procs").exists() else ROOT.iterdir()
            tops = [top for top in hierarchies if (top / "cgroup.procs").exists()]
            for top in tops:
                if top.name == "cpuset":
                    continue  # which takes none before it is told which processors
                place = top / name
                place.mkdir()
                (place / "cgroup.procs").write_text(str(stranger.pid))
            joined = {"pid": ""} if pid == "host" else {}
            with Held(behind(bed, runc, agent), one_gib(tree, cgroup=f"/{name}", joined=joined)) as held:
                assert held.line() == "held"
                first = first_process(agent, held)
                os.kill(pids(agent)[1], signal.SIGKILL)
                ended_within(first, 2.0)
                # Where a container has no pid namespace, runc itself ends all that is in its cgroup.
                assert pid == "host" or stranger.poll() is None
                ended = wait_until(lambda: [one for one in agent.of("supervisor-died") if "ended_by" in one])
                assert [one["ended_by"] for one in ended] == ["pid namespace" if pid == "own" else "its processes"]
        finally:
            stranger.kill()
            stranger.wait()
            remove_when_empty(name)
    assert empty(agent)


def test_a_container_whose_supervisor_waits_for_a_dead_file_can_be_killed(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    """A call whose struct lies in a file of a FUSE server of the container's that does not answer."""
    build_static(SOURCES[0], tree / "usr/bin/attack", *map(str, SOURCES[1:]))
    fuse = one_gib(
        tree,
        args=["attack", "fuse", "memory"],
        capabilities=("CAP_SYS_ADMIN",),
        devices=({"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"},),
        mounts=({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=1777"]},),
    )
    with Held(behind(bed, runc, agent), fuse) as held:
        assert held.line() == "mounted=1"
        assert held.line().startswith("calling=")
        known = agent.tenant(held.name)
        assert known is not None
        begin = time.monotonic()
        held.kill()
        ended_within(known.pid, 2.0)
        assert time.monotonic() - begin < 5.0
    assert empty(agent)


def test_an_agent_that_is_stopped_for_seconds_is_not_missed(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    with Held(behind(bed, runc, agent), one_gib(tree)) as held:
        assert held.line() == "held"
        assert agent.process is not None
        os.kill(agent.process.pid, signal.SIGSTOP)
        try:
            until = time.monotonic() + 3.0
            while time.monotonic() < until:
                more = held.execute("rawalloc", "0", "1024", "0.3")
                assert (more.code, "failed=0 passed=0" in more.out) == (0, True), more.text
        finally:
            os.kill(agent.process.pid, signal.SIGCONT)
        code, said = held.end()
        assert (code, "failed=0 passed=0" in said) == (0, True), said
    assert empty(agent)
