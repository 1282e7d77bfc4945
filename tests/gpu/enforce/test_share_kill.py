"""Processes killed at any moment leave nothing behind: not in the region, not on the GPU."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import Shares
from tests.support import leftovers, loose_share
from tests.support.bed import Bed
from tests.support.loose_share import LooseShare
from tests.support.share_table import Table, percentile

pytestmark = [pytest.mark.gpu, pytest.mark.system]

KILLS, AT_ONCE = 1000, 16
MIB, GIB = 1 << 20, 1 << 30
#: enum phase of victim.c.
PHASES = {0: "before main", 1: "in cuInit", 2: "in context", 3: "before alloc", 4: "allocating"}
#: Of the time until a victim allocates, how long it may live.
LIFE = 1.4


def _victim(programs: Path, environment: dict[str, str], phases: Path, index: int) -> subprocess.Popen[bytes]:
    command = [str(programs / "victim"), str(phases), str(index)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _time_to_allocate(programs: Path, environment: dict[str, str], phases: Path) -> float:
    """Seconds until the last of AT_ONCE victims allocates, when all start together."""
    start = time.monotonic()
    victims = [_victim(programs, environment, phases, index) for index in range(AT_ONCE)]
    try:
        arrived = leftovers.until(lambda: phases.read_bytes()[:AT_ONCE] == b"\4" * AT_ONCE, seconds=60)
        assert arrived, f"victims stand at {list(phases.read_bytes()[:AT_ONCE])}"
        return time.monotonic() - start
    finally:
        for victim in victims:
            victim.kill()
            victim.communicate()


def _kill_one(programs: Path, environment: dict[str, str], phases: Path, index: int, life: float) -> tuple[int, bytes]:
    """Start it, kill it after ``life`` seconds; wait status and stderr."""
    victim = _victim(programs, environment, phases, index)
    try:
        victim.wait(life)
    except subprocess.TimeoutExpired:
        victim.kill()
    _, errors = victim.communicate(timeout=60)
    return victim.returncode, errors


def _first_allocation(programs: Path, held: LooseShare, environment: dict[str, str]) -> float:
    """Milliseconds that a new process needs for CUDA and an allocation."""
    command = [str(programs / "first")]
    done = subprocess.run(command, env={**environment, **held.variables}, capture_output=True, check=True, timeout=60)
    return int(done.stdout.split()[0]) / 1e6


@pytest.mark.timeout(400)
def test_a_thousand_kills_leave_nothing(
    bed: Bed, share: Shares, programs: Path, table: Table, driver_usage: Callable[[], int]
) -> None:
    held = share(memory=16 * GIB)
    phases = bed.directory("kill") / "phases"
    phases.write_bytes(bytes(KILLS))
    environment = {**loose_share.without_ours(os.environ), **bed.env, **held.variables}
    before = driver_usage()
    first_before = sorted(_first_allocation(programs, held, environment) for _ in range(7))[3]
    whole = _time_to_allocate(programs, environment, phases)
    phases.write_bytes(bytes(KILLS))
    lives = random.Random(4)

    start = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = list(
            pool.map(
                lambda index: _kill_one(programs, environment, phases, index, lives.uniform(0, LIFE * whole)),
                range(KILLS),
            )
        )
    seconds = time.monotonic() - start

    reached = Counter(PHASES[phase] for phase in phases.read_bytes())
    settled = leftovers.until(lambda: driver_usage() <= before + 4, seconds=10)
    used, slots, real = held.used(), len(held.region().slots), driver_usage()
    first_after = sorted(_first_allocation(programs, held, environment) for _ in range(7))[3]
    killed = [code for code, _ in ends if code == -signal.SIGKILL]
    words = next((errors.decode(errors="replace") for code, errors in ends if code != -signal.SIGKILL), "")
    good = len(killed) == KILLS and (used, slots) == (0, 0) and settled
    moments = ", ".join(f"{count} {name}" for name, count in sorted(reached.items()))
    table.add(
        f"{KILLS} processes killed with SIGKILL, {AT_ONCE} at once, at random moments ({seconds:.0f} s)",
        goal="usage 0, slots 0, nvidia-smi as before",
        got=f"usage {used}, slots {slots}, nvidia-smi {before} -> {real} MiB; {moments}",
        good=good,
    )
    added = first_after - first_before
    table.add(
        "next start (cuInit, context, allocation)",
        goal="less than 50 ms more than before",
        got=f"{first_after:.0f} ms",
        base=f"{first_before:.0f} ms",
        good=added < 50,
    )
    assert good, words
    assert min(reached["in cuInit"] + reached["before main"], reached["allocating"]) >= KILLS // 20, reached
    assert added < 50


def test_the_killed_are_gone_before_the_next_allocation(bed: Bed, share: Shares, programs: Path, table: Table) -> None:
    """A process that had nearly everything is killed; at once another can have it."""
    held = share(memory=4 * GIB)
    environment = {**loose_share.without_ours(os.environ), **bed.env, **held.variables}
    waits = []
    for _ in range(5):
        command = [str(programs / "quota"), "malloc", "fill", str(8 * GIB)]
        holder = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        while holder.stdout.readline() != b"full\n":
            assert holder.poll() is None
        holder.kill()
        holder.communicate()
        start = time.monotonic()
        assert leftovers.until(lambda: held.used() == 0, seconds=5)
        waits.append((time.monotonic() - start) * 1000)
        done = subprocess.run(
            [str(programs / "quota"), "malloc", "exact"], env=environment, capture_output=True, text=True, timeout=60
        )
        assert "status_all 0" in done.stdout, done.stderr
    table.add(
        "killed with 4 GiB: until the region shows none",
        got=f"at most {percentile(waits, 1):.1f} ms after the process was reaped",
    )
