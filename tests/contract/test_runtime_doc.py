"""docs/user/runtime.md names every mode of nvc-runtime and every gated device (keys: test_hook_doc.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.config import MODES
from hook.runtime.modify import GATED
from nvc.cdi.gated import ROWS

USER = Path(__file__).parents[2] / "docs/user"
TEXT = (USER / "runtime.md").read_text()
DEVICES = (USER / "cdi.md").read_text().partition("### Devices of other drivers")[2]


@pytest.mark.parametrize("mode", MODES)
def test_named(mode: str) -> None:
    assert f"| `{mode}` |" in TEXT


def test_gated_devices_are_named() -> None:
    assert tuple(row.variable for row in ROWS) == GATED
    for row in ROWS:
        assert f"`{row.variable}`" in TEXT
        (found,) = [line for line in DEVICES.splitlines() if line.endswith(f"| `{row.variable}` |")]
        assert all(f"`{name}`" in found for name in (*row.nodes, *row.files))
