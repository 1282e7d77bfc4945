"""The simulated libcuda with a manager behind the nodes: what native/test's programs see, and who else sees it."""

from __future__ import annotations

import re
import subprocess

import pytest

from nvc.sim.description import load
from tests.support.chrooted import served, with_programs

pytestmark = pytest.mark.root


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
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 44)


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
