"""The preloaded library's share of the GPU's time, on a simulated GPU with a real clock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nvc.bindings import rmcontrol
from nvc.linux import syscalls
from nvc.share.region import set_own
from tests.support.leftovers import wait_until
from tests.support.repeated import good
from tests.support.simgpu import Probe, SimGpu, make_machine, with_gpu

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    return directory


def measured(gpu: SimGpu, probe: Probe) -> tuple[float, float]:
    """The part of a second in which the process was not frozen, by its own account, and kernels a second."""
    before, begin = gpu.region().slots[0].frozen_ns[0], time.monotonic()
    rate = probe.rate(1000)
    frozen = gpu.region().slots[0].frozen_ns[0] - before
    return 1 - frozen / 1e9 / (time.monotonic() - begin), rate


def capped(gpu: SimGpu) -> None:
    probe = gpu.started(cap=1000)
    assert probe.work(500) == 0

    def parts() -> list[tuple[float, float]]:
        """For caps of 50 and 20 %: the part not frozen; kernels as part of those without a cap, just after."""
        assert "nvc-shim" not in probe.threads()
        found = []
        for cap in (500, 200):
            before = gpu.region().slots[0].frozen_ns[0]
            gpu.share(cap=cap)
            probe.info()  # a call on the driver: the library looks at its limits
            wait_until(lambda: "nvc-shim" in probe.threads())
            wait_until(lambda before=before: gpu.region().slots[0].frozen_ns[0] > before)
            found.append(measured(gpu, probe))
        gpu.share(cap=1000)
        wait_until(lambda: "nvc-shim" not in probe.threads())
        whole = probe.rate(500)
        return [(part, rate / whole) for part, rate in found]

    def holds(got: list[tuple[float, float]]) -> bool:
        (half, its_rate), (fifth, other_rate) = got
        return 0.44 < half < 0.56 and 0 < its_rate < 0.75 and 0.14 < fifth < 0.26 and 0 < other_rate < 0.45

    good(parts, holds, seconds=60)
    before = gpu.region().slots[0].frozen_ns[0]
    wait_until(lambda: bool(probe.rate(200) > 0))
    assert gpu.region().slots[0].frozen_ns[0] == before


def test_a_cap_is_kept_and_changes_live(machine: Path) -> None:
    with_gpu(machine, capped)


def followed(gpu: SimGpu) -> None:
    probe = gpu.started(cap=1000)
    assert probe.work(500) == 0
    assert probe.events() == 0
    assert "nvc-shim" not in probe.threads()
    gpu.share(cap=300)
    wait_until(lambda: "nvc-shim" in probe.threads())
    wait_until(lambda: measured(gpu, probe)[0] < 0.4)
    gpu.share(cap=1000)
    wait_until(lambda: "nvc-shim" not in probe.threads())
    gpu.share(cap=1000, paused=True)
    wait_until(lambda: bool(probe.rate(100) == 0))
    gpu.share(cap=1000)
    wait_until(lambda: bool(probe.rate(100) > 0))


def test_a_program_that_makes_no_call_on_the_driver_follows_too(machine: Path) -> None:
    """libcuda polls in a thread of its own: measured on an H200 with driver 580."""
    with_gpu(machine, followed)


def controlled(gpu: SimGpu) -> None:
    probe = gpu.started(cap=1000)
    assert probe.control() > 0
    gpu.share(cap=300)
    time.sleep(0.2)
    assert "nvc-shim" not in probe.threads(), "nothing polls, and nothing was called"
    assert probe.control() > 0
    wait_until(lambda: "nvc-shim" in probe.threads())  # the thread names itself


def test_a_call_without_a_next_one_takes_up_a_changed_share(machine: Path) -> None:
    with_gpu(machine, controlled)


def slices(gpu: SimGpu, probe: Probe) -> set[int]:
    """Microseconds that a process's compute groups have, from outside."""
    slot = next(slot for slot in gpu.region().slots if slot.pid == probe.process.pid)
    with syscalls.pidfd_open(probe.process.pid) as pinned:
        found = set()
        for channel in slot.channels:
            with syscalls.pidfd_getfd(pinned, channel.descriptor) as control:
                found.add(rmcontrol.get_timeslice(control, channel.client, channel.group) or 0)
    return found


