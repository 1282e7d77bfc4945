"""A simulated machine of each kind, made once for all tests that only look at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.model import Host
from nvc.sim.create import create
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
