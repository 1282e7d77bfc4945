"""Monitor and supervisor of a container: what happens when they are killed, and that the agent is not needed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.guard import pages
from nvc.share.store import start_time
from tests.support import leftovers
from tests.support.agentbed import Held, RunningAgent
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.opened import names, opened
from tests.support.runtimes import OciRuntime
from tests.system.test_agent import GIB, agent, behind, empty, machine, tenant, tree

__all__ = ["agent", "machine", "tree"]
pytestmark = pytest.mark.system

#: From the kill to the end of the container's first process. The claim is 100 ms; machines of tests are busy.
SECONDS = 2.0


def pids(agent: RunningAgent, count: int = 1) -> tuple[int, int]:
    """(monitor, supervisor) of the container that started last. count: how many have started."""
    # The monitor writes it while the container's first calls are answered.
    assert leftovers.until(lambda: len(agent.of("monitor")) >= count, seconds=20)
    supervisor = int(agent.of("monitor")[-1]["supervisor"])
    status = Path(f"/proc/{supervisor}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))), supervisor


def watchdog(monitor: int) -> int:
    def found() -> list[int]:
        children = [int(word) for word in Path(f"/proc/{monitor}/task/{monitor}/children").read_text().split()]
        return [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "nvc-watchdog\n"]

    assert leftovers.until(lambda: bool(found()), seconds=20)  # its name comes a moment after it
    return found()[0]


def is_alive(pid: int) -> bool:
    """Whether it has not exited; nothing may wait for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def first_process(agent: RunningAgent, held: Held) -> int:
    known = agent.tenant(held.name)
    assert known is not None
    return known.pid


def ended_within(pid: int, seconds: float) -> float:
    """Seconds until the process has exited."""
    begin = time.monotonic()
    assert leftovers.until(lambda: not is_alive(pid), seconds=seconds), f"process {pid} goes on"
    return time.monotonic() - begin


@pytest.mark.parametrize(("name", "view"), [("runc", "hybrid"), ("crun", "v1"), ("crun", "v2")])
@pytest.mark.parametrize("killed", ["supervisor", "monitor", "both"])
def test_a_container_ends_with_its_guard(
    bed: Bed, ask: Callable[[str, str], OciRuntime], agent: RunningAgent, tree: Path, name: str, view: str, killed: str
) -> None:
    with Held(behind(bed, ask(name, view), agent), tenant(tree, "2", "1024", "0", share="mem=2Gi")) as held:
        assert held.line() == "held"
        first = first_process(agent, held)
        monitor, supervisor = pids(agent)
        for victim in (monitor, supervisor) if killed == "both" else (monitor if killed == "monitor" else supervisor,):
            os.kill(victim, signal.SIGKILL)
        ended_within(first, SECONDS)
        for one in (monitor, supervisor):
            ended_within(one, 10.0)
    assert empty(agent)
    assert list(Path(agent.directory, "tenants").iterdir()) == list(Path(agent.directory, "containers").iterdir()) == []


@pytest.mark.parametrize("killed", ["supervisor", "monitor"])
def test_no_agent_is_needed_for_that(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, killed: str) -> None:
    with Held(behind(bed, runc, agent), tenant(tree, "1", "1024", "0", share="mem=1Gi")) as held:
        assert held.line() == "held"
        first = first_process(agent, held)
        monitor, supervisor = pids(agent)
        agent.kill()
        os.kill(monitor if killed == "monitor" else supervisor, signal.SIGKILL)
        ended_within(first, SECONDS)
    agent.start()
    assert empty(agent)