def regrouped(gpu: SimGpu) -> None:
    first = gpu.started(cap=1000)
    assert first.events() == 0
    assert slices(gpu, first) == {2048}
    # Not `started`, which writes the limits anew, and so makes every process look.
    second, third, fourth = (gpu.probe() for _ in range(3))
    assert [second.init(), third.init()] == [0, 0]
    groups = sum(slot.groups[0] for slot in gpu.region().slots)
    wait_until(lambda: slices(gpu, first) == {2048 // groups})
    assert slices(gpu, third) == {2048 // groups}
    for probe in (second, third):
        probe.kill()
    assert fourth.init() == 0
    fourth.info()  # clears the slots of the dead
    assert len(gpu.region().slots) == 2
    wait_until(lambda: slices(gpu, first) == {1024})


def test_a_program_that_makes_no_call_divides_the_slice_with_a_new_one(machine: Path) -> None:
    """Else n processes of a container had slices for 1 + 1/2 + 1/3 and so on, beside those of another container."""
    with_gpu(machine, regrouped)


def lowered(gpu: SimGpu) -> None:
    probe = gpu.started(cap=1000)
    assert probe.work(500) == 0
    assert probe.events() == 0
    with gpu.region_path.open("r+b") as region:
        set_own(region.fileno(), 0, None, 400, None)
    wait_until(lambda: "nvc-shim" in probe.threads())
    wait_until(lambda: measured(gpu, probe)[0] < 0.5)


def test_a_cap_that_the_container_lowers_itself_is_kept_at_once(machine: Path) -> None:
    with_gpu(machine, lowered)


def paused(gpu: SimGpu) -> None:
    probe = gpu.started(cap=1000)
    assert probe.work(500) == 0
    wait_until(lambda: bool(probe.rate(200) > 0))
    gpu.share(paused=True)
    probe.info()
    wait_until(lambda: bool(probe.rate(300) == 0))
    gpu.share(paused=False)
    wait_until(lambda: bool(probe.rate(100) > 0))
    wait_until(lambda: "nvc-shim" not in probe.threads())


def test_a_pause_holds_and_ends(machine: Path) -> None:
    with_gpu(machine, paused)


def off_phase(gpu: SimGpu, slot: int) -> float:
    """How long the process was last kept off, in seconds: what its own count grew by."""
    seen = [gpu.region().slots[slot].frozen_ns[0]]
    end = time.monotonic() + 30
    while len(seen) < 3:
        assert time.monotonic() < end, "it is not kept off any more"
        time.sleep(0.002)
        now = gpu.region().slots[slot].frozen_ns[0]
        seen += [now] if now != seen[-1] else []
    return (seen[2] - seen[1]) / 1e9


def several(gpu: SimGpu) -> None:
    probes = [gpu.started(cap=500) for _ in range(4)]
    for probe in probes:
        assert probe.work(500) == 0
    # Half of 250 ms, which four have; a process that is alone has 50 ms.
    wait_until(lambda: 0.1 < off_phase(gpu, 0) < 0.2)
    for probe in probes[1:]:
        probe.kill()
    wait_until(lambda: off_phase(gpu, 0) < 0.05)


def test_the_period_grows_with_the_processes_and_falls_when_they_die(machine: Path) -> None:
    with_gpu(machine, several)


def two(gpu: SimGpu) -> None:
    first = gpu.started(cap=500)
    second = gpu.started(cap=500)
    for probe in (first, second):
        assert probe.work(500) == 0
    assert sum(slot.groups[0] for slot in gpu.region().slots) >= 2
    wait_until(lambda: [slot.threads_cap for slot in gpu.region().slots] == [True, True])
    first.kill()
    # A process that died with its channels frozen holds up no other.
    wait_until(lambda: bool(second.rate(300) > 0))


def test_processes_of_a_container_keep_the_cap_in_phase(machine: Path) -> None:
    with_gpu(machine, two)
