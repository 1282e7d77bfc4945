"""What a hostile tenant may try (tests/system/attacks) against the real driver, with a neighbour measured beside it.

An attack is a static C program that judges itself: exit status 0 when everything that it tried was refused or had no
effect, and words about it on its standard output.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import loose_share
from tests.support.bed import Bed
from tests.support.gpumeasure import first_gpu, nodes, used_mib
from tests.support.guarded import Guarding
from tests.support.native import CHECKOUT
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

ATTACKS = sorted((CHECKOUT / "tests/system/attacks").glob("*.c"))
MIB, GIB = 1 << 20, 1 << 30
#: Seconds that an attack goes on, again and again, and that one run may take.
WINDOW, LIMIT = 1.5, 20.0
ALLOCATE = f"alloc 40 {4 * MIB}"
LOST, LATENCY = 2.0, 3.0
STILL = 4


class Neighbour:
    """A tenant that computes and allocates, and what it does while nobody attacks."""

    def __init__(self, guarding: Guarding, programs: Path, environment: dict[str, str]) -> None:
        self.guarding, self.environment = guarding, environment
        tenant = guarding.tenant(memory=16 * GIB)
        self.burn = Spoken(tenant.wrap([str(programs / "burn"), "plain", "0.65"]), environment)
        self.cost = Spoken(tenant.wrap([str(programs / "cost")]), environment)
        self.burn.line()
        self.measure(0.3)
        self.rate, self.latency = self.measure(WINDOW)

    def measure(self, seconds: float) -> tuple[float, float]:
        """Pieces of work a second, and the median of what an allocation costs in ns, over so many seconds."""
        self.burn.tell(f"rate {seconds}")
        until, costs = time.monotonic() + seconds, list[float]()
        while not costs or time.monotonic() < until:
            costs.append(float(self.cost.ask(ALLOCATE)))
        return float(self.burn.line()), statistics.median(costs)

    def kill(self) -> None:
        self.burn.kill()
        self.cost.kill()


@pytest.fixture(scope="module")
def neighbour(whole_bed: Bed, launcher: Path, programs: Path) -> Iterator[Neighbour]:
    """One for all attacks; each attacker is a tenant of its own."""
    uuid, driver = first_gpu()
    environment = {**loose_share.without_ours(os.environ), **whole_bed.env}
    with Guarding(whole_bed.directory("guard"), uuid, nodes(), driver, launcher) as guarding:
        made = Neighbour(guarding, programs, environment)
        try:
            yield made
        finally:
            made.kill()


@pytest.fixture(scope="module")
def attacks(whole_bed: Bed) -> Path:
    """The directory with the compiled programs."""
    target = whole_bed.directory("attacks")
    for source in ATTACKS:
        command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-static", "-pthread", f"-I{source.parent}"]
        subprocess.run([*command, "-o", str(target / source.stem), str(source)], check=True)
    return target


@pytest.mark.parametrize("name", [source.stem for source in ATTACKS])
def test_an_attack_has_no_effect(neighbour: Neighbour, attacks: Path, table: Table, name: str) -> None:
    attacker = neighbour.guarding.tenant(memory=2 * GIB)
    before = used_mib()
    command = attacker.wrap([str(attacks / name)])
    runs, failed, words = 0, 0, ""
    running = subprocess.Popen(command, env=neighbour.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        neighbour.burn.tell(f"rate {WINDOW}")
        begin, costs = time.monotonic(), list[float]()
        while time.monotonic() < begin + WINDOW:
            costs.append(float(neighbour.cost.ask(ALLOCATE)))
            if running.poll() is not None:
                runs += 1
                said = running.communicate()[0].decode(errors="replace")
                failed, words = (failed, words) if running.returncode == 0 else (failed + 1, said)
                running = subprocess.Popen(
                    command, env=neighbour.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
        rate, latency = float(neighbour.burn.line()), statistics.median(costs)
        said = running.communicate(timeout=LIMIT)[0].decode(errors="replace")
        if running.returncode != 0:
            failed, words = failed + 1, said
    finally:
        running.kill()
        running.wait()
    empty = attacker.empty()
    left = used_mib() - before

    lost, slower = 100 * (1 - rate / neighbour.rate), latency / neighbour.latency
    good = failed == 0 and lost <= LOST and slower < LATENCY and empty and left <= STILL
    counted = ", ".join(f"{word} {count}" for word, count in sorted(attacker.refused().items()))
    table.add(
        name,
        goal=f"refused; neighbour loses <= {LOST:g} points, its allocations < {LATENCY:g} x; nothing stays",
        got=f"{runs + 1} runs, {failed} had an effect; counted: {counted or 'nothing'}; "
        f"left: {left} MiB, refunded: {empty}",
        base=f"{neighbour.rate:.0f}/s, {neighbour.latency / 1000:.0f} µs",
        ratio=f"-{lost:.2f} points, {slower:.2f} x",
        good=good,
    )
    assert good, words[-3000:]
