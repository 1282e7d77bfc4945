"""A machine with an NVIDIA GPU: what its own tools say, and the CUDA program that its containers run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support import cgroupview, rootfs
from tests.support.bed import Bed

SOURCE = Path(__file__).resolve().parents[1] / "gpu/vectoradd.cu"
#: Where ``with_program`` puts it.
PROGRAM = "/usr/bin/vectoradd"


def smi(*arguments: str) -> str:
    """What the host's nvidia-smi says. Raises CalledProcessError."""
    return subprocess.run(["nvidia-smi", *arguments], check=True, capture_output=True, text=True).stdout


def view() -> str:
    """The cgroup layout of this machine that both runtimes work in."""
    names = [view.name for view in cgroupview.available()]
    return "v2" if "v2" in names else names[-1]


def compile_program(directory: Path) -> Path | None:
    """vectoradd.cu with the CUDA runtime in it; None without nvcc. Raises CalledProcessError."""
    compiler = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if compiler is None:
        return None
    program = directory / "vectoradd"
    command = [compiler, "-O2", "-cudart", "static", "-arch=native", "-o", str(program), str(SOURCE)]
    subprocess.run(command, check=True)
    return program


def with_program(bed: Bed, program: Path) -> Path:
    """A root file system that has the program at PROGRAM."""
    tree = bed.rootfs()
    rootfs.add_program(tree, program, PROGRAM)
    return tree
