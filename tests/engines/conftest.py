"""Fixtures for engines with daemons, which live as long as a file of tests, and the record of what was run.

``--measured FILE`` writes the record: every command that a test showed, how it ended, and how long the test took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support import leftovers, measured
from tests.support.bed import Bed
from tests.support.docker import Docker
from tests.support.fixtures import ask, need, runc, whole_bed

__all__ = ["ask", "need", "runc", "whole_bed"]


@pytest.fixture(scope="module")
def bed(whole_bed: Bed) -> Iterator[Bed]:
    """The worker's bed; when a file's daemons have ended, nothing of them is left."""
    yield whole_bed
    assert leftovers.everything(whole_bed.token) == []


@pytest.fixture(scope="module")
def docker(bed: Bed) -> Iterator[Docker]:
    """dockerd on a machine with eight GPUs, whose daemon.json our own command has edited."""
    place = bed.directory("docker")
    engine = Docker(bed.token, place, [str(bed.commands.directory)], {"NVC_SIM": str(bed.machine("h100x8"))})
    engine.write_config()
    bed.call(bed.commands.nvc, "runtime", "configure", "--runtime=docker", f"--config={engine.config}", check=True)
    try:
        engine.start()
        engine.import_image(bed.base)
        yield engine
    finally:
        engine.stop()


@pytest.fixture
def show(record_property: Callable[[str, object], None]) -> Callable[[str, str], None]:
    """Note a command, as a reader would type it, and what came out of it, for the record."""

    def note(command: str, output: str) -> None:
        record_property("shown", [command, output])

    return note


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measured", default="", metavar="FILE", help="write what was run, as a page of docs/measured")


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--measured", "")
    # With xdist the workers send their reports to the one process that has no workerinput.
    if target and not hasattr(config, "workerinput"):
        config.pluginmanager.register(measured.Record(target), "measured")
