"""Caps: the part of the GPU's time that a container computes, for every way to keep a GPU busy."""

from __future__ import annotations

import statistics

import pytest

from tests.gpu.share.conftest import Shares, Starts
from tests.support.frameworks import require
from tests.support.loose_share import LooseShare
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

CAPS = (10, 25, 50, 75, 90)
#: A whole number of periods of 50 ms, so that where in a period a measurement begins does not matter.
SOLO, CAPPED = 0.7, 2.0
#: A step takes 20 ms: one of them may not be a third of a point.
TRAINING_SOLO, TRAINING = 1.5, 4.0
#: For a new cap to be in force and the queue's kernels to be those of its time.
SETTLE = 0.3
POINTS = 1.0
KINDS = {
    "kernels of 0.07 ms": ("plain", 0.07),
    "kernels of 0.65 ms": ("plain", 0.65),
    "kernels of 100 ms": ("long", 100),
    "graphs of 20 kernels of 0.035 ms": ("graph", 0.035),
    "cooperative kernels of 0.65 ms": ("cooperative", 0.65),
}


def _rate(program: Spoken, seconds: float) -> float:
    return float(program.ask(f"rate {seconds}"))


def _put(held: LooseShare, cap: int, *programs: Spoken) -> None:
    """Another cap, in 1/1000; a process that has none takes it up with its next call of the driver."""
    held.set(cap=cap)
    for program in programs:
        program.ask("look")


def _measure(
    program: Spoken, held: LooseShare, table: Table, what: str, native: float, solo_window: float, window: float
) -> None:
    """Every cap, between measurements without one."""
    solos, capped = [], {}
    for cap in CAPS:
        _put(held, 1000, program)
        _rate(program, SETTLE)
        solos.append(_rate(program, solo_window))
        _put(held, cap * 10, program)
        _rate(program, SETTLE)
        capped[cap] = _rate(program, window)
    _put(held, 1000, program)
    _rate(program, SETTLE)
    solos.append(_rate(program, solo_window))
    solo = statistics.median(solos)
    errors = {}
    for index, cap in enumerate(CAPS):
        # The solo measurements just before and just after, so that the GPU's clock drifts for both.
        base = (solos[index] + solos[index + 1]) / 2
        errors[cap] = 100 * capped[cap] / base - cap
        table.add(
            f"{what}: cap {cap} %",
            goal=f"within {POINTS:g} point",
            got=f"{capped[cap]:.2f}/s",
            base=f"{base:.2f}/s",
            ratio=f"{100 * capped[cap] / base:.2f} % ({errors[cap]:+.2f})",
            good=abs(errors[cap]) <= POINTS,
        )
    table.add(
        f"{what}: shim, no cap",
        goal="",
        got=f"{solo:.2f}/s",
        base=f"{native:.2f}/s without the library",
        ratio=f"{solo / native:.4f}",
    )
    wrong = {cap: round(error, 2) for cap, error in errors.items() if abs(error) > POINTS}
    assert wrong == {}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cap_is_kept_within_a_point(share: Shares, start: Starts, table: Table, kind: str) -> None:
    arguments = KINDS[kind]
    with start("burn", *arguments) as program:
        iterations = program.line().split()[2]
        _rate(program, SETTLE)
        native = _rate(program, SOLO)
    held = share(memory=8 << 30)

    with start("burn", *arguments, iterations, share=held) as program:
        program.line()
        _measure(program, held, table, kind, native, SOLO, CAPPED)


@pytest.mark.timeout(200)
def test_a_cap_is_kept_for_pytorch_training(share: Shares, start: Starts, table: Table) -> None:
    require("torch")
    with start("torch_steps.py") as program:
        program.line()
        native = _rate(program, TRAINING_SOLO)
    held = share(memory=32 << 30)

    with start("torch_steps.py", share=held, seconds=120) as program:
        program.line()
        _measure(program, held, table, "PyTorch training, steps", native, TRAINING_SOLO, TRAINING)


@pytest.mark.parametrize("processes", [3])
def test_a_cap_is_for_all_processes_of_a_container_together(
    share: Shares, start: Starts, table: Table, processes: int
) -> None:
    held = share(memory=8 << 30)
    with start("burn", "plain", 0.65) as alone:
        iterations = alone.line().split()[2]
    programs = [start("burn", "plain", 0.65, iterations, share=held) for _ in range(processes)]
    for program in programs:
        program.line()

    def together(seconds: float) -> float:
        for program in programs:
            program.tell(f"rate {seconds}")
        return sum(float(program.line()) for program in programs)

    together(SETTLE)
    before = together(SOLO)
    _put(held, 300, *programs)
    together(SETTLE)
    capped = together(CAPPED)
    _put(held, 1000, *programs)
    together(SETTLE)
    solo = (before + together(SOLO)) / 2

    error = 100 * capped / solo - 30
    table.add(
        f"{processes} processes of one container: cap 30 %",
        goal=f"within {POINTS:g} point together",
        got=f"{capped:.1f}/s",
        base=f"{solo:.1f}/s",
        ratio=f"{100 * capped / solo:.2f} % ({error:+.2f})",
        good=abs(error) <= POINTS,
    )
    assert abs(error) <= POINTS


def test_a_cap_that_changes_is_in_force_soon(share: Shares, start: Starts, table: Table) -> None:
    """What is computed in the second after a change is what the new cap allows, but for the first periods."""
    held = share(memory=8 << 30, cap=900)
    with start("burn", "plain", 0.07, share=held) as program:
        program.line()
        _rate(program, SETTLE)
        high = _rate(program, SOLO)
        held.set(cap=100)
        first = _rate(program, 1.0)
        low = _rate(program, SOLO)

    late = 1000 * (first - low) / (high - low)
    table.add(
        "cap 90 % changed to 10 % on a running program",
        goal="in force within 100 ms",
        got=f"{late:.0f} ms of the second after it at the old cap",
        good=late <= 100,
    )
    assert late <= 100
    assert low < high / 5
