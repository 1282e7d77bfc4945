"""The commands of docs/user/migrate/hami.md and time-slicing.md that nvc-py can answer alone, and what they print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.inject import api
from nvc.sim import create

PAGES = Path(__file__).parents[4] / "docs/user/migrate"
_CHECK = re.compile(r"^```sh\n(nvc-py share check .*)\n```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["hami.md", "time-slicing.md"])
def test_what_a_container_would_get(command: Callable[..., Any], tmp_path: Path, page: str) -> None:
    ((line, shown),) = _CHECK.findall((PAGES / page).read_text())
    machine, config = tmp_path / "h200", tmp_path / "config.toml"
    create.create(str(machine), "h200")
    config.write_text("")
    program, *words = shlex.split(line)

    code, out, err = command(f"--sim={machine}", *words, f"--config={config}", program=program, on=api)

    assert code == 0, err
    assert out.startswith(shown)
    assert all(rest.startswith("with ") for rest in out.removeprefix(shown).splitlines())
