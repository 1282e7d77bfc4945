"""Descriptors, children, threads and signals under the preloaded library: the quota holds, nothing hangs."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.support.native import CHECKOUT, build
from tests.support.simgpu import MIB, SimGpu, make_machine, with_gpu

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shim")
    make_machine(directory / "machine")
    source, binary = CHECKOUT / "tests/system/shim/descriptors.c", directory / "descriptors"
    subprocess.run(["gcc", "-O1", "-D_GNU_SOURCE", "-pthread", "-o", binary, source], check=True, timeout=60)
    return binary


def run(program: Path, case: str, gpu: SimGpu) -> None:
    gpu.share(memory=1000 * MIB)
    shim = {"NVC_SHIM_LIMITS": str(gpu.limits_path), "NVC_SHIM_REGION": str(gpu.region_path)}
    environment = {**os.environ, **shim, "LD_PRELOAD": str(build() / "libnvc-shim.so")}
    done = subprocess.run([program, case], env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)
    assert gpu.region().slots == (), "no slot is left"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("duplicates", id="an open file counts until its last descriptor is closed"),
        pytest.param("closing", id="a closed file gives everything back, and closing all else harms nothing"),
        pytest.param("table", id="the descriptor that the host knows a process by needs no larger table"),
        pytest.param("child", id="children of fork, vfork and clone leave the account alone and have their own"),
        pytest.param("threads", id="forks and signals amid threads that allocate do not hang"),
        pytest.param("handlers", id="signals whose handlers allocate amid an allocation harm nothing"),
    ],
)
def test_descriptors_and_children(program: Path, case: str) -> None:
    with_gpu(program.parent / "machine", partial(run, program, case))
