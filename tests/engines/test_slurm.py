"""Slurm: two nodes on this machine, GPUs by GRES, containers through nvc-runtime: docs/user/engines/slurm.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support import bundle, leftovers, sight, userland
from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.runtimes import Result
from tests.support.slurm import Slurm, of_page

pytestmark = pytest.mark.engines

Show = Callable[[str, str], None]


@pytest.fixture(scope="module", params=["here", "sid"])
def suite(request: pytest.FixtureRequest) -> str:
    """Slurm 22.05 of this machine, or 26.05 of sid."""
    return str(request.param)


@pytest.fixture(scope="module")
def slurm(bed: Bed, suite: str) -> Iterator[Slurm]:
    """The cluster of the page; both nodes have the GPUs of one simulated machine, which the runtime is told."""
    machine, root = bed.machine("h100x8"), None if suite == "here" else userland.place(suite)
    cluster = of_page(bed.token, bed.directory("slurm"), machine, bed.commands.runtime, {"NVC_SIM": str(machine)}, root)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def container(bed: Bed) -> Path:
    """A bundle that asks for all GPUs, as CUDA images do."""
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    directory = bundle.write(bed.directory("bundle"), Container(Path("rootfs"), ["/bin/sh"], env))
    bed.rootfs().rename(directory / "rootfs")
    return directory


def srun(
    slurm: Slurm, container: Path, options: Sequence[str], command: Sequence[str], env: Mapping[str, str] | None = None
) -> Result:
    return slurm.call("srun", "--quiet", *options, f"--container={container}", *command, env=env)


def uuids(bed: Bed) -> list[str]:
    listed = bed.call(bed.commands.nvc, f"--sim={bed.machine('h100x8')}", "info", "--csv", check=True).out
    return re.findall(r"GPU-[0-9a-f-]{36}", listed)


def test_two_nodes_are_there(slurm: Slurm, show: Show) -> None:
    result = slurm.call("sinfo", "--noheader", "-N", "-o", "%N %G")

    assert result.out.split("\n")[:2] == ["n1 gpu:8", "n2 gpu:8"]
    show("sinfo -N -o '%N %G'", result.out)


def test_a_step_gets_the_gpus_of_its_job(bed: Bed, slurm: Slurm, container: Path, show: Show) -> None:
    result = srun(slurm, container, ["--gres=gpu:2"], ["nvidia-smi", "-L"])

    assert result.code == 0, result.text
    assert re.findall(r"GPU-[0-9a-f-]{36}", result.out) == uuids(bed)[:2]
    show("srun --gres=gpu:2 --container=BUNDLE nvidia-smi -L", result.out)


def test_jobs_at_the_same_time_get_different_gpus(bed: Bed, slurm: Slurm, container: Path, show: Show) -> None:
    """The first job holds node n1's first three GPUs; the second's are others."""
    hold = slurm.call("salloc", "--quiet", "--no-shell", "-w", "n1", "--gres=gpu:3")
    assert hold.code == 0, hold.text
    try:
        result = srun(slurm, container, ["-w", "n1", "--gres=gpu:2"], ["nvidia-smi", "-L"])
        assert re.findall(r"GPU-[0-9a-f-]{36}", result.out) == uuids(bed)[3:5], result.text
        look = srun(slurm, container, ["-w", "n1", "--gres=gpu:1"], sight.arguments(nodes=("/dev/nvidia3",)))
        seen = sight.read(look.out)
        assert [name for name in seen.lists["/dev"] if name[6:].isdigit()] == ["nvidia3"]
        assert seen.nodes == {"/dev/nvidia3": "ENXIO"}
        show("salloc --gres=gpu:3 & srun --gres=gpu:2 --container=BUNDLE nvidia-smi -L", result.out)
    finally:
        slurm.call("scancel", "--full", "--me")


def test_both_nodes_at_once(slurm: Slurm, container: Path, show: Show) -> None:
    command = ["/bin/sh", "-c", "echo $(hostname) $(nvidia-smi -L)"]

    result = srun(slurm, container, ["-N2", "--gres=gpu:1", "--label"], command)

    assert result.code == 0, result.text
    assert [line.count("GPU-") for line in result.out.splitlines()] == [1, 1]
    show("srun -N2 --gres=gpu:1 --label --container=BUNDLE sh -c 'echo $(hostname) $(nvidia-smi -L)'", result.out)


def test_a_batch_job(bed: Bed, slurm: Slurm, container: Path) -> None:
    output = bed.directory("batch") / "out"
    script = output.with_name("job")
    script.write_text("#!/bin/sh\nnvidia-smi -L\n")

    options = ["--wait", "--gres=gpu:1", f"--container={container}", f"--output={output}"]
    result = slurm.call("sbatch", *options, str(script))

    assert result.code == 0, result.text + output.read_text()
    assert output.read_text().count("GPU-") == 1


@pytest.mark.parametrize(
    "env", [{}, {"NVIDIA_VISIBLE_DEVICES": "all"}, {"SLURM_STEP_GPUS": "0,1,2"}], ids=["bundle", "variable", "forged"]
)
def test_a_job_without_gpus_gets_none(slurm: Slurm, container: Path, env: dict[str, str]) -> None:
    result = srun(slurm, container, [], sight.arguments(libraries=("libcuda.so.1",)), env)

    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert [name for name in seen.lists["/dev"] if name.startswith("nvidia")] == []
    assert seen.libraries == {"libcuda.so.1": ""}


def test_a_variable_adds_no_gpu(slurm: Slurm, container: Path) -> None:
    result = srun(slurm, container, ["--gres=gpu:1"], ["nvidia-smi", "-L"], {"SLURM_STEP_GPUS": "5,6"})

    assert result.out.count("GPU-") == 1, result.text


def test_numbers_of_the_node_do_not_reach_the_container(slurm: Slurm, container: Path) -> None:
    look = ["/bin/sh", "-c", "env | grep -c -E 'CUDA_VISIBLE|ORDINAL'"]

    result = srun(slurm, container, ["--gres=gpu:1"], look, {"CUDA_VISIBLE_DEVICES": "7"})

    assert result.out.strip() == "0", result.text


def test_a_requirement_that_does_not_hold(slurm: Slurm, container: Path, show: Show) -> None:
    env = {"NVIDIA_REQUIRE_CUDA": "cuda>=99.0"}

    result = srun(slurm, container, ["--gres=gpu:1"], ["/bin/true"], env)

    assert result.code != 0
    assert "requirement error: unsatisfied condition: cuda>=99.0" in result.text
    show("NVIDIA_REQUIRE_CUDA='cuda>=99.0' srun --gres=gpu:1 --container=BUNDLE true", result.err)


def test_notes_go_with_their_jobs(slurm: Slurm, container: Path) -> None:
    srun(slurm, container, ["--gres=gpu:1"], ["/bin/true"])

    assert leftovers.until(lambda: list((slurm.place / "notes").iterdir()) == [], seconds=10)
