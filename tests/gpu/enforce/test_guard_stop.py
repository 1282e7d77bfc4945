"""Tenants that end in every way leave no process, no channel and no charge."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import Starts
from tests.support import leftovers
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.gpumeasure import pids, used_mib
from tests.support.guarded import GuardedTenant, Guarding
from tests.support.guarded_containers import GuardedContainers
from tests.support.runtimes import OciRuntime
from tests.support.share_kinds import GIB, STILL
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system]

#: Seconds in which an end is an end.
GONE = 10.0
_TOTAL = "--query-gpu=memory.total --format=csv,noheader,nounits"


def _freeze(tenant: GuardedTenant) -> None:
    """Off, and not by the scheduler's plan: as it is when the guard hears nothing more of its scheduler."""
    tenant.pause(True)


def _cap(tenant: GuardedTenant) -> None:
    tenant.set(cap=100)


#: What happens to the tenant before its processes are killed, and the signal.
ENDS: dict[str, tuple[Callable[[GuardedTenant], None] | None, int]] = {
    "stopped with SIGTERM": (None, signal.SIGTERM),
    "killed": (None, signal.SIGKILL),
    "killed while paused": (_freeze, signal.SIGKILL),
    "stopped while paused": (_freeze, signal.SIGTERM),
    "killed under a cap of 10 %": (_cap, signal.SIGKILL),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_leaves_nothing(guarding: Guarding, start: Starts, table: Table, end: str) -> None:
    act, number = ENDS[end]
    tenant, neighbour = guarding.tenant(memory=8 * GIB), guarding.tenant(memory=8 * GIB)
    before = used_mib()
    programs = [start("burn", "plain", 0.65, tenant=tenant) for _ in range(2)]
    for program in programs:
        program.line()
        program.ask("rate 0.2")
    held = start("quota", "malloc", "fill", 4 * GIB, tenant=tenant)
    held.until("full")
    mine = {program.process.pid for program in (*programs, held)}
    seen = mine <= pids()
    if act is not None:
        act(tenant)
        time.sleep(0.2)
    began = time.monotonic()
    for pid in mine:
        os.kill(pid, number)
    ended = leftovers.until(lambda: all(one.process.poll() is not None for one in (*programs, held)), seconds=GONE)
    processes = time.monotonic() - began
    empty = tenant.empty(GONE)
    refunded = time.monotonic() - began
    settled = leftovers.until(lambda: used_mib() <= before + STILL and not pids() & mine, seconds=GONE)
    with start("burn", "plain", 0.65, tenant=neighbour) as other:
        other.line()
        rate = float(other.ask("rate 0.5"))

    good = seen and ended and empty and settled and rate > 0
    table.add(
        f"three processes of a tenant, {end}",
        goal=f"no process, channel or charge after {GONE:g} s; the GPU works",
        got=f"processes gone after {processes:.2f} s, refunded after {refunded:.2f} s, groups "
        f"{tenant.status().gpus[0].groups}, nvidia-smi {before} -> {used_mib()} MiB, {rate:.0f}/s afterwards",
        good=good,
    )
    assert good
    assert tenant.status().gpus[0].groups == 0


def test_a_tenant_killed_while_the_gpu_is_taken_from_it_by_hand(
    guarding: Guarding, start: Starts, table: Table
) -> None:
    """Frozen through the library, so that nothing thaws it for its end."""
    tenant = guarding.tenant(memory=8 * GIB)
    before = used_mib()
    program = start("burn", "plain", 0.65, tenant=tenant)
    program.line()
    program.ask("rate 0.2")
    guarding.guard.freeze(tenant.number, 0, True)
    began = time.monotonic()
    os.kill(program.process.pid, signal.SIGKILL)
    ended = leftovers.until(lambda: program.process.poll() is not None, seconds=GONE)
    empty = tenant.empty(GONE)
    seconds = time.monotonic() - began
    settled = leftovers.until(lambda: used_mib() <= before + STILL, seconds=GONE)

    good = ended and empty and settled
    table.add(
        "killed while frozen for ever",
        goal=f"nothing left after {GONE:g} s",
        got=f"ended: {ended}, empty: {empty} after {seconds:.2f} s, nvidia-smi {before} -> {used_mib()} MiB",
        good=good,
    )
    assert good


@pytest.fixture
def containers(bed: Bed, native: OciRuntime, programs: Path) -> Iterator[GuardedContainers]:
    """With an agent that runs."""
    with RunningAgent(bed, "") as agent:
        yield GuardedContainers(agent, native, [programs / "quota", programs / "burn"])


def test_a_container_has_its_memory_and_no_more(containers: GuardedContainers, table: Table) -> None:
    command = ["/bin/sh", "-c", f"nvidia-smi {_TOTAL} && quota malloc fill {8 * GIB} </dev/null"]

    result = containers.run(command, "mem=4Gi")

    first, *rows = result.out.splitlines() or [""]
    said = {name: int(value) for name, _, value in (row.rpartition(" ") for row in rows) if name}
    good = result.code == 0 and (first, said["total"], said["status"]) == ("4096", 4 * GIB, 2)
    table.add(
        f"{containers.runtime.name}, annotation mem=4Gi, guard: nvidia-smi, cuMemAlloc until refused",
        goal="4096 MiB, then CUDA_ERROR_OUT_OF_MEMORY",
        got=f"{first} MiB; {said.get('taken', 0) >> 20} MiB taken, status {said.get('status')}",
        good=good,
    )
    assert good, result.text + containers.agent.log.read_text()[-2000:]
    assert said["free_full"] < 2 << 20


@pytest.mark.parametrize("end", ["TERM", "KILL", "KILL while paused"])
def test_a_container_that_ends_leaves_nothing(containers: GuardedContainers, table: Table, end: str) -> None:
    before = used_mib()
    command = ["/bin/sh", "-c", "trap 'exit 3' TERM; sleep 100 | burn plain 0.65 & wait"]
    with containers.start(command, "mem=4Gi,cap=50%") as running:
        running.tenant()
        computing = leftovers.until(lambda: any(gpu.groups for gpu in running.tenant().gpus), seconds=20)
        charged = running.tenant().gpus[0].memory
        if "paused" in end:
            containers.agent.call("pause", container=running.name)
            time.sleep(0.2)
        began = time.monotonic()
        running.signal(end.split()[0])
        # The shell is the container's first process: with it everything in the container ends.
        ended = leftovers.until(lambda: running.process.poll() is not None, seconds=GONE)
        gone = leftovers.until(lambda: containers.agent.tenant(running.name) is None, seconds=GONE)
        seconds = time.monotonic() - began
        settled = leftovers.until(lambda: used_mib() <= before + STILL, seconds=GONE)

    good = computing and charged > 0 and ended and gone and settled
    table.add(
        f"{containers.runtime.name}: container, {end}",
        goal=f"no process, channel or charge after {GONE:g} s",
        got=f"charged {charged >> 20} MiB; ended: {ended}, the agent's tenant gone: {gone}, {seconds:.2f} s; "
        f"nvidia-smi {before} -> {used_mib()} MiB",
        good=good,
    )
    assert good, containers.agent.log.read_text()[-2000:]
