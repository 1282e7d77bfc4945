"""CUDA from Java: a library of the JVM's native interface that opens libcuda, on threads of the JVM's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.support.native import build
from tests.support.simgpu import SimGpu, make_machine, with_gpu

GIB = 1 << 30
PROGRAMS = Path(__file__).parent / "programs"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("javac") is None, reason="no Java compiler here"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine; beside it the compiled program, in ``java``."""
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build()
    (directory / "java").mkdir()
    compiler = Path(shutil.which("javac") or "").resolve()
    include = compiler.parents[1] / "include"
    library = [
        "cc",
        "-shared",
        "-fPIC",
        f"-I{include}",
        f"-I{include}/linux",
        "-o",
        "libgpu.so",
        PROGRAMS / "gpu.c",
        "-ldl",
    ]
    for command in (library, [str(compiler), "-d", ".", PROGRAMS / "Gpu.java"]):
        subprocess.run(command, cwd=directory / "java", check=True, timeout=60)
    return directory


def from_java(place: Path, shared: bool, gpu: SimGpu) -> None:
    gpu.share(memory=10 * GIB)
    libraries = next(gpu.machine.rglob("libcuda.so.1")).parent
    java = Path(shutil.which("javac") or "").resolve().with_name("java")
    environment = {
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(libraries),
        "NVC_SIM_MACHINE": str(gpu.text),
        "NVC_SHIM_LIMITS": str(gpu.limits_path),
        "NVC_SHIM_REGION": str(gpu.region_path),
    }
    if shared:
        names = ("libnvc-shim.so", "libnvc-shim-managed.so")
        environment["LD_PRELOAD"] = " ".join(
            str(next((build() / "preload").glob(f"{os.uname().machine}/{name}"))) for name in names
        )
    done = subprocess.run(
        [
            java,
            "-Xmx64m",
            "-Xshare:auto",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            place / "java",
            "Gpu",
            place / "java/libgpu.so",
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "begin 0", done.stderr
    if shared:
        assert lines[1:] == ["9 2 0"] * 3, "what a context leaves of 10 GiB, then CUDA_ERROR_OUT_OF_MEMORY"
        assert gpu.region().used(0) == 0
    else:
        assert int(lines[1].split()[0]) > 100


@pytest.mark.parametrize("shared", [True, False], ids=["with a share", "without"])
def test_a_program_in_java_has_its_quota(machine: Path, shared: bool) -> None:
    with_gpu(machine, partial(from_java, machine, shared))
