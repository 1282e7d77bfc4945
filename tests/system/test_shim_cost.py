"""What an allocation costs more under the preloaded library: system calls and instructions, counted one by one.

Times differ from machine to machine and hour to hour; counts do not. The driver's part, the same with and without, is a
simulated one.
"""

from __future__ import annotations

import platform
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.support.native import CHECKOUT, build
from tests.support.simgpu import SimGpu, make_machine, with_gpu

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="counts with x86-64's trap flag"),
]

#: asm/unistd_64.h.
FSTAT, RT_SIGPROCMASK = 5, 14
#: For each of the four calls of an allocation and its free that are followed (RM_ALLOC, MAP_EXTERNAL, FREE, RM_FREE):
#: signals are blocked and given back, and the descriptor is looked at. Its two controls and CREATE_RANGE cost none.
ALLOCATION = Counter({RT_SIGPROCMASK: 8, FSTAT: 4})
#: The mapping of UVM's node, and the munmap that ends it.
MANAGED = Counter({RT_SIGPROCMASK: 4, FSTAT: 1})
#: Instructions: 4,987 and 3,420 with gcc 12; another compiler may need some more.
STEPS = {"alloc": 5600, "managed": 3900}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    return directory


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("steps") / "steps"
    source = CHECKOUT / "tests/system/shim/steps.c"
    subprocess.run(["gcc", "-O1", "-D_GNU_SOURCE", "-o", binary, source, "-ldl"], check=True, timeout=60)
    return binary


def counted(gpu: SimGpu, program: Path, *, preload: bool) -> dict[str, tuple[int, Counter[int]]]:
    """What -> its instructions, and its system calls by their numbers."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(next(gpu.machine.rglob("libcuda.so.1")).parent),
        "NVC_SIM_MACHINE": str(gpu.text),
        "NVC_SHIM_LIMITS": str(gpu.limits_path),
        "NVC_SHIM_REGION": str(gpu.region_path),
    } | ({"LD_PRELOAD": str(build() / "libnvc-shim.so")} if preload else {})
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = {}
    for what, steps, *calls in map(str.split, done.stdout.splitlines()):
        numbers = (call.split(":") for call in calls)
        found[what] = int(steps), Counter({int(number): int(count) for number, count in numbers})
    return found


def least(runs: list[dict[str, tuple[int, Counter[int]]]]) -> dict[str, tuple[int, Counter[int]]]:
    """Of each part the run with the fewest system calls: libc's own (a munmap more in one of many runs) only add."""
    return {what: min((run[what] for run in runs), key=lambda one: one[1].total()) for what in runs[0]}


def costs(gpu: SimGpu, program: Path) -> None:
    gpu.share(memory=1 << 30)
    bare, held = (least([counted(gpu, program, preload=preload) for _ in range(3)]) for preload in (False, True))
    for what, calls in (("alloc", ALLOCATION), ("managed", MANAGED)):
        steps, more = held[what][0] - bare[what][0], held[what][1] - bare[what][1]
        print(f"{what}: {bare[what][0]} instructions, {steps} more; system calls more: {dict(more)}")
        assert not bare[what][1] - held[what][1], "nothing is left out"
        assert more <= calls
        assert steps <= STEPS[what]


def test_an_allocation_costs_few_system_calls_and_instructions(machine: Path, program: Path) -> None:
    with_gpu(machine, partial(costs, program=program))
