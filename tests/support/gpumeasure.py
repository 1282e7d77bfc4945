"""What the measurements on a real GPU have in common: parts to choose from, tables, programs, the GPU itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvc.share.limits import NODE_CONTROL, NODE_GPU, NODE_UVM, LimitsNode
from tests.support.gpuhost import smi
from tests.support.native import CHECKOUT
from tests.support.share_table import Table

#: Programs that measure.
SHARE_PROGRAMS = CHECKOUT / "tests/gpu/enforce/programs"


@dataclass(frozen=True)
class HostGpu:
    """A GPU as nvidia-smi has it. minor: of its node. bus: PCI domain << 16 | bus << 8 | device, as pair.c says it."""

    uuid: str
    minor: int
    bus: int


class Parts:
    """The parts of a directory of measurements: which of them run, and a table each.

    NVC_GPU_PARTS names those to run, with commas (default: all), NVC_GPU_TABLES the directory of the tables. To be made
    while pytest starts: tests see no NVC_ variable. prefixes: what is before the part in a file's name.
    """

    def __init__(self, *prefixes: str) -> None:
        self.prefixes = prefixes
        named = os.environ.get("NVC_GPU_PARTS", "").replace("-", "_").split(",")
        self.chosen = [word for word in named if word]
        self.directory = Path(os.environ.get("NVC_GPU_TABLES") or CHECKOUT / "build/gpu-share")
        self.tables: dict[str, Table] = {}

    def name(self, path: Path) -> str:
        """The part that a test file is; "" for another file."""
        prefix = next((prefix for prefix in self.prefixes if path.stem.startswith(prefix)), None)
        return "" if prefix is None or path.suffix != ".py" else path.stem.removeprefix(prefix)

    def leaves_out(self, path: Path) -> bool:
        """Whether the file is of a part that is not to run."""
        return bool(self.chosen) and self.name(path) not in ("", *self.chosen)

    def table(self, path: Path) -> Table:
        """The table of the part that the test file is."""
        part = self.name(path)
        if part not in self.tables:
            what = smi("--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()[0]
            self.tables[part] = Table(part, f"{what}, {os.cpu_count()} CPUs", self.directory)
        return self.tables[part]


def chosen() -> int:
    """The number that nvidia-smi gives the GPU that is measured. Raises CalledProcessError.

    It is the one of which CUDA_VISIBLE_DEVICES is the UUID, so that runs on several GPUs can go on at the same time;
    else the first.
    """
    uuids = smi("--query-gpu=uuid", "--format=csv,noheader").split()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return uuids.index(visible) if visible in uuids else 0


def first_gpu() -> tuple[str, str]:
    """UUID of the GPU that is measured, and the driver's version. Raises CalledProcessError."""
    line = smi("--query-gpu=uuid,driver_version", "--format=csv,noheader").splitlines()[chosen()]
    uuid, driver = line.split(", ")
    return uuid, driver


def gpus() -> tuple[HostGpu, ...]:
    """All of this machine, in nvidia-smi's order. Raises CalledProcessError."""
    lines = smi("--query-gpu=uuid,pci.bus_id", "--format=csv,noheader").splitlines()
    # No field of --query-gpu has it, and on a machine that is a part of a larger one it is not the index.
    minors = re.findall(r"^\s*Minor Number\s*:\s*(\d+)", smi("-q"), re.MULTILINE)
    assert len(minors) == len(lines), "nvidia-smi -q lists other GPUs than its table"
    found = []
    for line, minor in zip(lines, minors, strict=True):
        uuid, address = line.split(", ")
        domain, bus, device = (int(part, 16) for part in address.partition(".")[0].split(":"))
        found.append(HostGpu(uuid, int(minor), domain << 16 | bus << 8 | device))
    return tuple(found)


def nodes(*minors: int) -> tuple[LimitsNode, ...]:
    """The driver's nodes as a share names them, with those of the GPUs of these minors.

    None: of the GPU that is measured. Raises OSError, CalledProcessError.
    """
    kinds = {"/dev/nvidiactl": NODE_CONTROL, "/dev/nvidia-uvm": NODE_UVM}
    kinds |= {f"/dev/nvidia{minor}": NODE_GPU for minor in minors or (gpus()[chosen()].minor,)}
    numbers = {path: os.stat(path).st_rdev for path in kinds}
    return tuple(LimitsNode(kind, os.minor(numbers[path]), numbers[path]) for path, kind in kinds.items())


def total_mib() -> int:
    """Memory of the GPU that is measured, MiB. Raises CalledProcessError."""
    return int(smi("--query-gpu=memory.total", "--format=csv,noheader,nounits").splitlines()[chosen()])


def used_mib(index: int | None = None) -> int:
    """Memory in use on a GPU, as the driver says to a process without a share; MiB.

    index: nvidia-smi's number; None: the GPU that is measured.
    """
    used = smi("--query-gpu=memory.used", "--format=csv,noheader,nounits").splitlines()
    return int(used[chosen() if index is None else index])


def pids() -> set[int]:
    """The processes that have a context on a GPU, as the driver says to the host."""
    return {int(line) for line in smi("--query-compute-apps=pid", "--format=csv,noheader").split() if line.isdigit()}


def compile_programs(sources: Iterable[Path], target: Path) -> Path:
    """Compile C and CUDA programs into ``target``, several at once. Skips without nvcc; raises AssertionError."""
    compiler = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if compiler is None:
        pytest.skip("no nvcc on this machine")
    toolkit = Path(compiler).resolve().parents[1]
    stubs = [f"-L{toolkit}/{place}/stubs" for place in ("lib64", f"targets/{os.uname().machine}-linux/lib")]
    cuda = [f"-I{toolkit}/include", f"-I{SHARE_PROGRAMS}", *stubs, "-lcuda"]

    def compile_one(source: Path) -> None:
        output = ["-o", str(target / source.stem), str(source)]
        if source.suffix == ".cu":
            # Containers have no C++ library.
            alone = ["-cudart", "static", "-Xcompiler=-static-libstdc++,-static-libgcc"]
            command = [compiler, "-O2", *alone, "-arch=native", *output, *cuda, "-ldl", "-lpthread"]
        else:
            command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-rdynamic", *output, "-Wl,--as-needed", *cuda]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{source.name}: {done.stderr}"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(compile_one, sources))
    return target
