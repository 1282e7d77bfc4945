"""Shares on a real GPU, enforced by the preloaded library or by the guard: programs that measure, shares and tenants
without a container, and the tables of what was found.

NVC_GPU_PARTS names the parts to run (the file names without test_, and without share_ or guard_ behind it, with commas;
default: all), NVC_GPU_TABLES the directory of the tables (default build/gpu-share, one PART.md each).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nvc.agent import scheduler
from nvc.share import preload
from nvc.share.model import ResolvedGpu
from tests.support import loose_share
from tests.support import native as native_parts
from tests.support.agent_tenants import AgentTenant
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
from tests.support.guarded import GuardedTenant, Guarding, build_launcher
from tests.support.loose_share import LooseShare
from tests.support.share_table import Table
from tests.support.spoken import Spoken

PROGRAMS = SHARE_PROGRAMS
PARTS = Parts("test_share_", "test_guard_", "test_")
LIBRARY, GUARD = "library", "guard"

Shares = Callable[..., LooseShare]
Starts = Callable[..., Spoken]


def streams(programs: Path, environment: Mapping[str, str], seconds: float) -> str:
    """What ``open_facts streams`` says, and its exit code; or that it did not end within so many seconds."""
    command = [str(programs / "open_facts"), "streams"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"ended after {seconds:g} s"
    return f"{done.stdout.strip()} {done.stderr.strip()[-120:]}, exit code {done.returncode}"


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


@pytest.fixture(scope="session")
def interposers(whole_bed: Bed) -> str:
    """engines.so before interpose.so: what the first changes the second sees. Beside them begin.so."""
    place = whole_bed.directory("engines")
    for name in ("engines", "interpose", "begin"):
        source = PROGRAMS / f"interpose/{name}.c"
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", f"{place}/{name}.so"]
        subprocess.run([*command, str(source), "-lpthread", "-ldl"], check=True)
    return f"{place}/engines.so:{place}/interpose.so"


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
    """Starts a measuring program, or (with a suffix) a Python script of programs/: in a share, as a tenant, or not.

    more: environment variables.
    """
    started: list[Spoken] = []

    def begin(
        program: str,
        *arguments: object,
        share: LooseShare | None = None,
        tenant: GuardedTenant | AgentTenant | None = None,
        seconds: float = 60,
        **more: str,
    ) -> Spoken:
        words = [str(programs / program)]
        if program.endswith(".py"):
            words = [Frameworks.find().interpreter, str(PROGRAMS / program)]
        command = [*words, *map(str, arguments)]
        variables = share.variables if share is not None else {}
        wrapped = tenant.wrap(command) if tenant is not None else command
        started.append(Spoken(wrapped, {**environment, **variables, **more}, seconds=seconds))
        return started[-1]

    yield begin
    for program in started:
        program.kill()


class Enforced:
    """A share of the first GPU, under one of the enforcers."""

    def __init__(self, held: LooseShare | GuardedTenant, start: Starts) -> None:
        self._held, self._start = held, start

    def start(self, program: str, *arguments: object, **more: Any) -> Spoken:
        """As the fixture ``start``, under this share."""
        under = {"tenant": self._held} if isinstance(self._held, GuardedTenant) else {"share": self._held}
        return self._start(program, *arguments, **under, **more)

    def used(self) -> int:
        """Bytes charged."""
        return self._held.used()

    def says_why(self) -> bool:
        """Whether a refusal for the quota was counted, where it is."""
        return not isinstance(self._held, GuardedTenant) or self._held.refused().get("over-quota", 0) > 0

    def is_empty(self) -> bool:
        """Whether nothing is charged any more: at once, or, under the guard, soon."""
        return self._held.empty() if isinstance(self._held, GuardedTenant) else self._held.used() == 0


class Enforcer:
    """What enforces shares. name: LIBRARY or GUARD."""

    def __init__(self, name: str, make: Callable[..., LooseShare | GuardedTenant], start: Starts) -> None:
        self.name, self._make, self._start = name, make, start

    def share(self, **fields: Any) -> Enforced:
        """Another share; fields: of ResolvedGpu."""
        return Enforced(self._make(**fields), self._start)


@pytest.fixture(params=[LIBRARY, GUARD])
def enforcer(request: pytest.FixtureRequest, start: Starts) -> Enforcer:
    """For tests of what both enforce."""
    name: str = request.param
    make = request.getfixturevalue("share") if name == LIBRARY else request.getfixturevalue("guarding").tenant
    return Enforcer(name, make, start)


@pytest.fixture
def driver_usage() -> Callable[[], int]:
    """``used_mib``."""
    return used_mib
