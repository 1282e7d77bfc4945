"""A host's driver and a container's root, made from nothing (``tests.support.injection``)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nvc.linux import raw_ctypes, syscalls
from tests.support import injection, ldconfig, native


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: tests only look at it."""
    return injection.make_driver_root(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    return injection.make_rootfs(tmp_path / "rootfs")


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static program that tells what it sees instead of making a cache."""
    directory = tmp_path_factory.mktemp("probe")
    subprocess.run(["gcc", "-static", "-w", "-o", str(directory / "probe"), ldconfig.PROBE], check=True)
    return directory / "probe"


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a test is parametrized with, for ``ldconfig.run``."""
    chosen: str = request.param
    if chosen.endswith("standing by"):
        monkeypatch.setattr(syscalls, "standby", native.extension().standby)
    elif chosen in ldconfig.EARLY:
        monkeypatch.setattr(syscalls, "standby", raw_ctypes.standby)
    return chosen
