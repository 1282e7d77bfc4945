"""The preloaded library's share of the GPU's time, on a simulated GPU with a real clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.simgpu import SimGpu, make_machine, with_gpu

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    return directory


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end, "nothing changed in five seconds"
        time.sleep(0.01)


def capped(gpu: SimGpu) -> None:
    probe = gpu.started(cap=1000)
    assert probe.work(500) == 0
    whole = probe.rate(500)
    assert "nvc-shim" not in probe.threads()
    gpu.share(cap=500)
    probe.info()  # a call on the driver: the library looks at its limits
    assert "nvc-shim" in probe.threads()
    time.sleep(0.1)
    half = probe.rate(1000)
    assert 0.40 < half / whole < 0.56
    gpu.share(cap=200)
    time.sleep(0.1)
    assert 0.13 < probe.rate(1000) / whole < 0.26
    assert gpu.region().slots[0].frozen_ns[0] > 500_000_000
    gpu.share(cap=1000)
    wait_until(lambda: "nvc-shim" not in probe.threads())
    assert probe.rate(500) / whole > 0.85, "everything runs again"


def test_a_cap_is_kept_and_changes_live(machine: Path) -> None:
    with_gpu(machine, capped)


def paused(gpu: SimGpu) -> None:
    probe = gpu.started(cap=1000)
    assert probe.work(500) == 0
    assert probe.rate(200) > 0
    gpu.share(paused=True)
    probe.info()
    wait_until(lambda: bool(probe.rate(50) == 0))
    assert probe.rate(300) == 0
    gpu.share(paused=False)
    wait_until(lambda: bool(probe.rate(100) > 0))
    wait_until(lambda: "nvc-shim" not in probe.threads())


def test_a_pause_holds_and_ends(machine: Path) -> None:
    with_gpu(machine, paused)


def two(gpu: SimGpu) -> None:
    first = gpu.started(cap=500)
    second = gpu.started(cap=500)
    for probe in (first, second):
        assert probe.work(500) == 0
    region = gpu.region()
    assert sum(slot.groups[0] for slot in region.slots) >= 2
    assert all(slot.threads_cap for slot in region.slots)
    first.kill()
    assert second.rate(300) > 0, "a process that died with its channels frozen holds up nobody"


def test_processes_of_a_container_keep_the_cap_in_phase(machine: Path) -> None:
    with_gpu(machine, two)
