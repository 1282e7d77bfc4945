"""rpc.codec in a process that has not imported the json package, as every hook is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path[:0] = [{root!r}]
from rpc.codec import CodecError, loads
if {blocked}:
    sys.meta_path.clear()
try:
    loads({text!r})
except CodecError as error:
    print(error)
"""


def complaint(text: str, *, blocked: bool = False) -> str:
    script = SCRIPT.format(root=str(ROOT), text=text, blocked=blocked)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=20, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("text", ["{", '"abc', '{"a"', "[1 2]", '{"a":1,}', '"\\x"', "[1,", "nul"])
def test_broken_text_is_an_error_with_its_place(text: str) -> None:
    assert "line 1 column" in complaint(text)


def test_without_a_way_to_import_it_is_an_error_without_a_place() -> None:
    assert complaint("{", blocked=True) == "malformed"
