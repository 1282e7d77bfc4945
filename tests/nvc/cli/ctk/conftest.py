"""nvidia-ctk as it is typed, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from nvc.cli.ctk.main import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Ctk = Callable[..., Ran]


@pytest.fixture
def ctk(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Ctk:
    """Run nvidia-ctk with these words; no file of this machine counts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}/etc")

    def run(*words: str) -> Ran:
        code = main(words)
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return run
