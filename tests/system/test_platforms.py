"""WSL2 and Tegra in real containers: what their drivers consist of arrives, and nothing of an ordinary driver's."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvc.sim.description import load
from nvc.sim.platforms import FOREIGN_STORE, store
from tests.support import rootfs, sight
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container, Hook
from tests.support.runtimes import OciRuntime
from tests.support.wrapped import Wrapped

pytestmark = pytest.mark.system

LIBRARIES = f"/usr/lib/{rootfs.multiarch()}"
STAGES = ("prestart", "createRuntime", "createContainer")
TEGRA_NODES = ("/dev/nvmap", "/dev/nvhost-ctrl-gpu", "/dev/nvhost-gpu", "/dev/nvgpu/igpu0/ctrl")
RO = {"ro", "nosuid", "nodev"}


def hooks(bed: Bed, machine: str, stage: str = "prestart", *options: str) -> dict[str, list[Hook]]:
    return {stage: [bed.hook(stage, *options, machine=machine)]}


@pytest.mark.parametrize("stage", STAGES)
def test_nvidia_smi_below_wsl(bed: Bed, runc: OciRuntime, stage: str) -> None:
    container = Container(bed.rootfs(), ["nvidia-smi", "-L"], gpu_env("all"), hooks(bed, "wsl2", stage))
    result = bed.run(runc, container)
    assert result.code == 0
    assert [gpu.uuid in line for gpu, line in zip(load("wsl2").gpus, result.out.splitlines(), strict=True)] == [
        True
    ] * 2


def test_what_a_container_below_wsl_has(bed: Bed, runc: OciRuntime) -> None:
    machine = load("wsl2")
    place = store(machine)
    other = ("/dev/other", 10, 1047999)
    names = ["libcuda.so.1", "libnvidia-ml.so.1", "libdxcore.so"]
    look = sight.arguments(
        nodes=["/dev/dxg", "/dev/nvidiactl"],
        make=[other],
        libraries=names,
        lists=[place, FOREIGN_STORE, "/etc/nvidia", sight.GPUS],
    )
    env = gpu_env("all", "all")
    result = bed.run(runc, Container(bed.rootfs(), look, env, hooks(bed, "wsl2")))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.nodes["/dev/nvidiactl"] == "ENOENT"
    # The cgroup lets dxg through, and nothing else of the misc devices.
    assert seen.nodes["/dev/dxg"] in ("ENODEV", "ENXIO")
    assert seen.nodes[other[0]] == "EPERM"
    assert {Path(path).name for path in seen.libraries.values()} == set(names)
    assert all(Path(path).parent == Path(LIBRARIES) or "/lib/" in path for path in seen.libraries.values())
    assert set(seen.lists[place]) >= {"libcuda.so.1.1", "libnvidia-ml.so.1", "nvidia-smi", "nvcubins.bin"}
    assert seen.lists[FOREIGN_STORE] == ()
    assert seen.lists["/etc/nvidia"] == ()
    for name in seen.lists[place]:
        assert seen.mounts[f"{place}/{name}"] >= RO
    # Two GPUs, one mount each.
    points = [line.split()[4] for line in seen.texts[sight.MOUNTINFO].splitlines()]
    assert sorted(set(points)) == sorted(points)


def test_capabilities_do_not_take_the_way_to_windows_away(bed: Bed, runc: OciRuntime) -> None:
    look = sight.arguments(libraries=["libcuda.so.1", "libdxcore.so", "libnvcuvid.so.1"])
    result = bed.run(runc, Container(bed.rootfs(), look, gpu_env("all", "utility"), hooks(bed, "wsl2")))
    found = sight.read(result.out).libraries
    assert (found["libcuda.so.1"], found["libnvcuvid.so.1"]) == ("", "")
    assert found["libdxcore.so"]


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_container_on_a_tegra_has(bed: Bed, runc: OciRuntime, stage: str) -> None:
    look = sight.arguments(
        nodes=[*TEGRA_NODES, "/dev/nvidiactl"],
        make=[("/dev/other", 505, 7)],
        libraries=["libcuda.so.1", "libnvrm_gpu.so", "libcudnn.so.8"],
        lists=["/usr/lib/firmware/tegra23x", "/etc/nvidia"],
    )
    result = bed.run(runc, Container(bed.rootfs(), look, gpu_env("all", "all"), hooks(bed, "tegra-orin", stage)))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.nodes.pop("/dev/other") == "EPERM"
    assert seen.nodes.pop("/dev/nvidiactl") == "ENOENT"
    assert seen.nodes.pop("/dev/nvmap") in ("ENODEV", "ENXIO")
    assert set(seen.nodes.values()) == {"ENXIO"}
    assert seen.libraries == {
        "libcuda.so.1": f"{LIBRARIES}/tegra/libcuda.so.1.1",
        "libnvrm_gpu.so": f"{LIBRARIES}/tegra/libnvrm_gpu.so",
        "libcudnn.so.8": "",
    }
    assert seen.lists["/usr/lib/firmware/tegra23x"] == ("gpmu_ucode.bin",)
    assert seen.lists["/etc/nvidia"] == ()
    for path in ("/usr/lib/firmware/tegra23x", "/etc/nv_tegra_release", f"{LIBRARIES}/tegra/libcuda.so.1.1"):
        assert seen.mounts[path] >= RO


def test_every_list_when_the_image_asks(bed: Bed, runc: OciRuntime) -> None:
    look = sight.arguments(libraries=["libcudnn.so.8"])
    env = gpu_env("0", "compute", "NVIDIA_REQUIRE_JETPACK=csv-mounts=all")
    result = bed.run(runc, Container(bed.rootfs(), look, env, hooks(bed, "tegra-orin")))
    assert sight.read(result.out).libraries == {"libcudnn.so.8": f"{LIBRARIES}/libcudnn.so.8.6.0"}


def test_none_is_the_files_without_a_node(bed: Bed, runc: OciRuntime) -> None:
    look = sight.arguments(nodes=TEGRA_NODES, libraries=["libnvrm_gpu.so"])
    result = bed.run(runc, Container(bed.rootfs(), look, gpu_env("none"), hooks(bed, "tegra-orin")))
    seen = sight.read(result.out)
    assert seen.nodes == dict.fromkeys(TEGRA_NODES, "ENOENT")
    assert seen.libraries["libnvrm_gpu.so"]


@pytest.mark.parametrize("machine", ["wsl2", "tegra-orin"])
def test_requirements_count_there_too(bed: Bed, runc: OciRuntime, machine: str) -> None:
    env = gpu_env("all", "compute", "NVIDIA_REQUIRE_CUDA=cuda>=99.0")
    result = bed.run(runc, Container(bed.rootfs(), ["true"], env, hooks(bed, machine)))
    assert result.code != 0
    assert "unsatisfied condition: cuda>=99.0" in result.err


@pytest.mark.parametrize("machine", ["wsl2", "tegra-orin"])
def test_configure_twice_is_configure_once(bed: Bed, runc: OciRuntime, machine: str) -> None:
    tree = bed.rootfs()
    extra = "--require=csv-mounts=all" if machine == "tegra-orin" else ""
    words = f"configure --device=all --compute --utility {extra} --require='cuda>=11.0' --pid=$pid {tree}"
    once = f"{bed.commands.cli} --sim={bed.machine(machine)} {words}"
    look = sight.arguments(libraries=["libcuda.so.1"])
    result = bed.run(runc, Container(tree, look, (), {"prestart": [bed.shell_hook(f"{once} && {once}")]}))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.libraries["libcuda.so.1"]
    points = [line.split()[4] for line in seen.texts[sight.MOUNTINFO].splitlines()]
    assert sorted(set(points)) == sorted(points)


def test_a_broken_list_stops_the_container_with_its_name(bed: Bed, runc: OciRuntime) -> None:
    machine = bed.new_machine("tegra-orin")
    place = bed.machine(machine) / "etc/nvidia-container-runtime/host-files-for-container.d/drivers.csv"
    place.write_bytes(b"lib, /usr/lib/a.so\n\0\0\0")
    tree = bed.rootfs()
    before = rootfs.fingerprint(tree)
    result = bed.run(runc, Container(tree, ["true"], gpu_env("all"), hooks(bed, machine)))
    assert result.code != 0
    assert "drivers.csv, line 2: not text" in result.err
    assert rootfs.fingerprint(tree) == before


@pytest.mark.parametrize("mode", ["auto", "csv"])
def test_through_nvc_runtime_on_a_tegra(bed: Bed, runc: OciRuntime, mode: str) -> None:
    look = sight.arguments(nodes=["/dev/nvhost-gpu"], libraries=["libcuda.so.1"])
    wrapped = Wrapped(bed, runc, f'mode = "{mode}"', "tegra-orin")
    result = wrapped.run(Container(bed.rootfs(), look, gpu_env("all")))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/nvhost-gpu": "ENXIO"}
    assert seen.libraries["libcuda.so.1"]


@pytest.mark.parametrize(("machine", "node"), [("wsl2", "/dev/dxg"), ("tegra-orin", "/dev/nvhost-gpu")])
def test_by_a_cdi_specification(bed: Bed, runc: OciRuntime, machine: str, node: str) -> None:
    directory = bed.directory("cdi")
    spec, hook = str(directory / "nvidia.yaml"), bed.commands.hook.replace("nvc-hook", "nvc-cdi-hook")
    words = ("cdi", "generate", f"--nvc-hook-path={hook}", f"--output={spec}")
    bed.call(bed.commands.nvc, f"--sim={bed.machine(machine)}", *words, check=True)
    look = sight.arguments(nodes=[node], libraries=["libcuda.so.1"])
    config = f'mode = "cdi"\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{directory}"]'
    wrapped = Wrapped(bed, runc, config, machine)
    result = wrapped.run(Container(bed.rootfs(), look, ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0",)))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.nodes[node] in ("ENODEV", "ENXIO")
    assert seen.libraries["libcuda.so.1"]
