"""docs/user/runtime.md names every mode of nvc-runtime and every gated device (keys: test_hook_doc.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.config import MODES
from hook.runtime.modify import GATED
from nvc.cdi.gated import ROWS

TEXT = (Path(__file__).parents[2] / "docs/user/runtime.md").read_text()


@pytest.mark.parametrize("mode", MODES)
def test_named(mode: str) -> None:
    assert f"| `{mode}` |" in TEXT


def test_gated_devices_are_named() -> None:
    assert tuple(row.variable for row in ROWS) == GATED
    for row in ROWS:
        assert all(f"`{name}`" in TEXT for name in (row.variable, *row.nodes, *row.files))
