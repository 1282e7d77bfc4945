"""Starting programs: many at once on the GPU, and programs that have nothing to do with one."""

from __future__ import annotations

import os
import statistics
import subprocess
from itertools import chain
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import Shares
from tests.support import loose_share
from tests.support.bed import Bed
from tests.support.loose_share import LooseShare
from tests.support.share_table import Table, percentile, spread

pytestmark = [pytest.mark.gpu, pytest.mark.system]

ADDED_MS = 10.0
#: Of 64 that CUDA starts one after the other: each half of the rounds with the library, in turn.
CUDA_ROUNDS = 4


def _herd(bed: Bed, programs: Path, held: LooseShare, count: int, program: str, *, shared: bool) -> list[float]:
    """Milliseconds of ``count`` processes started at once, from exec to the end of their work."""
    environment = {**loose_share.without_ours(os.environ), **bed.env, **held.variables}
    environment.pop("LD_PRELOAD")
    library = held.library if shared else "-"
    command = [str(programs / "herd"), str(count), library, str(programs / program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    times = [int(line.split()[0]) / 1e6 for line in done.stdout.splitlines()]
    assert len(times) == count
    return times


def _herds(
    bed: Bed, programs: Path, held: LooseShare, count: int, program: str, rounds: int
) -> tuple[list[list[float]], list[list[float]]]:
    """What _herd returns with the library and without, once a round each; neither comes first more often."""
    under: list[list[float]] = []
    alone: list[list[float]] = []
    for index in range(rounds):
        for shared in (index % 2 == 0, index % 2 != 0):
            (under if shared else alone).append(_herd(bed, programs, held, count, program, shared=shared))
    return under, alone


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("count", "rounds"),
    [pytest.param(64, 40, id="the-first-call-of-64"), pytest.param(300, 10, id="the-first-call-of-300")],
)
def test_many_at_once_call_the_driver_as_soon(
    bed: Bed, share: Shares, programs: Path, table: Table, count: int, rounds: int
) -> None:
    held = share(memory=64 << 30)
    found = [list(chain.from_iterable(herds)) for herds in _herds(bed, programs, held, count, "attach", rounds)]

    tails = [percentile(times, 0.99) for times in found]
    middles = [statistics.median(times) for times in found]
    added = tails[0] - tails[1]
    table.add(
        f"{count} at once, first call of the driver, {rounds} times: p99",
        goal=f"less than {ADDED_MS:g} ms more each",
        got=f"{tails[0]:.1f} ms (median {middles[0]:.1f})",
        base=f"{tails[1]:.1f} ms (median {middles[1]:.1f})",
        ratio=f"{added:+.1f} ms (median {middles[0] - middles[1]:+.1f})",
        good=added < ADDED_MS,
    )
    assert added < ADDED_MS
    assert held.used() == 0
    assert held.region().slots == ()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("count", [64])
def test_many_at_once_begin_cuda_as_soon(bed: Bed, share: Shares, programs: Path, table: Table, count: int) -> None:
    """The driver makes their contexts one after the other, in seconds: what each adds is in the last one's time."""
    held = share(memory=64 << 30)
    found = _herds(bed, programs, held, count, "first", CUDA_ROUNDS)

    tails = [[percentile(times, 0.99) for times in herds] for herds in found]
    under, alone = (statistics.median(column) for column in tails)
    each = (under - alone) / count
    table.add(
        f"{count} at once, cuInit, context, allocation, {CUDA_ROUNDS} rounds of each: p99",
        goal=f"less than {ADDED_MS:g} ms more each",
        got=f"{spread(tails[0], 0)} ms",
        base=f"{spread(tails[1], 0)} ms",
        ratio=f"{under - alone:+.0f} ms, {each:+.1f} ms each ({under / alone:.3f})",
        good=each < ADDED_MS,
    )
    assert each < ADDED_MS
    assert held.used() == 0
    assert held.region().slots == ()


@pytest.mark.parametrize(
    "command",
    [pytest.param(["/bin/true"], id="true"), pytest.param(["/usr/bin/python3", "-I", "-S", "-c", "pass"], id="python")],
)
def test_a_program_without_a_gpu_starts_as_fast(
    bed: Bed, share: Shares, programs: Path, table: Table, command: list[str]
) -> None:
    held = share(memory=1 << 30)
    environment = {**loose_share.without_ours(os.environ), **bed.env}
    herd = [str(programs / "herd"), "-pairs", "400", held.library, *command]
    done = subprocess.run(herd, env=environment, capture_output=True, text=True, timeout=100, check=True)

    pairs = [tuple(int(word) / 1e6 for word in line.split()) for line in done.stdout.splitlines()]
    without, with_library = (statistics.median(column) for column in zip(*pairs, strict=True))
    added = statistics.median(late - early for early, late in pairs)
    table.add(
        f"`{' '.join(command)}`, median of 400",
        goal="less than 0.3 ms more",
        got=f"{with_library:.3f} ms",
        base=f"{without:.3f} ms",
        ratio=f"{added:+.3f} ms, {with_library / without:.3f}",
        good=added < 0.3,
    )
    assert added < 0.3
