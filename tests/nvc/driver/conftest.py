from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.model import Host
from nvc.sim.create import create
from tests.support.cached_machine import Machine
from tests.support.driver_root import DriverRoot, compile_templates
from tests.support.native import build


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("driver-templates")
    compile_templates(directory)
    return directory


@pytest.fixture
def driver_root(tmp_path: Path, templates: Path) -> DriverRoot:
    return DriverRoot(tmp_path / "root", templates)


class Lines:
    """A log that keeps its lines."""

    enabled = True

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)

    warn = error = info

    def has(self, part: str) -> bool:
        return any(part in line for line in self.lines)


@pytest.fixture
def log() -> Lines:
    return Lines()


@pytest.fixture
def machine(driver_root: DriverRoot, tmp_path: Path) -> Machine:
    """The driver root with an inventory cache."""
    return Machine(driver_root, tmp_path / "run/nvc/inventory.json")


Made = Callable[[str], Host]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A simulated machine by its name, made once a module."""
    build()
    hosts: dict[str, Host] = {}

    def get(name: str) -> Host:
        if name not in hosts:
            hosts[name] = create(str(tmp_path_factory.mktemp("machine") / name), name)
        return hosts[name]

    return get
