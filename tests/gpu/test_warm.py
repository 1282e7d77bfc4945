"""What `configure` by the agent's pre-fork server costs on a machine with a GPU, as ratios of the same minute.

The table goes to warm.md in NVC_GPU_TABLES (default build/gpu-share). The goals are in it, met or not; what must hold
here is that the pre-fork server is worth having.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from tests.support.bed import Bed
from tests.support.native import CHECKOUT
from tools.bench import Bench
from tools.measuring import markdown

pytestmark = [pytest.mark.gpu, pytest.mark.system]
ROUNDS = 41
#: Read while pytest starts: tests see no NVC_ variable.
DIRECTORY = Path(os.environ.get("NVC_GPU_TABLES") or CHECKOUT / "build/gpu-share")


def test_a_warm_configure_is_cheaper_than_a_program_that_starts(bed: Bed) -> None:
    rows = Bench(bed, ROUNDS, 1).agent_rows()
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    (DIRECTORY / "warm.md").write_text(markdown(rows))
    without = next(row for row in rows if row.baseline == "the same without it")
    assert statistics.median(without.ratios) < 0.9
