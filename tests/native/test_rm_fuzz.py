"""The fuzz targets of native/rm on generated inputs, with the sanitizers: a bad read or a lost byte ends them."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.native import CHECKOUT, build

TARGETS = sorted(path.stem for path in (CHECKOUT / "native" / "test").glob("fuzz_rm_*.c"))


@pytest.mark.parametrize("target", TARGETS)
def test_survives_whatever_it_is_given(target: str) -> None:
    done = subprocess.run([build() / target, "1500", "7"], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "1500 inputs\n"


def test_there_are_targets() -> None:
    assert TARGETS
