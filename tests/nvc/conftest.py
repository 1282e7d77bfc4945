"""A host's driver and a container's root, made from nothing (``tests.support.injection``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import injection


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: tests only look at it."""
    return injection.make_driver_root(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    return injection.make_rootfs(tmp_path / "rootfs")
