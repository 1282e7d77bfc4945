"""How a GPU's time is shared, measured: services beside neighbours. Fixtures are those of tests/gpu/enforce.

Only what NVC_GPU_PARTS names is run here (``latency-experiments``, ``services``): benches take minutes of a GPU.
NVC_GPU_TABLES is as there.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.enforce.conftest import (
    PARTS,
    calm,
    environment,
    guarding,
    launcher,
    start,
    table,
)
from tests.support.bed import Bed
from tests.support.gpumeasure import SHARE_PROGRAMS, compile_programs

__all__ = ["calm", "environment", "guarding", "launcher", "start", "table"]

OWN_PROGRAMS = Path(__file__).with_name("programs")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    is_part = PARTS.name(collection_path) != ""
    return (is_part and (not PARTS.chosen or PARTS.leaves_out(collection_path))) or None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for one in PARTS.tables.values():
        terminalreporter.write_line("")
        terminalreporter.write(one.markdown())


@pytest.fixture(scope="session")
def programs(whole_bed: Bed) -> Path:
    """Those that are used here alone, compiled here, and handles.so to be preloaded."""
    target = whole_bed.directory("bench-programs")
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", str(target / "handles.so")]
    subprocess.run([*command, str(OWN_PROGRAMS / "handles.c")], check=True)
    own = [OWN_PROGRAMS / name for name in ("levers.c", "work.cu")]
    return compile_programs([*own, *(SHARE_PROGRAMS / name for name in ("burn.cu", "switches.c"))], target)