def test_a_container_whose_guard_died_without_an_agent_is_ended_by_the_next(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    with Held(behind(bed, runc, agent), tenant(tree, "1", "1024", "0", share="mem=1Gi")) as held:
        assert held.line() == "held"
        first = first_process(agent, held)
        agent.kill()
        # Stopped first: neither sees the other one die.
        victims = (*pids(agent), watchdog(pids(agent)[0]))
        for victim in victims:
            os.kill(victim, signal.SIGSTOP)
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        agent.start()
        ended_within(first, SECONDS)
        (died,) = leftovers.until(lambda: agent.of("supervisor-died"), seconds=20)
        assert died["ended"] is True
    assert empty(agent)


@pytest.mark.parametrize(("name", "view"), [("runc", "hybrid"), ("crun", "v1"), ("crun", "v2")])
def test_a_supervisor_that_lies_has_no_other_process_ended(
    bed: Bed, ask: Callable[[str, str], OciRuntime], agent: RunningAgent, tree: Path, name: str, view: str
) -> None:
    """What called the driver is in the counters, which a hostile supervisor writes; and the monitor ends it."""
    with (
        Held(behind(bed, ask(name, view), agent), tenant(tree, "1", "1024", "0", share="mem=1Gi")) as held,
        subprocess.Popen(["sleep", "60"]) as stranger,
    ):
        try:
            assert held.line() == "held"
            first = first_process(agent, held)
            _, supervisor = pids(agent)
            os.kill(supervisor, signal.SIGSTOP)
            lie(supervisor, stranger.pid)
            os.kill(supervisor, signal.SIGKILL)
            ended_within(first, SECONDS)
            assert stranger.poll() is None
        finally:
            stranger.kill()
    assert empty(agent)


def lie(supervisor: int, pid: int) -> None:
    """Name a process in both copies of its counters."""
    (number,) = [number for number, file in opened(supervisor).items() if "nvc-counters" in file.name]
    file = os.open(f"/proc/{supervisor}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    try:
        content = pages._CountersFile.from_buffer_copy(os.pread(file, ctypes.sizeof(pages._CountersFile), 0))
        for counters in content.counters:
            counters.process_count = 1
            counters.processes[0].pid, counters.processes[0].start_time = pid, start_time(pid)
        assert os.pwrite(file, bytes(content), 0) == ctypes.sizeof(content)
    finally:
        os.close(file)


@pytest.mark.parametrize("order", ["earlier", "later"])
@pytest.mark.parametrize("how", ["its end", "its supervisor's", "its monitor's"])
def test_another_container_goes_on(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, order: str, how: str
) -> None:
    """The later one's monitor is a process that an acceptor started, which became the earlier one's."""
    wrapped = behind(bed, runc, agent)
    with contextlib.ExitStack() as stack:
        started, guards = [], []
        for _ in range(2):
            started.append(stack.enter_context(Held(wrapped, tenant(tree, "1", "1024", "0", share="mem=1Gi"))))
            assert started[-1].line() == "held"
            guards.append(pids(agent, len(started)))
        lost, kept = started if order == "earlier" else reversed(started)
        monitor, supervisor = guards[0 if order == "earlier" else 1]
        first = first_process(agent, lost)
        if how == "its end":
            lost.kill()
        else:
            os.kill(monitor if how == "its monitor's" else supervisor, signal.SIGKILL)
        ended_within(first, SECONDS)
        ended_within(monitor, 10.0)
        assert leftovers.until(lambda: agent.tenant(lost.name) is None, seconds=30)
        more = stack.enter_context(Held(wrapped, tenant(tree, "1", "1024", "0", share="mem=1Gi")))
        assert more.line() == "held"
        code, said = kept.end()
        assert (code, "failed=0 passed=0" in said) == (0, True), said
        assert not [one for one in agent.of("supervisor-died") if one.get("container") == kept.name]
    assert empty(agent)


def test_an_agent_that_hangs_changes_nothing(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    with Held(behind(bed, runc, agent), tenant(tree, "2", "1024", "0", share="mem=2Gi")) as held:
        assert held.line() == "held"
        assert agent.process is not None
        os.kill(agent.process.pid, signal.SIGSTOP)
        try:
            # A process that is put into the container has the same quota, by the monitor alone.
            more = held.execute("rawalloc", "0", "1024", "0.05")
            assert (more.code, "failed=0 passed=0" in more.out) == (0, True), more.text
        finally:
            os.kill(agent.process.pid, signal.SIGCONT)
        known = agent.tenant(held.name)
        assert known is not None
        assert leftovers.until(lambda: agent.status().tenants[0].gpus[0].memory == 2 * GIB, seconds=30)
        code, said = held.end()
        assert (code, "failed=0 passed=0" in said) == (0, True), said
    assert empty(agent)


@pytest.mark.parametrize("computes", [False, True], ids=["it made no call", "it has memory"])
def test_an_idle_container_costs_little_memory(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, computes: bool
) -> None:
    """Of monitor, supervisor and watchdog: what no other process shares, in KiB. 1,300 after the first calls before."""
    idle = Container(tree, ["sleep", "60"], gpu_env("all"), annotations={"nvc.share": "mem=1Gi"})
    with Held(behind(bed, runc, agent), tenant(tree, "1", "1024", "0", share="mem=1Gi") if computes else idle) as held:
        assert not computes or held.line() == "held"
        assert leftovers.until(lambda: agent.tenant(held.name) is not None, seconds=30)
        private = 0
        for pid in (*pids(agent), watchdog(pids(agent)[0])):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Private_Dirty:"):
                    private += int(line.split()[1])
        assert 0 < private <= (600 if computes else 400)


def test_the_agent_holds_no_descriptor_of_a_container(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    with Held(behind(bed, runc, agent), tenant(tree, "1", "1024", "0", share="mem=1Gi")) as held:
        assert held.line() == "held"
        assert agent.process is not None
        process = agent.process.pid

        def held_by_agent() -> list[str]:
            return [name for name in names(process) if "seccomp" in name or "nvidia" in name or "pidfd" in name]

        # It looks at a listener's message, and has let go of the copy a moment later.
        assert leftovers.until(lambda: held_by_agent() == [], seconds=30), held_by_agent()
        monitor, _ = pids(agent)
        assert [name for name in names(monitor) if "seccomp" in name]
    assert empty(agent)
