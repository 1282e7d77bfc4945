"""docs/user/runtime.md names every mode and key of nvc-runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.config import MODES, HookConfig
from hook.runtime.modify import GATED
from nvc.base.config_file import KEYS, RUNTIME
from nvc.cdi.gated import ROWS

TEXT = (Path(__file__).parents[2] / "docs/user/runtime.md").read_text()
NAMES = [
    *(f"`{mode}`" for mode in MODES),
    *(f"`{section.removeprefix(RUNTIME).lstrip('.')}.{key}`".replace("`.", "`") for section, key, _, field in KEYS
      if section.startswith(RUNTIME) and field and "hook" not in section and "legacy" not in section),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_named(name: str) -> None:
    assert name in TEXT


def test_gated_devices_are_named() -> None:
    assert tuple(row.variable for row in ROWS) == GATED
    for row in ROWS:
        assert all(f"`{name}`" in TEXT for name in (row.variable, *row.nodes, *row.files))


def test_defaults_are_the_code_s() -> None:
    defaults = HookConfig()

    assert f'`["{defaults.runtimes[0]}", "{defaults.runtimes[1]}"]`' in TEXT
    assert f"| `{defaults.mode}` |" in TEXT
    assert f"`{defaults.default_kind}`" in TEXT
