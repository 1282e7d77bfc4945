"""What a hostile tenant may try (tests/system/attacks) against the real driver, with a neighbour measured beside it.

An attack is a word for the static program that tests/system/test_guard_attacks.py runs on the simulated machine; it
says what it was answered, and tests/support/attacks.py has the answers that it must get from a real driver, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import leftovers, loose_share
from tests.support.attacks import ATTACKS, FLOODS, HOLDS, LATE, OPEN, SOURCES, Answers
from tests.support.bed import Bed
from tests.support.gpumeasure import first_gpu, nodes, used_mib
from tests.support.guarded import Guarding
from tests.support.share_kinds import GIB, MIB, STILL
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

#: Of the attacker: pieces are of 1 GiB.
QUOTA = 10 << 30
#: Seconds that an attack goes on, again and again, and that one run may take.
WINDOW, LIMIT = 1.0, 10.0
#: How long the neighbour is measured before each.
BEFORE = 0.5
ALLOCATE = f"alloc 40 {4 * MIB}"
#: Points that the neighbour may lose, and how many times as long its allocations may take: beside those that make calls
#: without end, and beside those that start processes without end, fill them with memory and leave it to the driver to
#: give that back, which delays every process, also without us (native/guard/fair.c bounds it).
LOST, LATENCY, LATENCY_BESIDE_STARTS = 2.0, 3.0, 4.0

#: Where page tables are made for: half a GiB each, whose tables take 1 MiB.
PLACES = 512


class Neighbour:
    """A tenant that computes and allocates, and what it does without an attack."""

    def __init__(self, guarding: Guarding, programs: Path, environment: dict[str, str]) -> None:
        self.guarding, self.environment = guarding, environment
        self.tenant = tenant = guarding.tenant(memory=16 * GIB)
        self.burn = Spoken(tenant.wrap([str(programs / "burn"), "plain", "0.65"]), environment)
        self.cost = Spoken(tenant.wrap([str(programs / "cost")]), environment)
        self.burn.line()
        self.measure(0.5)

    def victim(self, attack: Path) -> tuple[Spoken, list[str]]:
        """A process of the neighbour's that holds 2 GiB; its client and memory as words for ``foreign``."""
        program = Spoken(self.tenant.wrap([str(attack), "victim"]), self.environment)
        said = dict(program.line().split("=") for _ in range(3))
        return program, [said["client"], said["handle"]]

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
def attack(whole_bed: Bed) -> Path:
    """The program."""
    target = whole_bed.directory("attacks") / "attack"
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-static", "-pthread", "-o", str(target)]
    subprocess.run([*command, *map(str, SOURCES)], check=True)
    return target


