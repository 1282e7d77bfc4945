"""nvc-runtime, CDI and createContainer hooks on a real GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvc.driver.places import CACHE
from tests.support import sight
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.gpuhost import PROGRAM, smi, with_program
from tests.support.runtimes import OciRuntime
from tests.support.wrapped import Wrapped

pytestmark = [pytest.mark.gpu, pytest.mark.system]


def test_smi_through_nvc_runtime(bed: Bed, native: OciRuntime) -> None:
    host = smi("-L")

    result = Wrapped(bed, native, machine="").run(Container(bed.rootfs(), ["nvidia-smi", "-L"], gpu_env("all")))

    assert (result.code, result.out, result.err) == (0, host, "")


@pytest.mark.parametrize("value", ["0", "runtime.nvidia.com/gpu=0"])
def test_cuda_through_nvc_runtime(bed: Bed, native: OciRuntime, vectoradd: Path, value: str) -> None:
    container = Container(with_program(bed, vectoradd), [PROGRAM], gpu_env(value, "compute"))

    result = Wrapped(bed, native, machine="").run(container)

    assert result.code == 0, result.text
    assert result.out.endswith(" ok\n")


def test_cuda_by_cdi_through_nvc_runtime(bed: Bed, native: OciRuntime, vectoradd: Path) -> None:
    directory = bed.directory("cdi")
    hook = str(bed.commands.directory / "nvc-cdi-hook")
    bed.call(
        bed.commands.nvc, "cdi", "generate", f"--output={directory}/nvidia.yaml", f"--cdi-hook-path={hook}", check=True
    )
    config = f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{directory}"]'
    tree = with_program(bed, vectoradd)

    result = Wrapped(bed, native, config, machine="").run(
        Container(tree, [PROGRAM], ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0",))
    )
    assert result.code == 0, result.text
    assert result.out.endswith(" ok\n")

    env = ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", "NVIDIA_REQUIRE_CUDA=cuda>=99.0")
    refused = Wrapped(bed, native, config, machine="").run(Container(tree, ["/bin/true"], env))
    assert refused.code == 1
    assert "unsatisfied condition: cuda>=99.0" in refused.err


@pytest.mark.parametrize("namespaces", [(), ("cgroup",)], ids=["hosts-cgroups", "private-cgroups"])
def test_create_container_with_a_cold_inventory(
    bed: Bed, native: OciRuntime, vectoradd: Path, namespaces: tuple[str, ...]
) -> None:
    Path(CACHE).unlink(missing_ok=True)
    stage = "createContainer"
    hooks = {stage: [bed.hook(stage, machine="")]}
    container = Container(
        with_program(bed, vectoradd), [PROGRAM], gpu_env("0", "compute"), hooks, namespaces=namespaces
    )

    result = bed.run(native, container)

    assert result.code == 0, result.text
    assert result.out.endswith(" ok\n")
    # What was opened for NVML is closed: a node that the container did not ask for is denied.
    Path(CACHE).unlink(missing_ok=True)
    look = sight.arguments(nodes=["/dev/nvidiactl"], make=[("/dev/not-mine", 195, 77)])
    none = Container(bed.rootfs(), look, gpu_env("none", "utility"), hooks, namespaces=namespaces)
    assert sight.read(bed.run(native, none).out).nodes == {"/dev/nvidiactl": "ok", "/dev/not-mine": "EPERM"}
