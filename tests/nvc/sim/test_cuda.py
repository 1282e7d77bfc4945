"""The simulated libcuda with a manager behind the nodes: what native/test's programs and other processes see."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvc.sim.description import load
from tests.support.chrooted import served, with_programs

pytestmark = pytest.mark.root
CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return with_programs("h200", tmp_path_factory.mktemp("cuda"), "cuda_alloc", "cuda_burn", "cuda_claims")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> str:
    return with_programs("h100x8", tmp_path_factory.mktemp("cuda8"), "cuda_alloc")


def numbers(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: float(value) for name, _, value in (line.partition("=") for line in done.stdout.splitlines())}


def test_keeps_every_claim(root: str) -> None:
    done = served(root, "/cuda_claims")
    assert [line for line in done.stdout.splitlines() if not line.startswith("ok ")] == []
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 45)


def test_says_once_that_it_is_simulated(root: str) -> None:
    assert served(root, "/cuda_alloc", "0").stderr == "libcuda: SIMULATED machine h200, nothing will run on a GPU\n"


def test_gives_what_the_card_has_and_then_out_of_memory(root: str) -> None:
    """The counts and errors are those of one real H200 (580.159.04), piece for piece."""
    seen = numbers(served(root, "/cuda_alloc", "200"))
    for allocator in ("plain", "virtual", "asynchronous"):
        assert (seen[allocator], seen[f"{allocator}_error"]) == (139, 2)
    assert (seen["managed"], seen["managed_error"], seen["array"], seen["host"], seen["small"]) == (200, 0, 1, 1, 1024)
    assert (seen["leaked_kib"], seen["context_error"]) == (0, 0)


def test_a_context_takes_what_a_real_one_takes(root: str) -> None:
    seen = numbers(served(root, "/cuda_alloc", "0"))
    assert 513 << 10 <= seen["start_total_kib"] - seen["start_free_kib"] <= 527 << 10


def test_kernels_take_their_time(root: str) -> None:
    seen = numbers(served(root, "/cuda_burn", "0.3", "2000000"))
    assert 0 < seen["finished"] * 2 <= seen["milliseconds"]


#: Of simulated time (native/sim/manager_engine.h, libcuda_build.c): what a group runs for, and what changing it costs.
SLICE_US, SWITCH_US = 2048, 215


def waited_for_processor() -> float:
    """Seconds for which, so far, any program of this computer waited for a processor.

    "some" of /proc/pressure/cpu (the kernel's accounting/psi.rst), or the run queues' delays, added up.
    """
    try:
        some = Path("/proc/pressure/cpu").read_text()
    except OSError:
        # Field 8: nanoseconds of waiting on that processor (scheduler/sched-stats.rst).
        lines = [line.split() for line in Path("/proc/schedstat").read_text().splitlines() if line.startswith("cpu")]
        return sum(int(line[8]) for line in lines) / 1e9
    return int(some.partition("total=")[2].split()[0]) / 1e6


@pytest.mark.parametrize("programs", [1, 2])
def test_programs_get_all_of_the_gpu_that_the_model_gives_them(root: str, programs: int) -> None:
    """A waiter is woken in time: an engine with work is never idle.

    Never more than the model says; less than four fifths of it only when the computer is busy with other things, as
    its processors' pressure tells.
    """
    expected = 1000.0 if programs == 1 else 1000.0 * SLICE_US / (2 * (SLICE_US + SWITCH_US))
    together = " & ".join([f"chroot {root} /cuda_burn 0.5 1000000"] * programs)
    rates = []
    for _ in range(3):
        began, waited = time.monotonic(), waited_for_processor()
        done = subprocess.run(
            [sys.executable, "-m", "nvc", "sim", "run", root, "--", "sh", "-c", f"{together} & wait"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        rates = [float(rate) for rate in re.findall(r"per_second=(\S+)", done.stdout)]
        assert len(rates) == programs, done.stderr
        # Batches of 11 pieces: the last of one program may run when the other has ended.
        assert sum(rates) <= programs * expected * 1.1
        if min(rates) >= expected * 0.8:
            return
        busy = (waited_for_processor() - waited) / (time.monotonic() - began)
        if busy > 0.1:
            pytest.skip(f"this computer is busy: processes waited for a processor for {busy:.0%} of the time")
    pytest.fail(f"{rates} a second, of {expected:.0f}")


def test_nvml_says_how_busy_a_gpu_is_and_what_it_draws(root: str) -> None:
    asking = f"PYTHONPATH={CHECKOUT} {sys.executable} {Path(__file__).parent}/programs/ask_load.py {root}"

    def load(command: str) -> dict[str, int]:
        words = [sys.executable, "-m", "nvc", "sim", "run", root, "--", "sh", "-c", command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        (found,) = json.loads(done.stdout.splitlines()[-1])["gpus"]
        return dict(found)

    idle = load(f"{asking} 0")
    busy = load(f"chroot {root} /cuda_burn 3 1000000 >/dev/null & {asking} 2")
    assert (idle["utilization"], idle["power"], idle["power_limit"]) == (0, 70_000, 700_000)
    assert busy["utilization"] > 50
    assert busy["power"] == 70_000 + 6_300 * busy["utilization"]


def test_visible_devices_choose_and_order(two: str) -> None:
    machine = load("h100x8")
    first, second = machine.gpus[0].uuid, machine.gpus[1].uuid

    def start(value: str) -> int:
        return served(two, "/cuda_alloc", "0", env={"CUDA_VISIBLE_DEVICES": value}).returncode

    assert [start(value) for value in ("0", "7,0", f"{first},{second}", "1,abc")] == [0, 0, 0, 0]
    assert [start(value) for value in ("", "-1", "8,0", "abc", "0,0", "GPU-")] == [1] * 6


def test_nvidia_smi_asks_the_manager(root: str) -> None:
    words = ("nvidia-smi", "--query-gpu=memory.total,memory.used,memory.free,uuid,name")
    done = served(root, *words, "--format=csv,noheader,nounits")
    total, used, free, uuid, name = done.stdout.strip().split(", ")
    assert (used, uuid, name) == ("0", load("h200").gpus[0].uuid, "NVIDIA H200")
    assert 0 < int(free) < int(total)
    header = served(root, *words, "--format=csv").stdout.splitlines()[0]
    assert header == "memory.total [MiB], memory.used [MiB], memory.free [MiB], uuid, name"
    assert re.fullmatch(r"\d+ MiB, .*", served(root, *words, "--format=csv,noheader").stdout.strip())
    wrong = served(root, "nvidia-smi", "--query-gpu=foo", "--format=csv")
    assert (wrong.returncode, wrong.stdout) == (2, 'Field "foo" is not a valid field to query.\n\n')
