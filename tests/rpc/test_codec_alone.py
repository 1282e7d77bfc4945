"""rpc.codec in a process that has not imported the json package, as every hook is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPLAIN = Path(__file__).parent / "programs/complain.py"


def complaint(text: str, *, blocked: bool = False) -> str:
    command = [sys.executable, "-I", "-S", COMPLAIN, ROOT, str(int(blocked)), text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("text", ["{", '"abc', '{"a"', "[1 2]", '{"a":1,}', '"\\x"', "[1,", "nul"])
def test_broken_text_is_an_error_with_its_place(text: str) -> None:
    assert "line 1 column" in complaint(text)


def test_without_a_way_to_import_it_is_an_error_without_a_place() -> None:
    assert complaint("{", blocked=True) == "malformed"
