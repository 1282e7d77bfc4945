"""Shares on a real GPU: programs that measure, shares without a container, and the tables of what was found.

NVC_GPU_PARTS names the parts to run (the file names without test_share_, with commas; default: all), NVC_GPU_TABLES
the directory of the tables (default build/gpu-share, one PART.md each).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nvc.share import preload
from nvc.share.model import ResolvedGpu
from tests.support import loose_share
from tests.support import native as native_parts
from tests.support.bed import Bed
from tests.support.frameworks import Frameworks
from tests.support.gpumeasure import (
    SHARE_PROGRAMS,
    HostGpu,
    Parts,
    compile_programs,
    first_gpu,
    gpus,
    nodes,
    used_mib,
)
from tests.support.loose_share import LooseShare
from tests.support.share_table import Table
from tests.support.spoken import Spoken

PROGRAMS = SHARE_PROGRAMS
PARTS = Parts("test_share_")

Shares = Callable[..., LooseShare]
Starts = Callable[..., Spoken]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return PARTS.leaves_out(collection_path) or None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for table in PARTS.tables.values():
        terminalreporter.write_line("")
        terminalreporter.write(table.markdown())


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """The table of the part that the test is in."""
    return PARTS.table(request.path)


@pytest.fixture(scope="session")
def libraries() -> Path:
    """The directory of the preloaded libraries, compiled here."""
    return native_parts.build("preload/.made")


@pytest.fixture(scope="session")
def programs(whole_bed: Bed) -> Path:
    """The directory with all measuring programs, compiled here."""
    sources = sorted((*PROGRAMS.glob("*.c"), *PROGRAMS.glob("*.cu")))
    return compile_programs(sources, whole_bed.directory("programs"))


def _preloaded(libraries: Path, *gpus: ResolvedGpu) -> str:
    """What a container with these shares preloads."""
    memory, api = any(gpu.memory for gpu in gpus), any(gpu.oversubscribe for gpu in gpus)
    return " ".join(str(libraries / name) for name in preload.names(memory=memory, api=api))


@pytest.fixture
def places() -> Iterator[Callable[[], Path]]:
    """Makes directories where containers' shares lie: a first store into a file of a disk takes milliseconds."""
    with tempfile.TemporaryDirectory(dir="/run", prefix="nvct") as directory:
        yield lambda: Path(tempfile.mkdtemp(dir=directory, prefix="share"))


@pytest.fixture
def share(places: Callable[[], Path], libraries: Path) -> Shares:
    """Makes a share of the first GPU, with the libraries that a container gets; arguments: fields of ResolvedGpu."""
    uuid, driver = first_gpu()

    def make(**fields: Any) -> LooseShare:
        gpu = ResolvedGpu(uuid, 0, **fields)
        return LooseShare(places(), [gpu], nodes(), driver, _preloaded(libraries, gpu))

    return make


@pytest.fixture(scope="session")
def pair() -> tuple[HostGpu, HostGpu]:
    """Two GPUs of this machine; skips where it has one."""
    found = gpus()
    if len(found) < 2:
        pytest.skip("needs two GPUs")
    return found[0], found[1]


@pytest.fixture
def pair_share(places: Callable[[], Path], libraries: Path, pair: tuple[HostGpu, HostGpu]) -> Shares:
    """Makes a share of both GPUs of ``pair``; arguments: fields of the first's ResolvedGpu, and of the second's."""
    driver = first_gpu()[1]

    def make(*fields: Mapping[str, Any]) -> LooseShare:
        both = [ResolvedGpu(gpu.uuid, gpu.minor, **of_it) for gpu, of_it in zip(pair, fields, strict=True)]
        minors = (gpu.minor for gpu in pair)
        return LooseShare(places(), both, nodes(*minors), driver, _preloaded(libraries, *both))

    return make


@pytest.fixture
def start(bed: Bed, programs: Path) -> Iterator[Starts]:
    """Starts a measuring program, or (with a suffix) a Python script of programs/, under a share or under none.

    more: environment variables.
    """
    started: list[Spoken] = []

    def begin(
        program: str, *arguments: object, share: LooseShare | None = None, seconds: float = 60, **more: str
    ) -> Spoken:
        command = [str(programs / program), *map(str, arguments)]
        if program.endswith(".py"):
            command = [Frameworks.find().interpreter, str(PROGRAMS / program), *map(str, arguments)]
        variables = share.variables if share is not None else {}
        environment = {**loose_share.without_ours(os.environ), **bed.env, **variables, **more}
        started.append(Spoken(command, environment, seconds=seconds))
        return started[-1]

    yield begin
    for program in started:
        program.kill()


@pytest.fixture
def driver_usage() -> Callable[[], int]:
    """``used_mib``."""
    return used_mib
