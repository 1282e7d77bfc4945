"""Trees for the checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.doctor_tree import Tree
from tests.support.native import build


@pytest.fixture
def make_tree(tmp_path: Path) -> Callable[[str], Tree]:
    build()
    return lambda machine: Tree(str(tmp_path / "machine"), machine)
