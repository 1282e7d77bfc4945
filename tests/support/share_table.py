"""What the measurements of shares found, as Markdown: one table a part."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HEADER = ("what", "goal", "got", "native or solo", "ratio", "met")


@dataclass(frozen=True)
class Line:
    """One row; good None: there is no goal."""

    what: str
    goal: str
    got: str
    base: str = ""
    ratio: str = ""
    good: bool | None = None

    def cells(self) -> Sequence[str]:
        """The columns of HEADER."""
        met = {None: "", True: "yes", False: "**no**"}[self.good]
        return (self.what, self.goal, self.got, self.base, self.ratio, met)


class Table:
    """Collects the rows of one part, and writes its file anew with each, so that a run cut short leaves what it had."""

    def __init__(self, part: str, machine: str, directory: Path) -> None:
        self.part, self.machine, self.path = part, machine, directory / f"{part}.md"
        self.lines: list[Line] = []

    def add(
        self, what: str, *, goal: str = "", got: str, base: str = "", ratio: str = "", good: bool | None = None
    ) -> bool | None:
        """Add a row; returns ``good``, for the assertion."""
        self.lines.append(Line(what, goal, got, base, ratio, good))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.markdown())
        return good

    def markdown(self) -> str:
        rows = [HEADER, ("---",) * len(HEADER), *(line.cells() for line in self.lines)]
        table = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
        return f"## {self.part}\n\n{self.machine}\n\n{table}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Smallest, median and largest, the median in bold."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{low:.{digits}f} / **{middle:.{digits}f}** / {high:.{digits}f}"


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least ``part`` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-part * len(ordered) // 1) - 1))]
