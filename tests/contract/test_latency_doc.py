"""docs/user/latency.md says what ``nvc.guard.service`` computes."""

from __future__ import annotations

import re

import pytest

from nvc.guard.scheduling import Tenant, service_bounds
from nvc.guard.service import AWAY_US, HINT_NS, IDLE_NS, LEAST_US, SHORT_US, SWITCH_US
from tests.support.native import CHECKOUT

TEXT = (CHECKOUT / "docs/user/latency.md").read_text()
ROWS = [(float(one), int(most)) for one, most in re.findall(r"^\| ([\d.]+) ms \| (\d+) \|$", TEXT, re.MULTILINE)]


def bound(*weights: int) -> int:
    """Of a service beside others of these weights, in microseconds."""
    others = [Tenant(f"t{index}", weight) for index, weight in enumerate(weights)]
    return service_bounds((Tenant("service", latency=1), *others))["service"]


def test_there_is_a_table() -> None:
    assert len(ROWS) == 4


@pytest.mark.parametrize(("latency", "others"), ROWS)
def test_so_many_others_and_no_more_keep_a_latency(latency: float, others: int) -> None:
    assert bound(*[10] * others) <= latency * 1000 < bound(*[10] * (others + 1))


def test_numbers_in_sentences() -> None:
    assert f"90:10\nbeside a service needs {bound(90, 10) / 1000:g} ms" in TEXT
    assert f"a switch of {SWITCH_US / 1000:g} ms to each" in TEXT
    assert f"one of {AWAY_US / 1000:g} ms from the service" in TEXT
    assert (
        f"{LEAST_US / 1000:g} ms for a single one, else {SHORT_US / 1000:g} ms each ({LEAST_US / 1000:g} where" in TEXT
    )
    assert f"no work for {IDLE_NS // 10**9} s" in TEXT
    assert f"from now on, for {HINT_NS // 10**9} s" in TEXT
