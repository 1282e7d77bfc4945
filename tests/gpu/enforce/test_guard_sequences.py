"""Sequences of hostile calls against the real driver, behind the filter, with a supervisor for each of two tenants.

First those of tests/native/sequences, each of which was a way round a share once; then random ones, as many as there is
time for. ``NVC_PLAYED_SEQUENCES`` and ``NVC_SEQUENCES_SEED`` set how many and which; ``NVC_PLAYED_SECONDS`` how long.
Without managed memory, which the player only simulates. The same sequences without a guard say how long a neighbour
waits for the driver itself. The statuses of the simulated manager are compared with the driver's at the end.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.attacks import SOURCES
from tests.support.bed import Bed
from tests.support.gpu_usage import GpuUsage
from tests.support.gpumeasure import first_gpu, gpus
from tests.support.guarded import Guarding
from tests.support.native import CHECKOUT
from tests.support.played import SAMPLED, TwoTenants, play_unguarded, recorded, sequences
from tests.support.share_kinds import GIB, MIB, STILL
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

COUNT = int(os.environ.get("NVC_PLAYED_SEQUENCES", "200"))
SEED = int(os.environ.get("NVC_SEQUENCES_SEED", "1"))
#: Of the random ones, and of those that are recorded.
SECONDS, RECORDED_SECONDS = float(os.environ.get("NVC_PLAYED_SECONDS", "45")), 15.0
#: The player does not make managed memory resident; a second UVM_INITIALIZE has not been tried on a driver.
WITHOUT = "managed,unmanaged,uvm"
#: Bytes that the driver takes for clients, devices and address spaces of six processes, which no share counts.
BESIDE = 64 * MIB
MISSED = 2 * SAMPLED + BESIDE
#: How many times as long the neighbour's slowest allocation may take as beside the same sequences without a guard.
SLOWER = 3.0
NEIGHBOUR_ALONE = 2.0
STATUSES = 100


@pytest.fixture
def usage() -> Iterator[GpuUsage]:
    with GpuUsage(first_gpu()[0]) as looking:
        yield looking


@pytest.fixture
def churn(bed: Bed, environment: dict[str, str], guarding: Guarding) -> Callable[[bool], Spoken]:
    """Starts a neighbour that allocates and frees 4 MiB until it is told a line; then it says how long that took.

    Its argument: whether it is guarded.
    """
    program = bed.directory("churn") / "attack"
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-static", "-pthread", "-o", str(program)]
    subprocess.run([*command, *map(str, SOURCES)], check=True)
    tenant = guarding.tenant(memory=GIB)
    words = [str(program), "churn", "0"]
    return lambda is_guarded: Spoken(tenant.wrap(words) if is_guarded else words, environment)


def _slowest(neighbour: Spoken) -> tuple[int, int]:
    """Of one that is told to end: how many calls failed, and the slowest allocation, in ns."""
    neighbour.tell("")
    said = dict(neighbour.line().split("=") for _ in range(3))
    neighbour.kill()
    return int(said["bad"]), int(said["slowest"])


@pytest.mark.timeout(280)
def test_hostile_sequences_hold_nothing_uncharged(
    bed: Bed,
    guarding: Guarding,
    environment: dict[str, str],
    usage: GpuUsage,
    churn: Callable[[bool], Spoken],
    table: Table,
) -> None:
    alone = churn(True)
    time.sleep(NEIGHBOUR_ALONE)
    _, slowest_alone = _slowest(alone)
    neighbour = churn(True)
    tenants = [guarding.tenant(memory=GIB) for _ in range(2)]
    environment = {**environment, "PLAYED_NODE": f"/dev/nvidia{gpus()[0].minor}"}
    play = TwoTenants(lambda: bed.directory("sequence"), tenants, environment, usage, MISSED)
    begun = time.monotonic()
    old, new = recorded(WITHOUT), sequences(COUNT, SEED, WITHOUT)
    known = play.play_all(old, RECORDED_SECONDS)
    random = play.play_all(new, SECONDS)
    took = time.monotonic() - begun
    bad, slowest = _slowest(neighbour)
    unguarded = churn(False)
    # Its slowest call is of as long a time as the guarded one's.
    free = play_unguarded(lambda: bed.directory("unguarded"), [*old[:known], *new[:random]], play.environment, took)
    _, slowest_free = _slowest(unguarded)
    settled = leftovers.until(lambda: usage() <= play.before + STILL * MIB, seconds=5)
    refused = [tenant.refused() for tenant in play.tenants]

    table.add(
        f"{known} sequences that are recorded, {random} random ones of {COUNT} from seed {SEED} on",
        goal="nothing uncharged but what is sampled; all is given back",
        got=f"{play.counts.calls} calls, {play.counts.raced} raced, {play.counts.pieces} pieces of memory "
        f"(others by status: {dict(play.counts.refused)}), in {took:.0f} s; "
        f"at most {play.most // MIB} MiB uncharged; wrong: {'; '.join(play.wrong) or 'none'}; "
        f"given back: {settled}; counted: {refused}",
        base=f"without a guard {free.pieces} pieces ({dict(free.refused)})",
        good=not play.wrong and settled and random > 0 and play.counts.pieces > random,
    )
    table.add(
        "a neighbour's slowest allocation of 4 MiB meanwhile",
        goal=f"< {SLOWER:g} x without any guard, none refused",
        got=f"{slowest / 1e6:.1f} ms, {bad} failed; {slowest_alone / 1e6:.1f} ms with nothing beside it",
        base=f"{slowest_free / 1e6:.1f} ms",
        ratio=f"{slowest / slowest_free:.2f} x",
        good=bad == 0 and slowest < SLOWER * slowest_free,
    )
    assert play.wrong == []
    assert settled
    assert bad == 0
    assert random > 0
    assert play.counts.pieces > random, "the sequences had no memory: they say nothing"


@pytest.mark.timeout(150)
def test_the_simulated_manager_answers_as_the_driver_does(tmp_path: Path, table: Table) -> None:
    """Differences are written down, to be looked at: the simulation is corrected by them."""
    done = subprocess.run(
        [CHECKOUT / "tests/gpu/driver_statuses.sh", str(STATUSES)],
        env={**os.environ, "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=140,
    )
    found = re.search(r"(\d+) calls compared", done.stdout)
    table.add(
        f"{STATUSES} sequences of 40 harmless calls: statuses of the simulated manager and the driver",
        goal="the same",
        got=" ".join(done.stdout.splitlines()[-1:]) or done.stderr[-200:],
        good=done.returncode == 0,
    )
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
