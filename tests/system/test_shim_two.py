"""The preloaded library on a simulated machine with two GPUs: each has its own limit, however it is named.

CUDA's order, NVML's and the nodes' differ on this machine: what CUDA calls the fastest is NVML's second, whose node has
the first minor.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from nvc.share.model import ResolvedGpu
from nvc.sim import description
from tests.support.native import build
from tests.support.repeated import good
from tests.support.simgpu import MIB, UUID, Probe, SimGpu, make_machine, with_gpu

pytestmark = pytest.mark.root
GIB = 1 << 30
OTHER = "GPU-22222222-3333-4444-5555-666666666666"
#: NVML's order.
GPUS, MINORS = (UUID, OTHER), (1, 0)
LIMITS = (4 * GIB, 6 * GIB)
OUT_OF_MEMORY = 2
#: Microseconds of a kernel.
STEP = 2000
_PROGRAM = Path(__file__).with_name("shim") / "pair.py"
_H200 = Path(description.__file__).with_name("machines") / "h200.json"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    text = json.loads(_H200.read_text())
    newer = {**text["gpu_models"]["NVIDIA H200"], "arch": "10.0", "memory": 183359}
    text["gpu_models"]["NVIDIA B200"] = newer
    text["gpus"] = [
        {"model": model, "minor": minor, "uuid": uuid, "bus_id": bus}
        for model, minor, uuid, bus in zip(
            ("NVIDIA H200", "NVIDIA B200"), MINORS, GPUS, ("0000:00:06.0", "0000:00:07.0"), strict=True
        )
    ]
    given = tmp_path_factory.mktemp("description") / "two.json"
    given.write_text(json.dumps({**text, "name": "two"}))
    make_machine(directory, str(given))
    return directory


def share(gpu: SimGpu, *memory: int, cap: int = 1000) -> None:
    """Limits of both, in NVML's order; 0: none. cap: of each, in 1/1000."""
    gpu.share(gpus=tuple(ResolvedGpu(*of_it, cap) for of_it in zip(GPUS, MINORS, memory, strict=True)))


def started(gpu: SimGpu, *, preload: bool = True, **environment: str) -> tuple[Probe, list[str]]:
    """A program with a context on every GPU, and whose they are."""
    program = gpu.probe(preload=preload, program=_PROGRAM, **environment)
    status, count = program.init()
    assert status == 0
    uuids = program.uuids()
    assert len(uuids) == count
    return program, uuids


def by_its_own(gpu: SimGpu) -> None:
    share(gpu, *LIMITS)
    program, uuids = started(gpu)
    assert uuids == [OTHER, UUID], "the fastest first"
    limits = [LIMITS[GPUS.index(uuid)] for uuid in uuids]
    start = program.info()
    assert program.total() == [total for _, total in start] == limits
    for at, limit in enumerate(limits):
        count, status = program.alloc(at, 2, 10_000)
        assert (status, limit - GIB < count * 2 * MIB < limit) == (OUT_OF_MEMORY, True)
        assert program.info()[at][0] < 2 * MIB
    assert [gpu.region().used(at) for at in (0, 1)] == [
        limit - program.info()[uuids.index(uuid)][0] for uuid, limit in zip(GPUS, LIMITS, strict=True)
    ]
    assert program.free() == 0
    assert program.info() == start


def test_each_gpu_is_full_at_its_own_limit(machine: Path) -> None:
    with_gpu(machine, by_its_own)


def however_named(gpu: SimGpu) -> None:
    share(gpu, *LIMITS)
    limits = dict(zip(GPUS, LIMITS, strict=True))
    fastest = {"0,1": [OTHER, UUID], "1,0": [UUID, OTHER], "0": [OTHER], "1": [UUID]}
    by_bus = {"0,1": [UUID, OTHER], "1,0": [OTHER, UUID], "0": [UUID], "1": [OTHER]}
    named = {UUID: [UUID], OTHER: [OTHER], f"{OTHER},{UUID}": [OTHER, UUID], "GPU-2": [OTHER], "0,-1,1": None}
    for order, numbers in (("FASTEST_FIRST", fastest), ("PCI_BUS_ID", by_bus)):
        for visible, expected in {**numbers, **named}.items():
            variables = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
            program, uuids = started(gpu, **variables)
            assert uuids == (expected or numbers["0"]), (visible, order)
            assert program.total() == [total for _, total in program.info()] == [limits[uuid] for uuid in uuids]
            assert [total for total, _, _ in program.nvml()] == list(LIMITS), "NVML has an order of its own"
            program.kill()


