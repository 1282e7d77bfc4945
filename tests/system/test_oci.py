"""Our hook in containers of runc and crun: at every stage, in every cgroup layout, and what the container then has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import rootfs, sight
from tests.support.bed import Bed, device_nodes, gpu_env
from tests.support.bundle import STAGES, Container
from tests.support.runtimes import OciRuntime

pytestmark = pytest.mark.system

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: A number that the driver owns and that no container here is given.
OTHER = ("/dev/not-mine", 195, 77)


def driver_version(machine: Path) -> str:
    """The version in the machine's /proc: "580.159.04"."""
    words = (machine / "proc/driver/nvidia/version").read_text().split("  ")
    return words[1].strip()


@pytest.mark.parametrize("stage", STAGES)
def test_hook_gives_the_container_its_gpu(bed: Bed, runtime: OciRuntime, stage: str) -> None:
    machine = bed.machine("h200")
    nodes = device_nodes(machine)
    look = sight.arguments(
        nodes=("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"), make=[OTHER], libraries=LIBRARIES
    )
    container = Container(bed.rootfs(), look, gpu_env("all"), {stage: [bed.hook(stage)]})
    result = bed.run(runtime, container)
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)

    # ENXIO: the device cgroup let the open through, and there is no driver behind a simulated number.
    assert dict.fromkeys(("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"), "ENXIO").items() <= seen.nodes.items()
    assert seen.numbers["/dev/nvidia0"] == nodes["/dev/nvidia0"] == (195, 0)
    assert (seen.made[OTHER[0]], seen.nodes[OTHER[0]]) == ("ok", "EPERM")

    version = driver_version(machine)
    directory = f"/usr/lib/{rootfs.multiarch()}"
    assert {name: f"{directory}/{name[:-1]}{version}" for name in LIBRARIES} == seen.libraries
    assert "ModifyDeviceFiles: 1" in (machine / "proc/driver/nvidia/params").read_text()
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    assert seen.lists[sight.GPUS] == tuple(
        sorted(path.name for path in (machine / "proc/driver/nvidia/gpus").iterdir())
    )
    assert {"ro", "nosuid", "nodev"} <= seen.mounts[f"{directory}/libcuda.so.{version}"]
    assert {"nosuid", "noexec"} <= seen.mounts["/dev/nvidia0"]


def test_container_without_the_hook_has_none_of_it(bed: Bed, runtime: OciRuntime) -> None:
    look = sight.arguments(make=[("/dev/nvidia0", 195, 0)], libraries=LIBRARIES)
    result = bed.run(runtime, Container(bed.rootfs(), look, gpu_env("all")))
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes["/dev/nvidia0"] == "EPERM"
    assert seen.libraries == dict.fromkeys(LIBRARIES, "")
    assert seen.texts[sight.PARAMS] == ""
    assert seen.lists[sight.GPUS] == ()


@pytest.mark.parametrize(
    "env",
    [pytest.param((), id="nothing-said"), pytest.param(("NVIDIA_VISIBLE_DEVICES=void",), id="void")],
)
def test_container_that_asks_for_no_gpu_is_untouched(bed: Bed, runc: OciRuntime, env: tuple[str, ...]) -> None:
    tree = bed.rootfs()
    before = rootfs.fingerprint(tree)
    look = sight.arguments(make=[("/dev/nvidia0", 195, 0)], libraries=LIBRARIES)
    result = bed.run(runc, Container(tree, look, env, {"prestart": [bed.hook("prestart")]}))
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert (seen.nodes["/dev/nvidia0"], seen.lists[sight.GPUS]) == ("EPERM", ())
    assert before == rootfs.fingerprint(tree)


@pytest.mark.parametrize("pair", [("runc", "v1"), ("runc", "v2"), ("crun", "v2")], ids="-".join)
def test_one_gpu_of_eight(bed: Bed, ask: Callable[[str, str], OciRuntime], pair: tuple[str, str]) -> None:
    machine = bed.machine("h100x8")
    others = [(f"/dev/other{minor}", 195, minor) for minor in range(8) if minor != 2]
    look = sight.arguments(nodes=["/dev/nvidia2"], make=others)
    container = Container(
        bed.rootfs(), look, gpu_env("2", "utility"), {"prestart": [bed.hook("prestart", machine="h100x8")]}
    )
    result = bed.run(ask(*pair), container)
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/nvidia2": "ENXIO", **{path: "EPERM" for path, _, _ in others}}
    assert [name for name in seen.lists["/dev"] if name[-1].isdigit() and name.startswith("nvidia")] == ["nvidia2"]
    assert len(seen.lists[sight.GPUS]) == 1
    assert set(seen.lists[sight.GPUS]) < {path.name for path in (machine / "proc/driver/nvidia/gpus").iterdir()}


def test_files_in_the_container_are_the_hosts(bed: Bed, runc: OciRuntime) -> None:
    machine = bed.machine("h200")
    listed = bed.call(bed.commands.nvc, f"--sim={machine}", "list", "--libraries", check=True).out.split()
    names = sorted({Path(path).name for path in listed if "libcuda.so" in path or "libnvidia-ml.so" in path})
    directory = f"/usr/lib/{rootfs.multiarch()}"
    command = ["/bin/sha256sum", *(f"{directory}/{name}" for name in names)]
    result = bed.run(runc, Container(bed.rootfs(), command, gpu_env("0"), {"prestart": [bed.hook("prestart")]}))
    assert result.code == 0, result.text
    wanted = bed.call(
        "sha256sum", *(str(machine) + path for path in listed if Path(path).name in names), check=True
    ).out
    assert len(names) == 2
    assert sorted(line.split()[0] for line in wanted.splitlines()) == sorted(
        line.split()[0] for line in result.out.splitlines()
    )


def test_nvidia_smi_of_the_machine_runs_inside(bed: Bed, runc: OciRuntime) -> None:
    hooks = {"prestart": [bed.hook("prestart", machine="h100x8")]}
    result = bed.run(runc, Container(bed.rootfs(), ["nvidia-smi", "-L"], gpu_env("2,5"), hooks))
    assert result.code == 0, result.text
    lines = result.out.splitlines()
    inventory = bed.call(
        bed.commands.nvc, f"--sim={bed.machine('h100x8')}", "info", "--csv", check=True
    ).out.splitlines()
    uuids = [line.split(",")[4] for line in inventory if "GPU-" in line]
    assert [next(uuid for uuid in uuids if uuid in line) for line in lines] == [uuids[2], uuids[5]]
