"""Containers on a real GPU: crun and runc with our hook and nothing else of NVIDIA's tooling."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import sight
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import STAGES, Container
from tests.support.gpuhost import PROGRAM, smi, with_program
from tests.support.paused import Paused
from tests.support.runtimes import OciRuntime

pytestmark = [pytest.mark.gpu, pytest.mark.system]

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: A number of the driver's that no GPU of these machines has.
OTHER = ("/dev/not-mine", 195, 77)
MANY = 64
NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def _hooks(bed: Bed, stage: str = "prestart") -> dict[str, list]:  # type: ignore[type-arg]
    return {stage: [bed.hook(stage, machine="")]}


def test_nvidia_smi_in_a_container_lists_the_hosts_gpus(bed: Bed, native: OciRuntime) -> None:
    result = bed.run(native, Container(bed.rootfs(), ["nvidia-smi", "-L"], gpu_env("all"), _hooks(bed)))
    assert (result.code, result.err) == (0, "")
    assert result.out == smi("-L")


def test_nvidia_smi_table(bed: Bed, native: OciRuntime) -> None:
    query = ("--query-gpu=name,uuid,driver_version,memory.total", "--format=csv,noheader")
    result = bed.run(native, Container(bed.rootfs(), ["nvidia-smi", *query], gpu_env("all"), _hooks(bed)))
    assert (result.code, result.out) == (0, smi(*query)), result.err


@pytest.mark.parametrize("stage", STAGES)
def test_cuda_program_computes(bed: Bed, native: OciRuntime, vectoradd: Path, stage: str) -> None:
    container = Container(with_program(bed, vectoradd), [PROGRAM], gpu_env("0", "compute"), _hooks(bed, stage))
    result = bed.run(native, container)
    assert result.code == 0, result.text
    assert result.out.endswith(" ok\n")


def test_cuda_program_without_the_hook_fails(bed: Bed, native: OciRuntime, vectoradd: Path) -> None:
    container = Container(with_program(bed, vectoradd), [PROGRAM], gpu_env("0", "compute"))
    result = bed.run(native, container)
    assert (result.code, result.out) == (1, "")


@pytest.mark.parametrize("stage", STAGES)
def test_device_cgroup_lets_the_given_nodes_through_and_no_other(bed: Bed, native: OciRuntime, stage: str) -> None:
    look = sight.arguments(nodes=NODES, make=[OTHER], libraries=LIBRARIES)
    result = bed.run(native, Container(bed.rootfs(), look, gpu_env("0"), _hooks(bed, stage)))
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert {**dict.fromkeys(NODES, "ok"), OTHER[0]: "EPERM"} == seen.nodes
    assert all(seen.libraries.values())
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    assert len(seen.lists[sight.GPUS]) == 1


def test_container_without_the_hook_has_none_of_it(bed: Bed, native: OciRuntime) -> None:
    """The kernel's own /proc/driver/nvidia is in every container; files and nodes are not, and the cgroup denies."""
    look = sight.arguments(
        make=[(f"/dev/mine{i}", 195, minor) for i, minor in enumerate((0, 255))], libraries=LIBRARIES
    )
    result = bed.run(native, Container(bed.rootfs(), look, gpu_env("all")))
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/mine0": "EPERM", "/dev/mine1": "EPERM"}
    assert [name for name in seen.lists["/dev"] if name.startswith("nvidia")] == []
    assert seen.libraries == dict.fromkeys(LIBRARIES, "")
    assert "ModifyDeviceFiles: 0" not in seen.texts[sight.PARAMS]


def test_unknown_device_is_refused(bed: Bed, native: OciRuntime) -> None:
    log = bed.directory("log") / "hook.log"
    hook = bed.hook("prestart", f"--debug={log}", machine="")
    result = bed.run(native, Container(bed.rootfs(), ["/bin/true"], gpu_env("77"), {"prestart": [hook]}))
    assert result.code != 0
    assert "device error: 77: unknown device" in log.read_text()


def test_command_line_as_dockers_hook_calls_it(bed: Bed, native: OciRuntime) -> None:
    tree = bed.rootfs()
    words = "--load-kmods configure --cuda-compat-mode=ldconfig --ldconfig=@/sbin/ldconfig --device=all"
    ldconfig = "/sbin/ldconfig.real" if os.path.exists("/sbin/ldconfig.real") else "/sbin/ldconfig"
    words = words.replace("/sbin/ldconfig", ldconfig)
    script = f"exec {bed.commands.cli} {words} --compute --utility --pid=$pid {tree}"
    container = Container(tree, ["nvidia-smi", "-L"], (), {"prestart": [bed.shell_hook(script)]})
    result = bed.run(native, container)
    assert (result.code, result.out) == (0, smi("-L")), result.err


@pytest.mark.timeout(300)
def test_sixty_four_containers_configured_at_once(bed: Bed, native: OciRuntime) -> None:
    look = sight.arguments(nodes=NODES, libraries=LIBRARIES)

    def hold(_: int) -> Paused:
        return Paused(bed, native, Container(bed.rootfs(), look))

    def configure(held: Paused) -> tuple[int, str]:
        words = ["-d", "0", "-c", "-u", f"--pid={held.pid}", str(held.tree)]
        answer = bed.call(bed.commands.nvc, "configure", *words)
        return answer.code, answer.err

    with ThreadPoolExecutor(16) as pool:
        containers = list(pool.map(hold, range(MANY)))
    with ThreadPoolExecutor(MANY) as pool:
        configured = list(pool.map(configure, containers))
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(Paused.release, containers))
    assert [(0, "")] * MANY == configured
    for result in results:
        assert result.code == 0, result.text
        seen = sight.read(result.out)
        assert dict.fromkeys(NODES, "ok") == seen.nodes
        assert all(seen.libraries.values())
    native.clean()
