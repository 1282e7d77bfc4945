"""Tenants with weights and priorities, all computing without end: what each gets, and how soon a change is in force."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.gpu.enforce.conftest import Starts
from tests.support.guarded import GuardedTenant, Guarding
from tests.support.sampled import collect
from tests.support.share_table import Table, spread
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

MIB, GIB = 1 << 20, 1 << 30
KERNEL = 0.65
SETTLE, WINDOW, SOLO = 0.3, 2.0, 1.0
POINTS, TOGETHER = 2.0, 0.95
IN_FORCE_MS = 20.0


def _rates(programs: list[Spoken], seconds: float) -> list[float]:
    """Of all, over the same time."""
    for program in programs:
        program.tell(f"rate {seconds}")
    return [float(program.line()) for program in programs]


def _begin(start: Starts, tenants: list[GuardedTenant]) -> tuple[list[Spoken], float]:
    """A program a tenant (the same work each), and what one does alone."""
    first = start("burn", "plain", KERNEL, tenant=tenants[0])
    iterations = first.line().split()[2]
    _rates([first], SETTLE)
    solo = _rates([first], SOLO)[0]
    others = [start("burn", "plain", KERNEL, iterations, tenant=tenant) for tenant in tenants[1:]]
    for program in others:
        program.line()
    return [first, *others], solo


def _solo_again(programs: list[Spoken], solo: float) -> float:
    """The mean of what the first did alone before the others, and does now."""
    for program in programs[1:]:
        program.kill()
    _rates(programs[:1], SETTLE)
    return (solo + _rates(programs[:1], SOLO)[0]) / 2


def _judge(table: Table, what: str, wanted: list[float], rates: list[float], solo: float) -> bool:
    got = [100 * rate / sum(rates) for rate in rates]
    together = sum(rates) / solo
    good = together >= TOGETHER and all(abs(a - b) <= POINTS for a, b in zip(got, wanted, strict=True))
    table.add(
        what,
        goal=f"within {POINTS:g} points each; together >= {TOGETHER:g}",
        got=" : ".join(f"{part:.2f}" for part in got) + " %",
        base=f"{solo:.1f}/s alone, {sum(rates):.1f}/s together",
        ratio=f"{together:.3f}",
        good=good,
    )
    return good


def test_weights_divide_the_gpu(guarding: Guarding, start: Starts, table: Table) -> None:
    pairs = [(50, 50), (70, 30), (90, 10), (10, 90)]
    tenants = [guarding.tenant(memory=8 * GIB) for _ in range(2)]
    programs, solo = _begin(start, tenants)
    measured = []
    for weights in pairs:
        for tenant, weight in zip(tenants, weights, strict=True):
            tenant.set(weight=weight)
        _rates(programs, SETTLE)
        measured.append(_rates(programs, WINDOW))
    solo = _solo_again(programs, solo)

    good = [
        _judge(table, f"weights {a}:{b}", [100 * a / (a + b), 100 * b / (a + b)], rates, solo)
        for (a, b), rates in zip(pairs, measured, strict=True)
    ]
    assert all(good)


def test_weights_divide_the_gpu_among_three(guarding: Guarding, start: Starts, table: Table) -> None:
    tenants = [guarding.tenant(memory=8 * GIB, weight=weight) for weight in (60, 30, 10)]
    programs, solo = _begin(start, tenants)
    _rates(programs, SETTLE)
    rates = _rates(programs, 2 * WINDOW)
    solo = _solo_again(programs, solo)

    assert _judge(table, "weights 60:30:10", [60, 30, 10], rates, solo)


def test_a_tenant_with_three_processes_has_one_share(guarding: Guarding, start: Starts, table: Table) -> None:
    one, three = (guarding.tenant(memory=8 * GIB, weight=10) for _ in range(2))
    programs, solo = _begin(start, [one, three, three, three])
    _rates(programs, SETTLE)
    rates = _rates(programs, 2 * WINDOW)
    groups = three.status().gpus[0].groups
    solo = _solo_again(programs, solo)

    good = _judge(table, "weights 1:1, the second with three processes", [50, 50], [rates[0], sum(rates[1:])], solo)
    assert groups >= 3
    assert good


def test_priority_has_the_gpu(guarding: Guarding, start: Starts, table: Table) -> None:
    high, low = guarding.tenant(memory=8 * GIB, priority="high"), guarding.tenant(memory=8 * GIB, priority="low")
    programs, solo = _begin(start, [high, low])
    _rates(programs, SETTLE)
    rates = _rates(programs, 2 * WINDOW)
    solo = _solo_again(programs, solo)

    kept = rates[0] / solo
    table.add(
        "priority high beside a saturating low",
        goal=">= 0.97 of solo",
        got=f"{rates[0]:.1f}/s ({rates[1]:.1f}/s beside it)",
        base=f"{solo:.1f}/s",
        ratio=f"{kept:.4f}",
        good=kept >= 0.97,
    )
    assert kept >= 0.97


def test_a_changed_weight_is_in_force_at_once(guarding: Guarding, start: Starts, table: Table) -> None:
    """By what the first did in the 300 ms after the change, and in those before and after them."""
    window, changes = 300_000_000, 6
    first, second = (guarding.tenant(memory=8 * GIB, weight=weight) for weight in (90, 10))
    programs, _ = _begin(start, [first, second])
    lates, calls = [], []
    for index in range(changes):
        _rates(programs, SETTLE)
        moments: list[int] = []

        def change(index: int = index, moments: list[int] = moments) -> None:
            time.sleep(1.1 * window / 1e9)
            moments.append(time.monotonic_ns())
            first.set(weight=90 if index % 2 else 10)
            second.set(weight=10 if index % 2 else 90)
            moments.append(time.monotonic_ns())

        with ThreadPoolExecutor(1) as pool:
            changing = pool.submit(change)
            programs[0].tell(f"samples {3.5 * window / 1e9} 1000")
            samples = collect(programs[0])[0]
            changing.result()
        lates.append(samples.late(moments[0], window))
        calls.append((moments[1] - moments[0]) / 1e6)

    late = statistics.median(lates)
    table.add(
        f"weights 90:10 changed to 10:90 and back, {changes} times",
        goal=f"in force within {IN_FORCE_MS:g} ms",
        got=f"{spread(lates, 1)} ms; the calls {spread(calls, 2)} ms",
        good=max(lates) <= IN_FORCE_MS,
    )
    assert late <= IN_FORCE_MS
    assert max(lates) <= 2 * IN_FORCE_MS, "where in its round a change comes makes a part of a round"
