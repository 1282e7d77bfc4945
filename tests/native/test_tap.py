"""Runs the C unit programs and reports each line of their Test Anything Protocol output."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.native import CHECKOUT, build

PROGRAMS = sorted(path.stem for path in (CHECKOUT / "native" / "test").glob("test_*.c"))
LINE = re.compile(r"(not )?ok (\d+) - (.*)")


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_claim_of_the_program_holds(program: str, subtests: pytest.Subtests) -> None:
    done = subprocess.run([build() / program], capture_output=True, text=True, timeout=110, check=False)
    if done.stdout.startswith("1..0 # SKIP "):
        pytest.skip(done.stdout.partition("# SKIP ")[2].strip())
    claims = [match for match in map(LINE.fullmatch, done.stdout.splitlines()) if match]
    for match in claims:
        with subtests.test(match[3]):
            assert match[1] is None, done.stdout
    assert f"1..{len(claims)}" in done.stdout.splitlines(), f"the program ended early: {done.stderr}"
    assert claims
    assert (done.returncode == 0) == all(match[1] is None for match in claims)


def test_there_are_programs() -> None:
    assert PROGRAMS
