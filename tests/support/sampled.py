"""Progress of a burning program over time, from burn's ``samples``."""

from __future__ import annotations

import bisect

from tests.support.spoken import Spoken


class Samples:
    """(CLOCK_MONOTONIC ns, pieces of work done until then), in order."""

    def __init__(self, points: list[tuple[int, float]]) -> None:
        self.times, self.counts = [when for when, _ in points], [count for _, count in points]

    def at(self, moment: float) -> float:
        """Pieces done at a moment, between two samples in proportion. Raises ValueError outside of what was sampled."""
        if not self.times[0] <= moment <= self.times[-1]:
            raise ValueError("outside of the samples")
        after = max(1, bisect.bisect_left(self.times, moment))
        first, last = self.times[after - 1], self.times[after]
        part = (moment - first) / (last - first)
        return self.counts[after - 1] + part * (self.counts[after] - self.counts[after - 1])

    def between(self, first: float, last: float) -> float:
        """Pieces done from one moment to another."""
        return self.at(last) - self.at(first)

    def late(self, changed: int, window: int) -> float:
        """Milliseconds for which it went on as before a change: by its work in ``window`` ns after the change, and in
        as long before and after those."""
        before = self.between(changed - window, changed)
        during = self.between(changed, changed + window)
        after = self.between(changed + window, changed + 2 * window)
        if before == after:
            raise ValueError("nothing changed")
        return window / 1e6 * (during - after) / (before - after)


def collect(*programs: Spoken) -> list[Samples]:
    """The answers to a ``samples`` line that each was told. Raises Silent."""
    found = []
    for program in programs:
        points = []
        while (line := program.line()) != "end":
            _, when, count = line.split()
            points.append((int(when), float(count)))
        found.append(Samples(points))
    return found
