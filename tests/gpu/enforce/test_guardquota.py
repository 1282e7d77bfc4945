"""The memory of a guarded tenant: exact for every way to allocate, for many processes, and refunded after every end."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import Starts
from tests.support import leftovers
from tests.support.bed import Bed
from tests.support.gpumeasure import pids, used_mib
from tests.support.guarded import Guarding
from tests.support.share_kinds import GIB, MIB, OUT_OF_MEMORY, STILL, UNCOUNTED
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system]


def _settled(before: int) -> bool:
    return leftovers.until(lambda: used_mib() <= before + STILL, seconds=10)


def test_managed_memory_beyond_the_limit_stops_the_tenant(guarding: Guarding, start: Starts, table: Table) -> None:
    """The mapping cannot be refused: a tenant beyond the limit computes nothing until the memory is given back."""
    tenant = guarding.tenant(memory=4 * GIB)
    before = used_mib()

    with start("quota", "managed", "fill", 8 * GIB, tenant=tenant, seconds=30):
        stopped = leftovers.until(lambda: tenant.status().gpus[0].frozen, seconds=20)
        status = tenant.status().gpus[0]
        real = used_mib() - before
    empty, settled = tenant.empty(), _settled(before)

    good = stopped and real <= (5 * GIB) // MIB + UNCOUNTED and empty and settled
    table.add(
        "managed: taken beyond 4 GiB",
        goal="frozen at once, no more than a piece of 1 GiB beyond; nothing stays after its end",
        got=f"frozen: {stopped}, {status.managed // MIB} MiB mapped, {status.memory // MIB} charged, "
        f"nvidia-smi +{real} MiB; refunded: {empty}",
        good=good,
    )
    assert good


@pytest.mark.parametrize("kind", ["malloc", "create"])
def test_all_that_is_free_can_be_had_and_a_granule_more_cannot(
    guarding: Guarding, start: Starts, table: Table, kind: str
) -> None:
    tenant = guarding.tenant(memory=10 * GIB)
    with start("quota", kind, "exact", tenant=tenant) as program:
        said = program.until("done")

    good = (said["status_all"], said["status_more"], said["status_again"]) == (0, OUT_OF_MEMORY, 0)
    table.add(
        f"{kind}: all that is free in one piece, then 2 MiB more",
        goal="granted, refused",
        got=f"{said['asked'] / MIB:.0f} MiB: {said['status_all']}, 2 MiB more: {said['status_more']}",
        good=good,
    )
    assert good
    assert said["free_full"] < 2 * MIB
    assert said["free_end"] == said["free_start"]
    assert tenant.empty()


@pytest.mark.parametrize(
    ("kind", "count", "size"),
    [
        ("malloc", 3000, 4 * MIB),
        ("create", 3000, 2 * MIB),
        ("async", 3000, 4 * MIB),
        ("array", 3000, 4 * MIB),
        ("managed", 1000, 4 * MIB),
        ("graph", 300, 32 * MIB),
    ],
)
def test_thousands_of_loops_do_not_drift(
    guarding: Guarding, start: Starts, table: Table, kind: str, count: int, size: int
) -> None:
    tenant = guarding.tenant(memory=2 * GIB)
    with start("quota", kind, "loop", count, size, tenant=tenant) as program:
        said = program.until("done")
        # Nothing tells of an unmapping: what went is seen within a second.
        last = said["free_start"] if kind == "managed" else said["free_end"]
        exact = leftovers.until(lambda: tenant.used() == said["total"] - last, seconds=3)

    drift = said["free_start"] - said["free_end"]
    table.add(
        f"{kind}: {count} times {size >> 10} KiB taken and given back",
        goal="free as before" + (", within a second" if kind == "managed" else ""),
        got=f"{drift} bytes less, {said['nanoseconds'] / 1000:.1f} µs each; the ledger is right: {exact}",
        good=exact and (drift == 0 or kind == "managed"),
    )
    assert exact
    assert drift == 0 or kind == "managed"
    assert tenant.empty()


def test_eight_processes_race_to_the_limit(guarding: Guarding, start: Starts, table: Table) -> None:
    limit, piece, count = 12 * GIB, 64 * MIB, 8
    tenant = guarding.tenant(memory=limit)
    before = used_mib()

    with start("race", count, piece, 3, tenant=tenant, seconds=120) as program:
        full = program.until("full")
        used, real = tenant.used(), used_mib() - before
        program.tell("")
        said = program.until_end()
    empty, settled = tenant.empty(), _settled(before)

    room = full["free_start"]
    good = used <= limit and full["free_full"] < piece and said["most"] <= room and empty and settled
    table.add(
        f"{count} processes race for pieces of {piece >> 20} MiB, then take and give for 3 s",
        goal="never above the limit, no refusal below it; nothing stays",
        got=f"{full['free_full'] / MIB:.0f} MiB left, most {said['most'] / MIB:.0f} of {room / MIB:.0f} MiB, "
        f"{said['grants']} grants, {said['refusals']} refusals; nvidia-smi +{real} MiB; refunded: {empty}",
        good=good,
    )
    assert good
    assert said["others"] == 0
    assert real <= limit // MIB + count * UNCOUNTED


@pytest.mark.timeout(200)
def test_the_killed_leave_nothing(
    guarding: Guarding, programs: Path, bed: Bed, environment: dict[str, str], table: Table
) -> None:
    kills, at_once = 96, 8
    tenant = guarding.tenant(memory=16 * GIB)
    place = bed.directory("kill")
    phases = place / "phases"
    phases.write_bytes(bytes(kills))
    lives = random.Random(5)
    before, mine = used_mib(), set[int]()

    def begin(index: int) -> subprocess.Popen[bytes]:
        command = tenant.wrap([str(programs / "victim"), str(phases), str(index)])
        with (place / str(index)).open("wb") as output:
            victim = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        mine.add(victim.pid)
        return victim

    def time_to_allocate() -> float:
        began = time.monotonic()
        victims = [begin(index) for index in range(at_once)]
        try:
            assert leftovers.until(lambda: phases.read_bytes().count(4) == at_once, seconds=60)
            return time.monotonic() - began
        finally:
            for victim in victims:
                victim.kill()
                victim.wait()

    whole = time_to_allocate()
    phases.write_bytes(bytes(kills))
    spans = [lives.uniform(0, 1.4 * whole) for _ in range(kills)]

    def kill_one(index: int) -> int:
        victim = begin(index)
        try:
            return victim.wait(spans[index])
        except subprocess.TimeoutExpired:
            victim.kill()
            return victim.wait(60)

    over = threading.Event()

    def most_charged() -> tuple[int, int]:
        """Bytes, and the processes that the guard knew of then."""
        most = (0, 0)
        while not over.wait(0.02):
            status = tenant.status()
            most = max(most, (status.gpus[0].memory, status.processes))
        return most

    with ThreadPoolExecutor(1) as beside, ThreadPoolExecutor(at_once) as pool:
        watching = beside.submit(most_charged)
        try:
            ends = list(pool.map(kill_one, range(kills)))
        finally:
            over.set()
        most, known = watching.result(60)
    empty, settled = tenant.empty(), _settled(before)
    left = pids() & mine

    allocating = phases.read_bytes().count(4)
    by_themselves = [
        (end, (place / str(index)).read_bytes()[-200:]) for index, end in enumerate(ends) if end != -signal.SIGKILL
    ]
    good = not by_themselves and empty and settled and not left
    table.add(
        f"{kills} processes killed with SIGKILL, {at_once} at once, at random moments ({allocating} allocating)",
        goal="usage 0, no process, nvidia-smi as before",
        got=f"usage {tenant.used()}, processes {tenant.status().processes}, nvidia-smi {before} -> {used_mib()} MiB; "
        f"charged at most {most // MIB} MiB, with {known} processes; "
        f"ended by themselves: {by_themselves or 'none'}; refused: {tenant.refused()}",
        good=good,
    )
    assert good, by_themselves
    assert allocating >= kills // 8


def test_a_limit_is_changed_while_the_program_runs(guarding: Guarding, start: Starts, table: Table) -> None:
    tenant = guarding.tenant(memory=4 * GIB)
    with start("quota", "malloc", "fill", 8 * GIB, tenant=tenant) as program:
        program.until("full")
        tenant.set(memory=6 * GIB)
        with start("quota", "malloc", "fill", 8 * GIB, tenant=tenant) as second:
            more = second.until("full")
            tenant.set(memory=2 * GIB)
            second.tell("")
            less = second.until("done")

    good = more["total"] == 6 * GIB and more["taken"] > GIB and less["free_end"] == 0
    table.add(
        "limit 4 GiB, full; raised to 6 GiB, full; lowered to 2 GiB with 6 GiB used",
        goal="more at once; then nothing more, free 0, nothing breaks",
        got=f"{more['taken'] / MIB:.0f} MiB more; free {less['free_end']}",
        good=good,
    )
    assert good
    assert less["status_again"] == OUT_OF_MEMORY
    assert tenant.empty()
