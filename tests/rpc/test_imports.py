"""Start-up is paid once for every container: what ``rpc`` imports is written down here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: C modules that cost some ten microseconds, and what ``os`` brings along.
ALLOWED = {
    *("__future__", "_json", "_signal", "_socket", "_stat", "_struct", "errno", "fcntl", "select"),
    *("stat", "struct", "time"),
}
MODULES = ("channel", "client", "codec", "errors", "method", "process", "server", "stop")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_nothing_that_costs_start_up_time(module: str) -> None:
    program = Path(__file__).parent / "programs/print_imports.py"
    command = [sys.executable, "-I", "-S", program, Path(__file__).parents[2], f"rpc.{module}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert "" == done.stderr
    imported = {name for name in done.stdout.split() if name.partition(".")[0] != "rpc"}
    assert set() == imported - ALLOWED


def test_every_module_is_in_the_list() -> None:
    files = (Path(__file__).parents[2] / "rpc").glob("*.py")
    assert {"__init__", *MODULES} == {file.stem for file in files}
