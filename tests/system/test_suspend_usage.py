"""Usage of tenants that are suspended again and again, beside what the device counts (tests/gpu: suspended-long)."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support.native import build
from tests.support.simgpu import SimGpu, with_gpu
from tests.support.spoken import Spoken
from tests.support.suspend_rounds import Rounds, Usage, in_parallel
from tests.system.test_energy import machine as machine
from tests.system.test_guarded_smoke import environment
from tests.system.test_suspend import Bed, bed

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

GIB = 1 << 30
#: Seconds; nanoseconds of a kernel.
SECONDS, KERNEL = 30.0, 500_000
#: The part that a sum may be off. The simulated NVML says what is at the moment, here four times a second, and memory
#: comes and goes every second or two: runs of 30 s were up to 5.3 % off. On a GPU it is 2 % of the GPU's counters.
PART = 0.1


def test_sums_are_what_the_device_counted(machine: Path) -> None:
    """Two tenants, one of two processes, sleep and wake for half a minute; a third one computes for most of it."""

    def inside(gpu: SimGpu) -> None:
        os.environ.update(environment(gpu))
        with bed(gpu) as made, Usage(made.agent, gpu.work / "readings", environment(gpu)) as usage:
            act(made, usage)

    def act(made: Bed, usage: Usage) -> None:
        one, two, third = (made.agent.tenant(memory=60 * GIB) for _ in range(3))
        programs = [made.program(one, "alloc 40000", "fill 7")], [made.program(two, "alloc 9000") for _ in "ab"]
        every = [
            Rounds("one", one, programs[0], ("peek", "sync")),
            Rounds("two", two, programs[1], ("sync",)),
        ]
        burn = [str(build() / "cuda_burn"), str(SECONDS * 0.7), str(KERNEL), "wait"]
        made.programs.append(Spoken(third.wrap(burn), environment(made.gpu), seconds=60))
        assert made.programs[-1].line() == "ready=1"
        in_parallel([each.undisturbed for each in every])
        assert every[0].answers == [["7"], ["0"]]
        usage.start()
        made.programs[-1].tell("")
        until = time.monotonic() + SECONDS
        in_parallel([partial(each.run, until) for each in every])
        usage.stop()
        assert not any(each.failures for each in every)
        assert [each.same for each in every] == [each.done for each in every]
        assert min(each.done for each in every) >= SECONDS / 10
        found = usage.compare()
        print(*found, sep="\n")
        assert all(abs(each.error) <= PART for each in found), found

    with_gpu(machine, inside)
