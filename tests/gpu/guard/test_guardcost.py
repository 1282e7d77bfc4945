"""What the guard costs a program: allocations, contexts, launches, training; each beside the same program alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest

from tests.gpu.guard.conftest import Starts
from tests.support.frameworks import require
from tests.support.guarded import Guarding
from tests.support.share_table import Table, spread
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

MIB, GIB = 1 << 20, 1 << 30
#: What -> line for cost.cu, goal of section 8 of the design.
CALLS = {
    "alloc + free 4 MiB": (f"alloc 150 {4 * MIB}", 1.6),
    "alloc + free 4 KiB": ("alloc 4000 4096", 1.6),
    "empty launch": ("launch 8000", 1.01),
}
CONTEXT, TRAINING = 1.05, 0.99
#: Processes are started anew, because where their memory lies makes them faster or slower for all their life.
STARTS, ROUNDS, CONTEXTS, TRAININGS = 8, 4, 6, 6
#: The medians of two sets of measurements of the same thing differ, on a machine that others use as well.
NOISE = 0.02

Pair = tuple[float, float]


def _pairs(measured: Callable[[], float], base: Callable[[], float], rounds: int) -> list[Pair]:
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


def _add(table: Table, what: str, goal: float, pairs: list[Pair], unit: str, *, least: bool = False) -> float:
    """A row; returns the ratio of the medians. least: the goal is a lower bound."""
    ratio = statistics.median(value for value, _ in pairs) / statistics.median(base for _, base in pairs)
    table.add(
        what,
        goal=f"{'>=' if least else '<='} {goal:g}",
        got=f"{spread([value for value, _ in pairs])} {unit}",
        base=f"{spread([base for _, base in pairs])} {unit}",
        ratio=f"{ratio:.3f} ({len(pairs)} pairs: {spread([value / base for value, base in pairs], 3)})",
        good=ratio >= goal if least else ratio <= goal,
    )
    return ratio


def _number(program: Spoken, line: str) -> float:
    return float(program.ask(line))


@pytest.mark.timeout(200)
def test_calls_cost_what_the_design_allows(guarding: Guarding, start: Starts, table: Table) -> None:
    tenant = guarding.tenant(memory=8 * GIB)
    found: dict[str, list[Pair]] = {what: [] for what in CALLS}
    for _ in range(STARTS):
        with start("cost", tenant=tenant) as held, start("cost") as free:
            for line, _ in CALLS.values():
                for program in (held, free):
                    program.ask(line)
            for what, (line, _) in CALLS.items():
                found[what] += _pairs(
                    lambda line=line: _number(held, line),  # type: ignore[misc]
                    lambda line=line: _number(free, line),  # type: ignore[misc]
                    ROUNDS,
                )
    status = tenant.status()
    ratios = {
        what: _add(table, what, goal, [(a / 1000, b / 1000) for a, b in found[what]], "µs")
        for what, (_, goal) in CALLS.items()
    }
    table.add(
        "handling of a notification, mean of all",
        got=f"{status.handling_ns / status.notifications / 1000:.1f} µs of {status.notifications}, "
        f"{status.performed} performed, {status.continued} continued",
    )
    assert {what: ratio for what, ratio in ratios.items() if ratio > CALLS[what][1] + NOISE} == {}


@pytest.mark.timeout(200)
def test_a_context_costs_what_the_design_allows(guarding: Guarding, start: Starts, table: Table) -> None:
    with start("context", tenant=guarding.tenant(memory=8 * GIB)) as held, start("context") as free:
        for program in (held, free):
            program.ask("context 1")
        pairs = _pairs(lambda: _number(held, "context 3"), lambda: _number(free, "context 3"), CONTEXTS)

    ratio = _add(table, "context made and given back", CONTEXT, [(a / 1e6, b / 1e6) for a, b in pairs], "ms")
    assert ratio <= CONTEXT + NOISE


@pytest.mark.timeout(300)
def test_training_is_as_fast(guarding: Guarding, start: Starts, table: Table) -> None:
    require("torch")
    tenant = guarding.tenant(memory=40 * GIB)
    with start("torch_steps.py", tenant=tenant, seconds=120) as held, start("torch_steps.py", seconds=120) as free:
        held.line()
        free.line()
        pairs = _pairs(lambda: _number(held, "rate 1.5"), lambda: _number(free, "rate 1.5"), TRAININGS)

    ratio = _add(table, "PyTorch training, steps a second", TRAINING, pairs, "/s", least=True)
    assert ratio >= TRAINING - NOISE / 2
