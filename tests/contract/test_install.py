"""Every command that is installed is in the test bed, and can be started (tests/packaging installs them)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.support.launchers import _MODULES

ROOT = Path(__file__).parents[2]
COMMANDS = dict(
    line.split() for line in (ROOT / "tools/install").read_text().split("commands='\n")[1].split("'\n")[0].splitlines()
)


def test_the_test_bed_has_the_same_commands() -> None:
    assert COMMANDS == _MODULES


def test_every_module_has_the_function_that_is_called() -> None:
    for module in set(COMMANDS.values()):
        found = importlib.util.find_spec(module)
        assert found is not None and found.origin is not None
        assert "\ndef run() -> " in Path(found.origin).read_text(), module
