"""The demonstration and the measurements, as people start them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launchers import CHECKOUT
from tools.measuring import Failed, Row, markdown, spawn

pytestmark = pytest.mark.system

NO_GPU = pytest.mark.skipif(os.path.exists("/proc/driver/nvidia/version"), reason="this machine has a GPU")


def _tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"tools.{name}", *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=100)


@NO_GPU
def test_demo_shows_a_container_with_and_without_its_gpu() -> None:
    done = _tool("demo")
    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "SIMULATED",
        "denied by the device cgroup",
        "ModifyDeviceFiles: 0",
        "GPU 0: NVIDIA H200",
        "MIG 1g.10gb",
    ):
        assert words in done.stdout
    assert "everything it made is removed again" in done.stdout
    assert "\nnext: make install " in done.stdout
    found = re.findall(r"cuMemAlloc: (\d+) pieces of 64 MiB beside the CUDA context's (\d+) MiB", done.stdout)
    if found:  # not without FUSE
        pieces, context = map(int, found[-1])
        assert 2048 - 64 < pieces * 64 + context <= 2048, "the quota of 2 GiB is explained"


def test_measurements_have_their_rows(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    done = _tool("bench", "--rounds", "1", "--many-rounds", "1", "--json", "--write", str(report))
    assert (done.returncode, done.stderr) == (0, "")
    measured = json.loads(done.stdout)["rows"]
    assert len({(row["what"], row["baseline"]) for row in measured}) == len(measured) == 23
    rows = {row["what"]: row for row in measured}
    assert all(row["ratio"]["min"] > 0 for row in rows.values())
    # Memory does not depend on how busy the machine is: the one goal that a test can hold.
    assert [row["good"] for what, row in rows.items() if "peak memory" in what] == [True, True]
    assert [what for what in rows if f"| {what} |" not in report.read_text()] == []


def test_ratios_are_of_pairs() -> None:
    row = Row("a", "b", goal=1.5, pairs=[(2.0, 1.0), (3.0, 3.0), (6.0, 2.0)])
    assert [1.0, 2.0, 3.0] == row.ratios
    assert row.good is False
    assert "| a | b | 3 | 1.00 / **2.00** / 3.00 | 3.0 / 2.0 ms | <= 1.5 | **no** |" in markdown([row])


def test_command_that_fails_is_no_measurement() -> None:
    with pytest.raises(Failed, match="exit status 3: broken"):
        spawn(["/bin/sh", "-c", "echo broken >&2; exit 3"])
