"""What a program's calls cost beside the same program alone, and how far two equal ones differ.

On a machine that others use as well, and where a process is faster or slower for all its life by where its memory lies,
two sets of measurements of the same thing differ by some hundredths. So every comparison has a measure of that in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.share_table import Table, spread
from tests.support.spoken import Spoken

MIB = 1 << 20
#: What -> line for cost.cu.
CALLS = {
    "alloc + free 4 MiB": f"alloc 150 {4 * MIB}",
    "alloc + free 4 KiB": "alloc 4000 4096",
    "empty launch": "launch 8000",
    "the call of an empty launch alone, the GPU's queue not full": "burst 60 200",
}
#: What -> line for cost.cu that is answered with instructions.
STEPS = {"alloc + free 4 KiB": "steps alloc", "empty launch": "steps launch"}
#: Processes of which the instructions are counted, and how far those of two that are alike may differ.
STEP_STARTS, STEP_NOISE = 5, 0.01
#: What may be asserted beside a goal where the two equal ones did not differ.
NOISE = 0.02


@dataclass
class Costs:
    """Numbers of one thing: under whatever is measured, and from one or two programs without it."""

    held: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)

    def take(self, programs: Sequence[Spoken], line: str, rounds: int) -> None:
        """Ask the held program, the free one and perhaps another free one, each once a round, in a changing order."""
        self.take_from([lambda program=program: float(program.ask(line)) for program in programs], rounds)  # type: ignore[misc]

    def take_from(self, sources: Sequence[Callable[[], float]], rounds: int) -> None:
        """The same, of anything that gives a number."""
        for place in _turns(len(sources), rounds):
            self.add_one(place, sources[place]())

    def add_one(self, place: int, number: float) -> None:
        """A number of the held one (place 0), the free one (1) or the other free one (2)."""
        (self.held, self.free, self.again)[place].append(number)

    @property
    def ratio(self) -> float:
        """Of the medians, against all that were free."""
        return statistics.median(self.held) / statistics.median([*self.free, *self.again])

    @property
    def equal(self) -> float:
        """Of the medians of the two free ones; 1 where there is one."""
        return statistics.median(self.again) / statistics.median(self.free) if self.again else 1.0

    @property
    def noise(self) -> float:
        """By how much a goal may be missed by chance."""
        return max(NOISE, abs(self.equal - 1))

    def misses(self, goal: float | None) -> bool:
        """Whether the ratio is more than ``goal`` by more than chance; None: there is no goal."""
        return goal is not None and self.ratio > goal + self.noise

    def add(
        self, table: Table, what: str, goal: float | None, unit: str, *, scale: float = 1, least: bool = False
    ) -> None:
        """A row. goal: the most that the ratio may be, or the least. scale: of the numbers, to the unit."""
        held, free = ([value * scale for value in values] for values in (self.held, [*self.free, *self.again]))
        beside = f"; two without: {self.equal:.3f}" if self.again else ""
        good = None if goal is None else self.ratio >= goal if least else self.ratio <= goal
        table.add(
            what,
            goal="" if goal is None else f"{'>=' if least else '<='} {goal:g}",
            got=f"{spread(held)} {unit}",
            base=f"{spread(free)} {unit}",
            ratio=f"{self.ratio:.3f} ({len(held)} each{beside})",
            good=good,
        )


def alternating(
    begin: Callable[[], Sequence[Spoken]], line: str, starts: int, rounds: int, *, warm: bool
) -> list[list[float]]:
    """What each of the programs answers to a line, each once a round in a changing order; all of them, per program.

    begin: as below, of any number. warm: asked once before that. Raises Silent.
    """
    found: list[list[float]] = []
    for _ in range(starts):
        programs = begin()
        found = found or [[] for _ in programs]
        for program in programs if warm else ():
            program.ask(line)
        for place in _turns(len(programs), rounds):
            found[place].append(float(programs[place].ask(line).split()[0]))
        for program in programs:
            program.kill()
    return found


def calls(begin: Callable[[], Sequence[Spoken]], starts: int, rounds: int) -> dict[str, Costs]:
    """CALLS of cost.cu, in nanoseconds, by programs that are started anew ``starts`` times.

    begin: starts the held one, the free one and another free one; they are ended here. Raises Silent.
    """
    found = {what: Costs() for what in CALLS}
    for _ in range(starts):
        programs = begin()
        for program in programs:
            for line in CALLS.values():
                program.ask(line)
        for what, line in CALLS.items():
            found[what].take(programs, line, rounds)
        for program in programs:
            program.kill()
    return found


def steps(table: Table, begin: Callable[[], Sequence[Spoken]]) -> bool:
    """Whether calls that are not supervised execute as many instructions; rows. Raises Silent.

    begin: starts a supervised program and one that is not. Time differs from process to process by more than the goals,
    the number of instructions by half a percent: the CUDA library's tables lie at other addresses in each.
    """
    under: dict[str, list[int]] = {what: [] for what in STEPS}
    alone: dict[str, list[int]] = {what: [] for what in STEPS}
    for _ in range(STEP_STARTS):
        programs = begin()
        for what, line in STEPS.items():
            for program, counts in zip(programs, (under, alone), strict=True):
                program.ask(line)  # the first time is the dynamic linker's too
                counts[what].append(int(program.ask(line)))
        for program in programs:
            program.kill()
    same = True
    for what in STEPS:
        ratio = statistics.median(under[what]) / max(1.0, statistics.median(alone[what]))
        good = table.add(
            f"{what}: instructions of the calling thread, {STEP_STARTS} processes each",
            goal=f"the same within {STEP_NOISE:.0%}",
            got=", ".join(map(str, sorted(under[what]))),
            base=", ".join(map(str, sorted(alone[what]))),
            ratio=f"{ratio:.4f}",
            good=abs(ratio - 1) <= STEP_NOISE,
        )
        same = same and bool(good)
    return same


def contexts(begin: Callable[[], Sequence[Spoken]], starts: int, rounds: int) -> tuple[Costs, Costs, Costs]:
    """What contexts cost, by context.c, in nanoseconds; begin: as above.

    A program's first one with cuInit, another one made, and another one made and given back.
    """
    first, made, whole = Costs(), Costs(), Costs()
    for start in range(starts):
        programs = begin()
        for place in [*range(start % len(programs), len(programs)), *range(start % len(programs))]:
            first.add_one(place, float(programs[place].ask("first")))
        for place in _turns(len(programs), rounds):
            of_making, of_both = map(float, programs[place].ask("context 2").split())
            made.add_one(place, of_making)
            whole.add_one(place, of_both)
        for program in programs:
            program.kill()
    return first, made, whole


def _turns(count: int, rounds: int) -> Iterator[int]:
    """Each of so many once a round, in a changing order."""
    places = list(range(count))
    for index in range(rounds):
        turned = places[index % count :] + places[: index % count]
        yield from turned if index // count % 2 else turned[::-1]
