"""What people see of a share."""

from __future__ import annotations

from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.region import NOTES, Region, RegionHeader, RegionSlot
from nvc.share.view import rows

LIMITS = Limits((ResolvedGpu("GPU-00000000-0000-0000-0000-000000000001", -1, 10 << 30),))
HEADER = RegionHeader(8, False, (0,), (0,), (0,), ((0, 0),) * NOTES)


def slot(index: int, pid: int, memory: int, started: int = 5) -> RegionSlot:
    return RegionSlot(index, pid, 1, started, "x", False, (memory,), (0,), (0,), (1,), (0,))


def test_a_process_with_both_libraries_is_shown_once_with_all_that_it_has() -> None:
    region = Region(HEADER, (slot(0, 7, 1 << 20), slot(1, 8, 4 << 20), slot(2, 7, 2 << 20)))
    (row,) = rows("c", "c", LIMITS, region, {2: 4711})
    assert [(7, 4711, 3 << 20), (8, 0, 4 << 20)] == [(one.pid, one.host_pid, one.memory) for one in row.processes]
    assert 7 << 20 == row.used


def test_a_number_that_two_processes_had_is_two_processes() -> None:
    (row,) = rows("c", "c", LIMITS, Region(HEADER, (slot(0, 7, 1), slot(1, 7, 1, started=6))), {})
    assert [7, 7] == [one.pid for one in row.processes]
