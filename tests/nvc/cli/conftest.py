"""How the command-line tests call the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from nvc.cli.main import main
from nvc.cli.share.commands import share
from nvc.cli.top.command import top
from tests.support.inventories import two_gpus
from tests.support.library import FakeLibrary


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def library() -> FakeLibrary:
    """The library on a machine with two GPUs."""
    return FakeLibrary(two_gpus())


@pytest.fixture
def command(library: FakeLibrary, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run ``nvidia-container-cli`` (or ``program``) with these words, on ``library``."""

    def run(*words: str, program: str = "nvidia-container-cli", on: FakeLibrary = library) -> Ran:
        code = main(words, program, on)
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def usual_agent(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the commands take this socket where --agent does not name one."""

    def use(socket: str) -> None:
        for one in (top, *share.commands.values()):
            for option in one.params:
                if option.name == "socket":
                    monkeypatch.setattr(option, "default", socket)

    return use
