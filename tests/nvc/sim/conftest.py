"""A simulated machine of each kind, made once for all tests that only look at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.model import Host
from nvc.sim.create import create
from tests.support.isolation import in_namespaces
from tests.support.native import build


@pytest.fixture(scope="session")
def templates() -> Path:
    return build()


@pytest.fixture(scope="session")
def made(templates: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Host]:
    hosts: dict[str, Host] = {}

    def get(name: str) -> Host:
        if name not in hosts:
            hosts[name] = create(str(tmp_path_factory.mktemp("machine") / name), name)
        return hosts[name]

    return get


@pytest.fixture
def served(tmp_path: Path) -> Callable[..., Any]:
    """Runs a function with the directory of a served machine, in namespaces that end with it."""
    from tests.support.manager import with_manager  # skips the importing test where FUSE is missing

    build("nvc-sim-manager")

    def run(body: Callable[[Path], Any], *, pid: bool = False) -> Any:
        return in_namespaces(with_manager, tmp_path, body, pid=pid, timeout=40)

    return run
