"""What the library costs a program: allocations, launches, training; each beside the same program without it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.share.conftest import Shares, Starts
from tests.support.frameworks import require
from tests.support.share_table import Table, spread
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

MIB = 1 << 20
#: What -> line for cost.cu, goal of section 8 of the design.
COSTS = {
    "alloc + free 4 MiB": (f"alloc 150 {4 * MIB}", 1.08),
    "alloc + free 4 KiB": ("alloc 4000 4096", 1.05),
    "empty launch": ("launch 8000", 1.01),
}
#: Processes are started anew, because where their memory lies makes them faster or slower for all their life.
STARTS, ROUNDS = 6, 12
#: The medians of two sets of measurements of the same thing differ, on a machine that others use as well.
NOISE = 0.02


def _pairs(measured: Callable[[], float], base: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Both in turn, in alternating order."""
    found = []
    for index in range(rounds):
        if index % 2:
            without = base()
            found.append((measured(), without))
        else:
            value = measured()
            found.append((value, base()))
    return found


def _add(table: Table, what: str, goal: float, pairs: list[tuple[float, float]], unit: str) -> float:
    """A row; returns the ratio of the medians."""
    ratio = statistics.median(value for value, _ in pairs) / statistics.median(base for _, base in pairs)
    table.add(
        what,
        goal=f"<= {goal:g}",
        got=f"{spread([value for value, _ in pairs])} {unit}",
        base=f"{spread([base for _, base in pairs])} {unit}",
        ratio=f"{ratio:.3f} ({len(pairs)} pairs: {spread([value / base for value, base in pairs], 3)})",
        good=ratio <= goal,
    )
    return ratio


@pytest.mark.timeout(200)
@pytest.mark.parametrize("cap", [1000, 999], ids=["quota", "quota-and-thread"])
def test_calls_cost_what_they_did(share: Shares, start: Starts, table: Table, cap: int) -> None:
    """cap 99.9 %: the thread that keeps a cap is there, and takes (nearly) nothing away from launches' throughput."""
    found: dict[str, list[tuple[float, float]]] = {what: [] for what in COSTS}
    for _ in range(STARTS if cap == 1000 else 2):
        with start("cost", share=share(memory=8 << 30, cap=cap)) as held, start("cost") as free:
            _warm(held)
            _warm(free)
            for what, (line, _) in COSTS.items():
                found[what] += _pairs(
                    lambda line=line: _nanoseconds(held, line),
                    lambda line=line: _nanoseconds(free, line),
                    ROUNDS,  # type: ignore[misc]
                )
    extra = "" if cap == 1000 else ", cap 99.9 %"
    ratios = {
        what: _add(table, what + extra, goal, [(a / 1000, b / 1000) for a, b in found[what]], "µs")
        for what, (_, goal) in COSTS.items()
    }
    if cap == 1000:
        assert {what: ratio for what, ratio in ratios.items() if ratio > COSTS[what][1] + NOISE} == {}


def _warm(program: Spoken) -> None:
    for line, _ in COSTS.values():
        program.ask(line)


def _nanoseconds(program: Spoken, line: str) -> float:
    return float(program.ask(line))


def test_a_context_is_made_as_fast(share: Shares, start: Starts, table: Table) -> None:
    """Hundreds of calls of the driver, few of which are the library's business."""
    with start("context", share=share(memory=8 << 30)) as held, start("context") as free:
        for program in (held, free):
            program.ask("context 1")
        pairs = _pairs(lambda: _nanoseconds(held, "context 3"), lambda: _nanoseconds(free, "context 3"), 8)

    ratio = _add(table, "context made and given back", 1.02, [(a / 1e6, b / 1e6) for a, b in pairs], "ms")
    assert ratio <= 1.02 + NOISE


@pytest.mark.timeout(200)
def test_training_is_as_fast(share: Shares, start: Starts, table: Table) -> None:
    require("torch")
    with start("torch_steps.py", share=share(memory=32 << 30)) as held, start("torch_steps.py") as free:
        held.line()
        free.line()
        pairs = _pairs(lambda: 1000 / float(held.ask("rate 2.0")), lambda: 1000 / float(free.ask("rate 2.0")), 8)

    ratio = _add(table, "PyTorch training, time of a step", 1.01, pairs, "ms")
    assert ratio <= 1.01 + NOISE


def test_no_thread_without_a_cap(share: Shares, start: Starts, table: Table) -> None:
    with start("cost", share=share(memory=8 << 30)) as held, start("cost") as free:
        _warm(held)
        _warm(free)
        threads = [_threads(program) for program in (held, free)]

    table.add(
        "threads of a program, no cap",
        goal="as without",
        got=str(threads[0]),
        base=str(threads[1]),
        good=threads[0] == threads[1],
    )
    assert threads[0] == threads[1]


def _threads(program: Spoken) -> int:
    return len(list(Path(f"/proc/{program.process.pid}/task").iterdir()))
