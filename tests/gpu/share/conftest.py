"""Shares on a real GPU: programs that measure, shares without a container, and the tables of what was found.

NVC_GPU_PARTS names the parts to run (the file names without test_share_, with commas; default: all), NVC_GPU_TABLES
the directory of the tables (default build/gpu-share, one PART.md each).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nvc.preload import LIBRARY
from nvc.share.limits import NODE_CONTROL, NODE_GPU, NODE_UVM, LimitsNode
from nvc.share.model import ResolvedGpu
from tests.support import loose_share
from tests.support import native as native_parts
from tests.support.bed import Bed
from tests.support.frameworks import Frameworks
from tests.support.gpuhost import smi
from tests.support.loose_share import LooseShare
from tests.support.native import CHECKOUT
from tests.support.share_table import Table
from tests.support.spoken import Spoken

PROGRAMS = Path(__file__).with_name("programs")
PREFIX = "test_share_"
#: Read once: tests see no NVC_ variable.
PARTS = [word for word in os.environ.get("NVC_GPU_PARTS", "").split(",") if word]
TABLES = Path(os.environ.get("NVC_GPU_TABLES") or CHECKOUT / "build/gpu-share")
_tables: dict[str, Table] = {}

Shares = Callable[..., LooseShare]
Starts = Callable[..., Spoken]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    name = collection_path.stem
    if not PARTS or collection_path.is_dir() or not name.startswith(PREFIX):
        return None
    return name.removeprefix(PREFIX) not in PARTS


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for table in _tables.values():
        terminalreporter.write_line("")
        terminalreporter.write(table.markdown())


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """The table of the part that the test is in."""
    part = request.path.stem.removeprefix(PREFIX)
    if part not in _tables:
        what = smi("--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()[0]
        _tables[part] = Table(part, f"{what}, {os.cpu_count()} CPUs", TABLES)
    return _tables[part]


@pytest.fixture(scope="session")
def library() -> Path:
    """libnvc-shim.so, compiled here."""
    return native_parts.build("preload/.made") / LIBRARY


@pytest.fixture(scope="session")
def programs(whole_bed: Bed) -> Path:
    """The directory with all measuring programs, compiled here, several at once."""
    compiler = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if compiler is None:
        pytest.skip("no nvcc on this machine")
    toolkit = Path(compiler).resolve().parents[1]
    stubs = [f"-L{toolkit}/{place}/stubs" for place in ("lib64", f"targets/{os.uname().machine}-linux/lib")]
    cuda = [f"-I{toolkit}/include", *stubs, "-lcuda"]
    target = whole_bed.directory("programs")

    def compile_one(source: Path) -> None:
        output = ["-o", str(target / source.stem), str(source)]
        if source.suffix == ".cu":
            command = [compiler, "-O2", "-cudart", "static", "-arch=native", *output, *cuda, "-ldl", "-lpthread"]
        else:
            command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", *output, "-Wl,--as-needed", *cuda]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{source.name}: {done.stderr}"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(compile_one, sorted((*PROGRAMS.glob("*.c"), *PROGRAMS.glob("*.cu")))))
    return target


@pytest.fixture
def share(bed: Bed, library: Path) -> Shares:
    """Makes a share of the first GPU; arguments: fields of ResolvedGpu."""
    uuid, driver = smi("--query-gpu=uuid,driver_version", "--format=csv,noheader").splitlines()[0].split(", ")
    kinds = {"/dev/nvidiactl": NODE_CONTROL, "/dev/nvidia-uvm": NODE_UVM, "/dev/nvidia0": NODE_GPU}
    nodes = []
    for path, kind in kinds.items():
        number = os.stat(path).st_rdev
        nodes.append(LimitsNode(kind, os.minor(number), number))

    def make(**fields: Any) -> LooseShare:
        return LooseShare(bed.directory("share"), [ResolvedGpu(uuid, 0, **fields)], nodes, driver, library)

    return make


@pytest.fixture
def start(bed: Bed, programs: Path) -> Iterator[Starts]:
    """Starts a measuring program, or (with a suffix) a Python script of programs/, under a share or under none."""
    started: list[Spoken] = []

    def begin(program: str, *arguments: object, share: LooseShare | None = None, seconds: float = 60) -> Spoken:
        command = [str(programs / program), *map(str, arguments)]
        if program.endswith(".py"):
            command = [Frameworks.find().interpreter, str(PROGRAMS / program), *map(str, arguments)]
        variables = share.variables if share is not None else {}
        environment = {**loose_share.without_ours(os.environ), **bed.env, **variables}
        started.append(Spoken(command, environment, seconds=seconds))
        return started[-1]

    yield begin
    for program in started:
        program.kill()


def used_mib() -> int:
    """Memory in use on the first GPU, as the driver says to a process without a share; MiB."""
    return int(smi("--query-gpu=memory.used", "--format=csv,noheader,nounits").splitlines()[0])


@pytest.fixture
def truth() -> Callable[[], int]:
    """``used_mib``."""
    return used_mib
