"""Rows of `make bench-gpu`: a service beside a neighbour, in one way of sharing; as a page with a plot. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.share_table import percentile

HEADER = (
    "way of sharing",
    "p50",
    "p95",
    "p99",
    "neighbour kept",
    "requests within 2 x of p99 alone",
    "own time",
    "requests",
)
#: What is judged, against alone: services of LONG_MS and more by factors, shorter ones by milliseconds.
LONG_MS, MOST_P50, MOST_P99, MORE_P50_MS, MORE_P99_MS, KEEPS = 4.0, 1.10, 1.15, 0.35, 0.6, 0.85
MOST_P99_BESIDE = {"kernels of 100 ms": 1.25}
_BAR, _LINE, _LEFT, _SCALE, _MOST = 14, 44, 330, 90, 6.0


class Request(NamedTuple):
    """Milliseconds from its arrival and from its begin to its end; behind: it waited for the one before it."""

    took: float
    own: float
    behind: bool


@dataclass
class Row:
    """alone, beside: requests of windows that took turns. rates: of the neighbour in those beside.

    busy: the part of the time that the service keeps the GPU busy alone. most: the neighbour's rate alone. clock: the
    part of the GPU's highest SM clock that it ran at meanwhile.
    """

    service: str
    neighbour: str
    way: str
    load: float
    busy: float
    most: float
    clock: float
    alone: list[Request] = field(default_factory=list)
    beside: list[Request] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def of(self, part: float) -> tuple[float, float]:
        """A percentile beside the neighbour, and alone."""
        return percentile([one.took for one in self.beside], part), percentile([one.took for one in self.alone], part)

    def own(self, behind: bool) -> tuple[float, float]:
        """Mean of the own times of these, beside the neighbour, and alone; 0: there are none."""
        return mean([one.own for one in self.beside if one.behind == behind]), mean(
            [one.own for one in self.alone if one.behind == behind]
        )

    @property
    def kept(self) -> float:
        """Of the neighbour's rate alone."""
        return sum(self.rates) / len(self.rates) / self.most

    @property
    def within(self) -> float:
        """The part of requests that took at most twice the p99 alone."""
        most = 2 * self.of(0.99)[1]
        return sum(one.took <= most for one in self.beside) / len(self.beside)

    @property
    def is_met(self) -> bool:
        """By the goals of a service with a latency."""
        (p50, alone50), (p99, alone99) = self.of(0.5), self.of(0.99)
        if alone50 >= LONG_MS:
            fast = p50 <= MOST_P50 * alone50 and p99 <= MOST_P99_BESIDE.get(self.neighbour, MOST_P99) * alone99
        else:
            fast = p50 <= alone50 + MORE_P50_MS and p99 <= alone99 + MORE_P99_MS
        return fast and self.kept >= KEEPS * (1 - self.busy)

    def cells(self) -> tuple[str, ...]:
        def against(part: float) -> str:
            is_, was = self.of(part)
            return f"{is_:.2f} ms, {is_ / was:.2f} x, {is_ - was:+.2f}"

        counts = f"{len(self.beside)} beside, {len(self.alone)} alone"
        own = ", ".join(
            f"{name} {is_:.2f} ms, {is_ - was:+.2f}"
            for name, (is_, was) in (("first", self.own(False)), ("behind another", self.own(True)))
        )
        return (self.way, *map(against, (0.5, 0.95, 0.99)), f"{self.kept:.3f}", f"{self.within:.1%}", own, counts)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def page(rows: Sequence[Row], machine: str, plot: str, left_out: Sequence[str] = ()) -> str:
    """One page in Markdown. plot: the name of the picture's file. left_out: rows for which there was no time."""
    text = f"# Services beside neighbours\n\n{machine}\n\n![p50 and p99 against alone]({plot})\n"
    for service, neighbour in dict.fromkeys((row.service, row.neighbour) for row in rows):
        those = [row for row in rows if (row.service, row.neighbour) == (service, neighbour)]
        first = those[0]
        text += (
            f"\n## {service} beside {neighbour}, {first.load:.0%} load\n\nAlone p50 {first.of(0.5)[1]:.2f}, "
            f"p99 {first.of(0.99)[1]:.2f} ms, and the GPU busy for {first.busy:.2f} of the time; "
            f"the neighbour alone {first.most:.2f}/s, at {first.clock:.0%} of the highest SM clock.\n\n"
            f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}\n"
        )
        text += "".join(f"| {' | '.join(row.cells())} |\n" for row in those)
        text += twice(those)
    if left_out:
        text += "\nNot run, for there was no time: " + "; ".join(left_out) + ".\n"
    return text


def twice(rows: Sequence[Row]) -> str:
    """How far the p99 of rows of one pair that were measured twice are apart, or nothing."""
    found = []
    for way in dict.fromkeys(row.way for row in rows):
        p99 = [row.of(0.99)[0] for row in rows if row.way == way]
        if len(p99) == 2:
            found.append(f"{way} {100 * (max(p99) / min(p99) - 1):.1f} %")
    return f"\nMeasured twice, the two p99 apart: {'; '.join(found)}.\n" if found else ""


def picture(rows: Sequence[Row]) -> str:
    """SVG: p50 (dark) and p99 (light) of each row against alone, cut at _MOST times."""
    lines = []
    for place, row in enumerate(rows):
        top = 10 + place * _LINE
        name = f"{row.service} beside {row.neighbour}: {row.way}"
        lines.append(f'<text x="{_LEFT - 6}" y="{top + _BAR + 5}" text-anchor="end">{name}</text>')
        for index, (part, color) in enumerate(((0.5, "#1f4e79"), (0.99, "#8fb4d9"))):
            is_, was = row.of(part)
            ratio, y = is_ / was, top + index * _BAR
            width = round(_SCALE * min(ratio, _MOST))
            lines.append(f'<rect x="{_LEFT}" y="{y}" width="{width}" height="{_BAR - 2}" fill="{color}"/>')
            lines.append(f'<text x="{_LEFT + width + 4}" y="{y + _BAR - 3}">{ratio:.2f} x</text>')
    height, one = 20 + _LINE * len(rows), _LEFT + _SCALE
    lines.append(f'<line x1="{one}" y1="0" x2="{one}" y2="{height}" stroke="#888" stroke-dasharray="3 3"/>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + round(_SCALE * _MOST) + 80}" height="{height}"'
    return f'{head} font-family="sans-serif" font-size="12">\n' + "\n".join(lines) + "\n</svg>\n"
