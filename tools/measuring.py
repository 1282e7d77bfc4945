"""Time and memory of short commands, compared in pairs."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class Failed(RuntimeError):
    """A command that is being measured failed; the text has its output."""


_METER = Path(__file__).with_name("meter.py")


def peak_mib(interpreter: str, command: Sequence[str]) -> float:
    """Largest resident set of a command's process, or of one it waited for. Raises Failed unless it exits 0."""
    meter = [interpreter, "-I", "-S", str(_METER), *command]
    done = subprocess.run(meter, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
    return int(done.stdout) / 1024


def spawn(command: Sequence[str], *, stdin: str = os.devnull, environment: Mapping[str, str] | None = None) -> float:
    """Seconds from spawning a command to reaping it, output discarded. Raises Failed unless it exits 0.

    environment: default ours.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, write_end, 2),
    ]
    start = time.perf_counter()
    pid = os.posix_spawnp(
        command[0], list(command), os.environ if environment is None else environment, file_actions=actions
    )
    os.close(write_end)
    _, status = os.waitpid(pid, 0)
    seconds = time.perf_counter() - start
    with os.fdopen(read_end, "rb") as pipe:
        os.set_blocking(pipe.fileno(), False)
        words = (pipe.read() or b"").decode(errors="replace")
    if status != 0:
        raise Failed(f"{' '.join(command)}: exit status {os.waitstatus_to_exitcode(status)}: {words.strip()}")
    return seconds


@dataclass
class Row:
    """One line of the table: a measured thing against a baseline of the same moment.

    unit: "ms" or "MiB". goal: the largest ratio that is good, None when there is none to hold here.
    """

    what: str
    baseline: str
    unit: str = "ms"
    goal: float | None = None
    pairs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return sorted(value / base for value, base in self.pairs)

    @property
    def good(self) -> bool | None:
        return None if self.goal is None else statistics.median(self.ratios) <= self.goal

    def as_data(self) -> dict[str, object]:
        """JSON-ready."""
        ratios = self.ratios
        return {
            "what": self.what,
            "baseline": self.baseline,
            "n": len(ratios),
            "ratio": {"min": ratios[0], "median": statistics.median(ratios), "max": ratios[-1]},
            "median": statistics.median(value for value, _ in self.pairs),
            "baseline_median": statistics.median(base for _, base in self.pairs),
            "unit": self.unit,
            "goal": self.goal,
            "good": self.good,
        }

    def cells(self) -> list[str]:
        """The columns of HEADER."""
        ratios, met = self.ratios, {None: "", True: "yes", False: "**no**"}[self.good]
        value, base = (statistics.median(column) for column in zip(*self.pairs, strict=True))
        return [
            self.what,
            self.baseline,
            str(len(ratios)),
            f"{ratios[0]:.2f} / **{statistics.median(ratios):.2f}** / {ratios[-1]:.2f}",
            f"{value:.1f} / {base:.1f} {self.unit}",
            "" if self.goal is None else f"<= {self.goal:g}",
            met,
        ]


HEADER = ["what", "against", "n", "ratio min / **median** / max", "medians", "goal", "met"]


def interleave(row: Row, rounds: int, measured: Callable[[int], float], baseline: Callable[[int], float]) -> Row:
    """Measure both once a round, in alternating order, so that drift of the machine affects both alike."""
    for index in range(rounds):
        if index % 2:
            base = baseline(index)
            row.pairs.append((measured(index), base))
        else:
            value = measured(index)
            row.pairs.append((value, baseline(index)))
    return row


def markdown(rows: Sequence[Row]) -> str:
    """The table."""
    lines = [HEADER, ["---"] * len(HEADER), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
