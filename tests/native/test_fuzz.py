"""The fuzz targets, with the sanitizers: a bad read, a leak, or a diverted call of the driver ends them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native import BUILD, CHECKOUT, build

TARGETS = sorted(path.stem for path in (CHECKOUT / "native" / "test").glob("fuzz_*_*.c"))
#: Targets for libFuzzer here, and their seconds; ``make -C native fuzz`` runs all of them, for longer.
FUZZED, SECONDS = "fuzz_guard_call", 4


@pytest.mark.parametrize("target", TARGETS)
def test_survives_any_input(target: str) -> None:
    done = subprocess.run([build() / target, "1500", "7"], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "1500 inputs"


KEPT = sorted((CHECKOUT / "native/test/corpus").glob("*/*"))


@pytest.mark.parametrize("path", KEPT, ids=[path.name for path in KEPT])
def test_an_input_that_found_something_finds_nothing(path: Path) -> None:
    done = subprocess.run([build() / path.parent.name, path], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, f"{path}\n"), done.stderr


def test_a_fuzzer_finds_nothing() -> None:
    if shutil.which("clang") is None:
        pytest.skip("no clang: tools/bootstrap installs it")
    build()
    command = ["make", "-s", "-j2", "-C", CHECKOUT / "native", "fuzz", f"BUILD={BUILD}"]

    done = subprocess.run(
        [*command, f"FUZZERS={FUZZED}", f"FUZZ_SECONDS={SECONDS}"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done " in done.stderr


def test_there_are_targets() -> None:
    assert FUZZED in TARGETS