def test_a_limit_follows_its_gpu_whatever_its_number_is(machine: Path) -> None:
    with_gpu(machine, however_named)


def refused(gpu: SimGpu) -> None:
    share(gpu, *LIMITS)
    for visible in ("", "-1", "2", "1,1", "GPU-9"):
        statuses = []
        for preload in (False, True):
            program = gpu.probe(preload=preload, program=_PROGRAM, CUDA_VISIBLE_DEVICES=visible)
            statuses.append(program.init())
        assert statuses[0] == statuses[1], visible
        assert statuses[0][0] != 0, visible


def test_names_of_no_gpu_have_the_drivers_answer(machine: Path) -> None:
    with_gpu(machine, refused)


def one_without(gpu: SimGpu) -> None:
    share(gpu, LIMITS[0], 0)
    bare, _ = started(gpu, preload=False, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    program, _ = started(gpu, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert program.total() == [LIMITS[0], bare.total()[1]]
    assert program.alloc(1, 1024, 100) == [100, 0]
    assert program.alloc(0, 1024, 100) == [3, OUT_OF_MEMORY]
    assert program.free() == 0


def test_a_gpu_without_a_limit_is_whole_beside_one_with(machine: Path) -> None:
    with_gpu(machine, one_without)


def where_it_is(gpu: SimGpu) -> None:
    share(gpu, *LIMITS)
    program, _ = started(gpu, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    start = [free for free, _ in program.info()]

    def taken() -> list[int]:
        return [(was - free) // MIB for was, (free, _) in zip(start, program.info(), strict=True)]

    assert program.created(1, 0, 256) == 0
    assert taken() == [0, 256], "charged where it is, not where the context is"
    assert program.pooled(0, 1, 256) == 0
    assert taken() == [256, 256], "charged where the pool is, not where the stream is"
    assert program.copied(64) is True
    assert taken() == [320, 320]
    assert program.created(1, 0, LIMITS[1] // MIB) == OUT_OF_MEMORY
    assert program.created(0, 1, LIMITS[0] // MIB) == OUT_OF_MEMORY
    assert program.free() == 0
    assert taken() == [0, 0]


def test_memory_is_charged_to_the_gpu_that_it_is_on(machine: Path) -> None:
    with_gpu(machine, where_it_is)


def captured(gpu: SimGpu) -> None:
    share(gpu, *LIMITS)
    program, _ = started(gpu, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    start = [free for free, _ in program.info()]
    first = program.captured(0, 256, 3)
    assert set(first) == {0}
    once = [free for free, _ in program.info()]
    assert once == [start[0] - 256 * MIB, start[1]]
    assert set(program.captured(1, 256, 20)) == {0}
    assert [free for free, _ in program.info()] == [once[0], start[1] - 256 * MIB], "launches do not add up"
    beyond = program.captured(0, LIMITS[0] // MIB, 1)
    assert OUT_OF_MEMORY in beyond
    assert set(beyond) <= {0, OUT_OF_MEMORY}
    assert program.free() == 0
    assert [free for free, _ in program.info()] == start


def test_captured_graphs_are_charged_where_they_run(machine: Path) -> None:
    with_gpu(machine, captured)


def wrong(gpu: SimGpu) -> None:
    share(gpu, *LIMITS)
    bare, _ = started(gpu, preload=False)
    program, _ = started(gpu)
    before = program.info()
    for at in (0, 1):
        answers = program.wrong(at)
        assert answers == bare.wrong(at)
        assert answers[0] == 0
        assert answers[1] != 0, "the second free of the same"
        assert program.info() == before


def test_a_wrong_free_has_the_drivers_answer_and_changes_no_count(machine: Path) -> None:
    with_gpu(machine, wrong)


def smi(gpu: SimGpu) -> None:
    share(gpu, *LIMITS)
    folder = build()
    environment = {
        "PATH": "/usr/bin:/bin",
        "LD_PRELOAD": str(folder / "libnvc-shim.so"),
        "LD_LIBRARY_PATH": str(next(gpu.machine.rglob("libnvidia-ml.so.1")).parent),
        "NVC_SHIM_LIMITS": str(gpu.limits_path),
        "NVC_SHIM_REGION": str(gpu.region_path),
        "CUDA_VISIBLE_DEVICES": "1,0",
    }
    command = [next(gpu.machine.rglob("nvidia-smi")), "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    expected = [f"{uuid}, {limit // MIB}" for uuid, limit in zip(GPUS, LIMITS, strict=True)]
    assert [line for line in done.stdout.splitlines() if line.startswith("GPU-")] == expected


def test_nvidia_smi_shows_each_limit(machine: Path) -> None:
    with_gpu(machine, smi)


def together(gpu: SimGpu) -> None:
    """Ranks that wait for each other after every kernel, as those of a tensor-parallel program do."""
    share(gpu, *LIMITS)
    ranks = [started(gpu, CUDA_VISIBLE_DEVICES=uuid)[0] for uuid in GPUS]
    for rank in ranks:
        assert rank.prepare(0, STEP) == 0

    def steps(seconds: float) -> float:
        """A second."""
        begin, count = time.monotonic(), 0
        while time.monotonic() < begin + seconds:
            for rank in ranks:
                rank.begin("step")
            assert [rank.end() for rank in ranks] == [0, 0]
            count += 1
        return count / (time.monotonic() - begin)

    def frozen() -> list[int]:
        return [sum(slot.frozen_ns) for slot in gpu.region().slots]

    whole = steps(0.5)
    share(gpu, *LIMITS, cap=500)
    for rank in ranks:
        rank.info()  # a call on the driver: the library looks at its limits
    steps(0.5)

    def measured() -> tuple[list[float], float]:
        """The part of the time that each is stopped for, and steps a second."""
        before, begin = frozen(), time.monotonic()
        capped = steps(2)
        return [
            (now - was) / 1e9 / (time.monotonic() - begin) for now, was in zip(frozen(), before, strict=True)
        ], capped

    def holds(got: tuple[list[float], float]) -> bool:
        # If one were on while the other is off, there would be two steps a period: a tenth of those without a cap.
        return [0.44 < part < 0.56 for part in got[0]] == [True, True] and got[1] > 0.25 * whole

    good(measured, holds, "both are stopped half of the time")


def test_ranks_that_wait_for_each_other_are_stopped_together(machine: Path) -> None:
    with_gpu(machine, together)


def crowded(gpu: SimGpu) -> None:
    """Four processes on one GPU have a period of 250 ms; one that is alone on the other has it too."""
    share(gpu, *LIMITS, cap=500)
    alone = started(gpu, CUDA_VISIBLE_DEVICES=OTHER)[0]
    beside = [started(gpu, CUDA_VISIBLE_DEVICES=UUID)[0] for _ in range(4)]
    at = GPUS.index(OTHER)

    def off_phase() -> float:
        """How long the GPU was last kept from the process that is alone on it, in seconds."""
        seen = [gpu.region().slots[0].frozen_ns[at]]
        end = time.monotonic() + 30
        while len(seen) < 3:
            assert time.monotonic() < end, "it is not kept off any more"
            time.sleep(0.002)
            now = gpu.region().slots[0].frozen_ns[at]
            seen += [now] if now != seen[-1] else []
        return (seen[2] - seen[1]) / 1e9

    def comes(low: float, high: float) -> bool:
        end = time.monotonic() + 30
        while not low < off_phase() < high:
            if time.monotonic() > end:
                return False
        return True

    assert comes(0.1, 0.2)
    for program in beside:
        program.kill()
    assert alone.info()
    assert comes(0.0, 0.05)


def test_all_gpus_of_a_container_have_one_period(machine: Path) -> None:
    with_gpu(machine, crowded)
