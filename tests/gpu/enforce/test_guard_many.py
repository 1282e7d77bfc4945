"""Very many guarded processes on one GPU: what asking about their usage takes, and what a neighbour waits for.

A context takes some 515 MiB under the guard: as many of the processes have one as the GPU has room for, the others are
clients of the resource manager with a piece of memory, which the driver is asked about in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.gpu.enforce.conftest import Starts
from tests.support.attacks import SOURCES
from tests.support.bed import Bed
from tests.support.gpuhost import smi
from tests.support.guarded import GuardedTenant, Guarding
from tests.support.share_table import Table
from tests.support.spoken import Silent, Spoken
from tests.support.tenants import build_static
from tests.support.used import computed

pytestmark = [pytest.mark.gpu, pytest.mark.system]

GIB = 1 << 30
#: Processes at first and in all; of a tenant; that start at a time.
FEW, MANY, OF_TENANT, AT_ONCE = 3, 200, 10, 8
#: MiB that stay free: a context more, and the neighbour's pieces.
LEFT_MIB = 4096
#: Allocations of 4 MiB of a run, and runs of which the middle one counts.
ALLOCATIONS, RUNS = 2000, 3
#: Seconds over which the prober is watched.
WATCHED_S = 10.0
ASKING, LATENCY = 0.02, 1.5


def free_mib() -> int:
    return int(smi("--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", "0").split()[0])


@pytest.mark.timeout(180)
def test_what_two_hundred_processes_cost(
    calm: Guarding, start: Starts, bed: Bed, environment: dict[str, str], table: Table
) -> None:
    attack = build_static(SOURCES[0], bed.directory("attack") / "attack", *map(str, SOURCES[1:]))
    neighbour = calm.tenant(memory=GIB)

    def p99() -> float:
        """Nanoseconds."""
        found = []
        for _ in range(RUNS):
            with Spoken(neighbour.wrap([str(attack), "churn", str(ALLOCATIONS), "4"]), environment) as program:
                said = dict(program.line().split("=") for _ in range(4))
            assert said["bad"] == "0"
            found.append(int(said["p99"]))
        return sorted(found)[RUNS // 2]

    def with_context(tenant: GuardedTenant) -> bool:
        """False: the GPU has no room for one more: of memory, or of channels."""
        program = start("context", tenant=tenant)
        try:
            return int(program.ask("keep")) > 0
        except Silent as error:
            assert "CUDA_ERROR_OUT_OF_MEMORY" in str(error)
            return False

    def without(tenant: GuardedTenant) -> bool:
        program = Spoken(tenant.wrap([str(attack), "batch", "1"]), environment)
        lights.append(program)
        return program.line() == "bad=0"

    lights: list[Spoken] = []
    first = calm.tenant(memory=16 * GIB)
    assert all(with_context(first) for _ in range(FEW))
    few = p99()

    def more(count: int, begin: Callable[[GuardedTenant], bool]) -> int:
        """How many of them there are."""
        own = calm.tenant(memory=16 * GIB)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return sum(pool.map(begin, [own] * count))

    try:
        contexts, came = FEW, OF_TENANT
        # By the room that there is before each tenant's processes start.
        while came == OF_TENANT and contexts + OF_TENANT <= MANY and free_mib() > LEFT_MIB + OF_TENANT * 560:
            contexts += (came := more(OF_TENANT, with_context))
        while contexts + len(lights) < MANY:
            wanted = min(OF_TENANT, MANY - contexts - len(lights))
            assert more(wanted, without) == wanted
        many = p99()
        prober = calm.prober._process
        assert prober is not None and calm.problems == []
        begun, before = time.monotonic(), computed([prober.pid])
        time.sleep(WATCHED_S)
        part = (computed([prober.pid]) - before) / (time.monotonic() - begun)
    finally:
        for program in lights:
            program.kill()

    table.add("guarded processes, of them with a context", got=f"{contexts + len(lights)}, {contexts}")
    asking = table.add("prober's part of a processor", goal=f"<= {ASKING:.0%}", got=f"{part:.2%}", good=part <= ASKING)
    waiting = table.add(
        "p99 of a neighbour's allocation and freeing of 4 MiB",
        goal=f"<= {LATENCY}",
        got=f"{many / 1e3:.0f} µs",
        base=f"{few / 1e3:.0f} µs with {FEW}",
        ratio=f"{many / few:.2f}",
        good=many / few <= LATENCY,
    )
    assert asking and waiting