class Attacker:
    """Runs an attack, again when it has ended, and judges every run by its answers."""

    def __init__(
        self, command: list[str], environment: dict[str, str], expected: Answers, *, holds: bool, may_be_ended: bool
    ) -> None:
        """holds: whether it is to wait where it waits for a line, for ever. may_be_ended: as one that won a race is."""
        self.may_be_ended = may_be_ended
        self.command, self.environment, self.expected, self.holds = command, environment, expected, holds
        self.runs, self.wrong, self.last = 0, list[str](), ""
        self._begin()

    def _begin(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdin is not None
        if not self.holds:
            with contextlib.suppress(BrokenPipeError):  # some ask for nothing, and have ended
                self.process.stdin.write(b"\n" * 8)
                self.process.stdin.flush()

    def again(self) -> None:
        """If it has ended, check its result, and run it once more."""
        if self.process.poll() is not None:
            self.check()
            self._begin()

    def check(self) -> None:
        """Of a run that has ended, or (the races without an end) goes on until it is killed."""
        try:
            out = self.process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            out = self.process.communicate()[0]
        self.last = out.decode(errors="replace").replace("\n", " ")
        said = dict(word.split("=", 1) for word in self.last.split() if "=" in word)
        self.runs += 1
        if self.may_be_ended and self.process.returncode == -signal.SIGKILL:
            return
        if any(said.get(name) != str(value) for name, value in self.expected.items()):
            self.wrong.append(self.last)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.xfail(reason=OPEN[name])] if name in OPEN else []) for name in ATTACKS],
)
def test_an_attack_has_no_effect(neighbour: Neighbour, attack: Path, table: Table, name: str) -> None:
    words, expected, counted = ATTACKS[name]
    before, victim, used = used_mib(), None, 0
    if words[:1] == ("CLIENT",):
        victim, found = neighbour.victim(attack)
        words = tuple(found)
    tenant = neighbour.guarding.tenant(memory=QUOTA)
    rate_before, latency_before = neighbour.measure(BEFORE)
    attacker = Attacker(
        tenant.wrap([str(attack), name, *words]),
        neighbour.environment,
        expected,
        holds=name in HOLDS,
        may_be_ended=name in LATE,
    )
    try:
        neighbour.burn.tell(f"rate {WINDOW}")
        begin, costs = time.monotonic(), list[float]()
        while time.monotonic() < begin + WINDOW:
            costs.append(float(neighbour.cost.ask(ALLOCATE)))
            used = max(used, tenant.used())
            # What a process left behind is charged until the driver lets go of it.
            if tenant.used() == 0:
                attacker.again()
        rate, latency = float(neighbour.burn.line()), statistics.median(costs)
        if attacker.holds:
            attacker.process.kill()
        attacker.check()
    finally:
        attacker.process.kill()
        attacker.process.wait()
        if victim is not None:
            victim.kill()
    empty = tenant.empty()
    settled = leftovers.until(lambda: used_mib() <= before + STILL, seconds=5)

    lost, slower = 100 * (1 - rate / rate_before), latency / latency_before
    refused = tenant.refused()
    missing = counted - set(refused)
    most = LATENCY if name in FLOODS else LATENCY_BESIDE_STARTS
    good = not attacker.wrong and lost <= LOST and slower < most and empty and settled and not missing
    good = good and (used <= QUOTA or name in LATE)
    table.add(
        name,
        goal=f"refused, counted; neighbour loses <= {LOST:g} points, its allocations < {most:g} x; nothing stays",
        got=f"{attacker.runs} runs, {len(attacker.wrong)} wrong, last: {attacker.last[:120]}; counted: "
        f"{', '.join(f'{word} {count}' for word, count in sorted(refused.items())) or 'nothing'}; "
        f"at most {used >> 20} MiB; refunded: {empty and settled}",
        base=f"{rate_before:.0f}/s, {latency_before / 1000:.0f} µs",
        ratio=f"{-lost:+.2f} points, {slower:.2f} x",
        good=good,
    )
    assert good, (attacker.wrong[:3], missing)


@pytest.mark.timeout(60)
def test_page_tables_are_nobodys(neighbour: Neighbour, attack: Path, table: Table) -> None:
    """What docs/internals/guard.md, "Limits", says of them: its size, and that it ends with the process."""
    before, tenant = used_mib(), neighbour.guarding.tenant(memory=QUOTA)
    with Spoken(tenant.wrap([str(attack), "uvm-tables", str(PLACES)]), neighbour.environment) as attacker:
        begun, said = time.monotonic(), [attacker.line() for _ in range(2)]
        took, charged = time.monotonic() - begun, tenant.used() >> 20
        grown = used_mib() - before
    gone = leftovers.until(lambda: used_mib() <= before + STILL, seconds=5)
    table.add(
        f"page tables: 512 MiB of system memory mapped at {PLACES} places, in pages of 4 KiB",
        goal="gone with its process",
        got=f"{' '.join(said)}; nvidia-smi +{grown} MiB, charged {charged} MiB; {took:.1f} s; gone: {gone}",
        good=gone and said == ["memory=0", f"places={PLACES}"],
    )
    assert gone
    assert said == ["memory=0", f"places={PLACES}"]
