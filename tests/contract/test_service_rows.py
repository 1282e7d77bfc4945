"""The page of ``make bench-gpu``: figures of a row, its goals, table and plot (tests/support/service_rows.py)."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.conftest import hidden
from tests.support.loose_share import without_ours
from tests.support.service_rows import HEADER, Request, Row, page, picture


def a_row(*, slower: float = 1.0, alone: float = 5.0, kept: float = 0.7, busy: float = 0.3, way: str = "MPS") -> Row:
    """Of a hundred requests, the slowest four times as long as the others."""
    times = [Request(alone, alone, False)] * 98 + [Request(4 * alone, alone, True)] * 2
    rows = [Request(one.took * slower, one.own * slower, one.behind) for one in times]
    return Row("encoder", "training", way, 0.3, busy, 20.0, 0.9, times, rows, [20.0 * kept, 20.0 * kept])


def test_percentiles_are_beside_and_alone() -> None:
    row = a_row(slower=2.0)
    assert row.of(0.5) == (10.0, 5.0)
    assert row.of(0.99) == (40.0, 20.0)
    assert (row.kept, row.within) == (pytest.approx(0.7), 1.0)
    assert a_row(slower=2.5).within == 0.98
    assert (row.own(False), row.own(True)) == ((10.0, 5.0), (10.0, 5.0))


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (a_row(slower=1.09), True),
        (a_row(slower=1.12), False),  # p50
        (a_row(slower=1.05, kept=0.59), False),  # 0.85 of 0.7 is 0.595
        (a_row(alone=1.0, slower=1.14), True),  # 0.14 ms, and 0.56 at p99
        (a_row(alone=1.0, slower=1.16), False),  # 0.64 ms at p99
    ],
)
def test_goals_are_factors_for_long_requests_and_milliseconds_for_short_ones(row: Row, met: bool) -> None:
    assert row.is_met == met


def test_the_page_has_a_table_for_each_pair_and_what_was_left_out() -> None:
    text = page([a_row(), a_row(way="the driver's slices", slower=3)], "one H100", "services.svg", ["decode: MPS"])
    assert text.count(f"| {' | '.join(HEADER)} |") == 1
    assert "| the driver's slices | 15.00 ms, 3.00 x, +10.00 |" in text
    assert "there was no time: decode: MPS." in text


def test_a_way_that_was_measured_twice_says_how_far_its_p99_are_apart() -> None:
    rows = [a_row(), a_row(way="the driver's slices"), a_row(slower=1.04)]
    assert "\nMeasured twice, the two p99 apart: MPS 4.0 %.\n" in page(rows, "one H100", "services.svg")
    assert "twice" not in page(rows[:2], "one H100", "services.svg")


def test_the_plot_has_two_bars_a_row_and_is_xml() -> None:
    tree = ET.fromstring(picture([a_row(), a_row(slower=2)]))
    bars = tree.findall("{http://www.w3.org/2000/svg}rect")
    assert [int(bar.attrib["width"]) for bar in bars] == [90, 90, 180, 180]


def test_programs_get_the_gpu_that_is_measured_and_none_of_our_variables() -> None:
    """Two runs on two GPUs of a host both computed on the first one: the variable was taken away, in two places."""
    given = {
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_CACHE_PATH": "/x",
        "NVC_SIM": "/x",
        "LD_PRELOAD": "/x",
        "PATH": "/bin",
    }
    seen = {name: value for name, value in given.items() if not hidden(name, gpu=True)}
    assert without_ours(seen) == {"CUDA_VISIBLE_DEVICES": "GPU-1", "PATH": "/bin"}
    assert hidden("CUDA_VISIBLE_DEVICES", gpu=False)
