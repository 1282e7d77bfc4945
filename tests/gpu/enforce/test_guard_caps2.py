"""Caps of guarded tenants, kept from outside: for every way to keep a GPU busy, and for two tenants together."""

from __future__ import annotations

import statistics

import pytest

from tests.gpu.enforce.conftest import Starts
from tests.support.guarded import Guarding
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

GIB = 1 << 30
CAPS = (10, 25, 50, 75, 90)
#: A whole number of periods of 47 ms, so that where in a period a measurement begins does not matter.
SOLO, CAPPED = 1.0, 2.491
#: For a new cap to be in force and the queue's kernels to be those of its time.
SETTLE = 0.3
POINTS, TOGETHER_POINTS = 1.0, 2.0
KINDS = {
    "kernels of 0.65 ms": ("plain", 0.65),
    "kernels of 0.07 ms": ("plain", 0.07),
    "kernels of 100 ms": ("long", 100),
    "graphs of 20 kernels of 0.035 ms": ("graph", 0.035),
}


def _rates(programs: list[Spoken], seconds: float) -> list[float]:
    """Of all, over the same time."""
    for program in programs:
        program.tell(f"rate {seconds}")
    return [float(program.line()) for program in programs]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cap_is_kept_within_a_point(guarding: Guarding, start: Starts, table: Table, kind: str) -> None:
    tenant = guarding.tenant(memory=8 * GIB)
    solos, capped = [], {}
    with start("burn", *KINDS[kind], tenant=tenant) as program:
        program.line()
        for cap in (*CAPS, 100):
            tenant.set(cap=1000)
            _rates([program], SETTLE)
            solos += _rates([program], SOLO)
            if cap < 100:
                tenant.set(cap=cap * 10)
                _rates([program], SETTLE)
                capped[cap] = _rates([program], CAPPED)[0]
        tenant.set(cap=1000)
    errors = {}
    for index, cap in enumerate(CAPS):
        # The solo measurements just before and just after, so that the GPU's clock drifts for both.
        base = (solos[index] + solos[index + 1]) / 2
        errors[cap] = 100 * capped[cap] / base - cap
        table.add(
            f"{kind}: cap {cap} %",
            goal=f"within {POINTS:g} point",
            got=f"{capped[cap]:.2f}/s",
            base=f"{base:.2f}/s",
            ratio=f"{100 * capped[cap] / base:.2f} % ({errors[cap]:+.2f})",
            good=abs(errors[cap]) <= POINTS,
        )
    wrong = {cap: round(error, 2) for cap, error in errors.items() if abs(error) > POINTS}
    assert wrong == {}


def test_two_caps_hold_together(guarding: Guarding, start: Starts, table: Table) -> None:
    tenants = [guarding.tenant(memory=8 * GIB) for _ in range(2)]
    first = start("burn", "plain", 0.65, tenant=tenants[0])
    iterations = first.line().split()[2]
    _rates([first], SETTLE)
    solos = _rates([first], SOLO)
    second = start("burn", "plain", 0.65, iterations, tenant=tenants[1])
    second.line()
    wrong, rates = [], []
    pairs = [(70, 30), (30, 70), (50, 50), (60, 20)]
    for pair in pairs:
        for tenant, cap in zip(tenants, pair, strict=True):
            tenant.set(cap=cap * 10)
        _rates([first, second], SETTLE)
        rates.append(_rates([first, second], CAPPED))
    second.kill()
    tenants[0].set(cap=1000)
    _rates([first], SETTLE)
    solo = statistics.mean([*solos, *_rates([first], SOLO)])

    for pair, both in zip(pairs, rates, strict=True):
        got = [100 * rate / solo for rate in both]
        good = all(abs(part - cap) <= TOGETHER_POINTS for part, cap in zip(got, pair, strict=True))
        wrong += [] if good else [(pair, got)]
        table.add(
            f"caps {pair[0]} % and {pair[1]} % together",
            goal=f"each within {TOGETHER_POINTS:g} points",
            got=f"{got[0]:.2f} % and {got[1]:.2f} %, together {sum(got):.1f} %",
            good=good,
        )
    assert wrong == []


def test_three_processes_have_one_cap(guarding: Guarding, start: Starts, table: Table) -> None:
    tenant = guarding.tenant(memory=8 * GIB)
    first = start("burn", "plain", 0.65, tenant=tenant)
    iterations = first.line().split()[2]
    programs = [first, *(start("burn", "plain", 0.65, iterations, tenant=tenant) for _ in range(2))]
    for program in programs[1:]:
        program.line()
    _rates(programs, SETTLE)
    before = sum(_rates(programs, SOLO))
    tenant.set(cap=300)
    _rates(programs, SETTLE)
    capped = sum(_rates(programs, CAPPED))
    tenant.set(cap=1000)
    _rates(programs, SETTLE)
    solo = (before + sum(_rates(programs, SOLO))) / 2

    error = 100 * capped / solo - 30
    table.add(
        "3 processes of one tenant: cap 30 %",
        goal=f"within {POINTS:g} point together",
        got=f"{capped:.1f}/s",
        base=f"{solo:.1f}/s",
        ratio=f"{100 * capped / solo:.2f} % ({error:+.2f})",
        good=abs(error) <= POINTS,
    )
    assert abs(error) <= POINTS


def test_a_pause_stops_everything_and_a_resume_brings_it_back(guarding: Guarding, start: Starts, table: Table) -> None:
    tenant = guarding.tenant(memory=8 * GIB)
    with start("burn", "plain", 0.65, tenant=tenant) as program:
        program.line()
        before = _rates([program], SETTLE)[0]
        tenant.pause(True)
        _rates([program], 0.05)
        paused = _rates([program], 0.5)[0]
        tenant.pause(False)
        _rates([program], 0.05)
        after = _rates([program], SETTLE)[0]

    good = paused == 0 and abs(after / before - 1) < 0.05
    table.add(
        "pause, half a second, resume",
        goal="nothing; then as before",
        got=f"{paused:.1f}/s, {after:.1f}/s",
        base=f"{before:.1f}/s",
        good=good,
    )
    assert good
