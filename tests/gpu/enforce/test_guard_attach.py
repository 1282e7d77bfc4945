"""Processes that were started without us get weights from outside, at once, and are left as they were."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nvc.base.errors import ContainerError
from nvc.guard import attach
from nvc.guard.attached import AttachedProcess
from tests.gpu.enforce.conftest import Starts
from tests.support.sampled import collect
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

SETTLE, WINDOW = 0.3, 2.0
POINTS, IN_FORCE_MS = 2.0, 20.0
NINE, ONE = 9000, 1000


def _share(programs: list[Spoken], seconds: float) -> tuple[float, float]:
    """The first one's part in percent, and both together."""
    for program in programs:
        program.tell(f"rate {seconds}")
    rates = [float(program.line()) for program in programs]
    return 100 * rates[0] / sum(rates), sum(rates)


def test_two_running_processes_are_attached_at_once(start: Starts, table: Table) -> None:
    first = start("burn", "plain", 0.65)
    iterations = first.line().split()[2]
    first.ask(f"rate {SETTLE}")
    solo = float(first.ask("rate 1.0"))
    programs = [first, start("burn", "plain", 0.65, iterations)]
    programs[1].line()
    pids = [program.process.pid for program in programs]
    _share(programs, SETTLE)
    before, _ = _share(programs, WINDOW)
    window = 300_000_000
    moments: list[int] = []
    found: list[AttachedProcess] = []

    def act() -> None:
        time.sleep(1.1 * window / 1e9)
        moments.append(time.monotonic_ns())
        found.extend(attach.find(pid) for pid in pids)
        moments.append(time.monotonic_ns())
        for process, microseconds in zip(found, (NINE, ONE), strict=True):
            attach.reweigh(process, microseconds)
        moments.append(time.monotonic_ns())

    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        first.tell(f"samples {3.8 * window / 1e9} 1000")
        samples = collect(first)[0]
        acting.result()
    late = samples.late(moments[0], window)
    during, together = _share(programs, WINDOW)
    begin = time.monotonic_ns()
    for process in found:
        attach.reweigh(process, 0)
    detaching = (time.monotonic_ns() - begin) / 1e6
    _share(programs, SETTLE)
    after, _ = _share(programs, WINDOW)
    again = [attach.find(pid) for pid in pids]

    finding, writing = ((b - a) / 1e6 for a, b in itertools.pairwise(moments))
    misses = sum(process.probes for process in found)
    soon = table.add(
        "attach to two running processes, found by trying",
        goal=f"in force within {IN_FORCE_MS:g} ms",
        got=f"by what was computed {late:.1f} ms; finding {finding:.1f} ms, writing {writing:.1f} ms; "
        f"{sum(len(process.groups) for process in found)} groups; {misses} clients tried in vain",
        good=max(late, finding + writing) <= IN_FORCE_MS,
    )
    right = table.add(
        "attached 9:1",
        goal=f"90 % within {POINTS:g} points; together >= 0.95",
        got=f"{during:.2f} %",
        base=f"{before:.2f} % before",
        ratio=f"{together / solo:.3f}",
        good=abs(during - 90) <= POINTS and together >= 0.95 * solo,
    )
    same = [[group.slice for group in process.groups] for process in again]
    was = [[group.slice for group in process.groups] for process in found]
    back = table.add(
        "detached",
        goal="as before",
        got=f"{after:.2f} %, slices {same}, {detaching:.1f} ms",
        base=f"{before:.2f} %, slices {was}",
        good=abs(after - before) <= POINTS and same == was,
    )
    assert soon
    assert right
    assert back


def test_a_process_that_does_not_compute_is_said_to_be_none(start: Starts) -> None:
    program = start("context")
    program.ask("context 1")  # given back: there is no group any more

    with pytest.raises(ContainerError, match="no compute groups"):
        attach.find(program.process.pid, probes=64)
