"""The guard on a real GPU, without containers: tenants behind the filter, and the tables of what was found.

NVC_GPU_PARTS names the parts to run: fairness, caps2, attach, guardcost, guardquota, attacks, faults, stop (default:
all), NVC_GPU_TABLES the directory of the tables (default build/gpu-share, one PART.md each).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.agent import scheduler
from tests.support import loose_share
from tests.support.bed import Bed
from tests.support.frameworks import Frameworks
from tests.support.gpumeasure import SHARE_PROGRAMS, Parts, compile_programs, first_gpu, nodes
from tests.support.guarded import GuardedTenant, Guarding, build_launcher
from tests.support.share_table import Table
from tests.support.spoken import Spoken

PARTS = Parts("test_guard_", "test_")
PROGRAMS = Path(__file__).with_name("programs")
#: Of tests/gpu/share/programs.
SHARED = ("burn.cu", "context.c", "cost.cu", "quota.c", "race.c", "victim.c")

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
def programs(whole_bed: Bed) -> Path:
    """The directory with the measuring programs, compiled here."""
    sources = [SHARE_PROGRAMS / name for name in SHARED]
    return compile_programs([*sources, *sorted(PROGRAMS.glob("*.c*"))], whole_bed.directory("programs"))


@pytest.fixture(scope="session")
def launcher(whole_bed: Bed) -> Path:
    """filtered.c, and its filter beside it."""
    return build_launcher(whole_bed.directory("launcher"))


@pytest.fixture
def guarding(bed: Bed, launcher: Path) -> Iterator[Guarding]:
    """A guard without tenants. Every test has its own."""
    uuid, driver = first_gpu()
    with Guarding(bed.directory("guard"), uuid, nodes(), driver, launcher) as guarded:
        yield guarded


@pytest.fixture
def calm(bed: Bed, launcher: Path) -> Iterator[Guarding]:
    """A guard whose tenants are looked at as seldom as an agent does. Every test has its own."""
    uuid, driver = first_gpu()
    with Guarding(bed.directory("guard"), uuid, nodes(), driver, launcher, look=scheduler.LOOK) as guarded:
        yield guarded


@pytest.fixture
def environment(bed: Bed) -> dict[str, str]:
    """What programs are started with."""
    return {**loose_share.without_ours(os.environ), **bed.env}


@pytest.fixture
def start(programs: Path, environment: dict[str, str]) -> Iterator[Starts]:
    """Starts a measuring program, or (with a suffix) a Python script, as a tenant's or without a tenant."""
    started: list[Spoken] = []

    def begin(program: str, *arguments: object, tenant: GuardedTenant | None = None, seconds: float = 60) -> Spoken:
        words = [str(programs / program)]
        if program.endswith(".py"):
            words = [Frameworks.find().interpreter, str(SHARE_PROGRAMS / program)]
        command = [*words, *map(str, arguments)]
        started.append(Spoken(tenant.wrap(command) if tenant else command, environment, seconds=seconds))
        return started[-1]

    yield begin
    for program in started:
        program.kill()
