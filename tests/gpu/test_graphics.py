"""Vulkan, EGL and OpenCL on a real GPU, in containers of our hook, nvc-runtime and CDI spec.

NVC_GPU_LOADERS names a directory into which Debian packages were unpacked: loaders, their headers, and the X libraries
that NVIDIA's Vulkan driver needs (libvulkan1 libegl1 libglvnd0 libgles2 ocl-icd-libopencl1, libvulkan-dev libegl-dev
libgles-dev opencl-c-headers, libx11-6 libxext6 libxcb1 libxau6 libxdmcp6 libbsd0 libmd0). Without it the tests are
skipped. Machines with a GPU had no DRM node: those are tested on simulated ones (tests/system/test_graphics.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import gpuhost, rootfs
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.leftovers import until
from tests.support.runtimes import OciRuntime, Result
from tests.support.wrapped import Wrapped

pytestmark = [pytest.mark.gpu, pytest.mark.system]

SOURCES = Path(__file__).with_name("graphics")
PROGRAMS = {"vulkan_compute": "computed", "egl_render": "rendered", "opencl_add": "computed"}
#: Shared objects that go into the container's image.
LOADERS = re.compile(r"lib(vulkan|EGL|GLdispatch|GLESv2|OpenGL|OpenCL|X11|Xext|xcb|Xau|Xdmcp|bsd|md)\.so\.[0-9.]+")
SHARE, QUOTA_MIB = "mem=4Gi,cap=50%", 4096


@pytest.fixture(scope="module")
def loaders() -> Path:
    place = os.environ.get("NVC_GPU_LOADERS", "")
    if not place:
        pytest.skip("NVC_GPU_LOADERS names no directory with Vulkan's, EGL's and OpenCL's loaders")
    return Path(place)


@pytest.fixture(scope="module")
def programs(loaders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the compiled programs."""
    directory = tmp_path_factory.mktemp("programs")
    for name in PROGRAMS:
        words = ["-std=gnu11", "-O1", "-Wno-deprecated-declarations", f"-I{loaders}/usr/include"]
        subprocess.run(["gcc", *words, "-o", directory / name, SOURCES / f"{name}.c", "-ldl"], check=True)
    return directory


@pytest.fixture(scope="module")
def image(whole_bed: Bed, loaders: Path, programs: Path) -> Path:
    """A root file system with loaders and programs; containers have copies."""
    tree = whole_bed.rootfs()
    libraries = tree / "usr/lib" / rootfs.multiarch()
    for path in sorted((loaders / "usr/lib" / rootfs.multiarch()).iterdir()):
        if LOADERS.fullmatch(path.name):
            shutil.copy(path, libraries / path.name, follow_symlinks=False)
    for name in PROGRAMS:
        shutil.copy(programs / name, tree / "usr/bin" / name)
    # As images of nvidia/opencl do: a driver that was not installed by a distribution brings no such file.
    vendors = tree / "etc/OpenCL/vendors"
    vendors.mkdir(parents=True)
    (vendors / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    return tree


@pytest.fixture
def runtime(ask: Callable[[str, str], OciRuntime]) -> OciRuntime:
    return ask("crun", gpuhost.view())


Way = Callable[[Bed, OciRuntime, Container], Result]


def by_hook(bed: Bed, runtime: OciRuntime, container: Container) -> Result:
    return bed.run(runtime, replace(container, hooks={"prestart": [bed.hook("prestart", machine="")]}))


def by_runtime(bed: Bed, runtime: OciRuntime, container: Container) -> Result:
    return Wrapped(bed, runtime, machine="").run(container)


def by_cdi(bed: Bed, runtime: OciRuntime, container: Container) -> Result:
    """With a spec of all capabilities, of which the container's own leave the others out."""
    directory, hook = bed.directory("cdi"), bed.commands.directory / "nvc-cdi-hook"
    bed.call(bed.commands.nvc, "cdi", "generate", "-o", f"{directory}/n.yaml", f"--cdi-hook-path={hook}", check=True)
    config = f'mode = "cdi"\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{directory}"]'
    return Wrapped(bed, runtime, config, machine="").run(container)


def container(bed: Bed, image: Path, command: Sequence[str], capabilities: str, share: str = "") -> Container:
    tree = rootfs.copy(image, bed.directory("tree"))
    annotations = {"nvc.share": share} if share else {}
    return Container(
        tree, [f"/usr/bin/{command[0]}", *command[1:]], gpu_env("0", capabilities), annotations=annotations
    )


@pytest.mark.parametrize("way", [by_hook, by_runtime, by_cdi])
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_finds_the_gpu_and_the_result_is_right(
    bed: Bed, runtime: OciRuntime, image: Path, program: str, way: Way
) -> None:
    result = way(bed, runtime, container(bed, image, [program], "compute,graphics"))
    assert result.code == 0, result.text
    assert re.search(r"^(gpu|renderer) .*NVIDIA", result.out, re.MULTILINE), result.out
    assert result.out.endswith(f"{PROGRAMS[program]}\n")


@pytest.mark.parametrize("way", [by_runtime, by_cdi])
@pytest.mark.parametrize(
    ("program", "capabilities"),
    [("vulkan_compute", "compute,utility"), ("egl_render", "compute,utility"), ("opencl_add", "utility")],
)
def test_without_the_capability_it_finds_nothing(
    bed: Bed, runtime: OciRuntime, image: Path, program: str, capabilities: str, way: Way
) -> None:
    result = way(bed, runtime, container(bed, image, [program], capabilities))
    assert (result.code, result.out) == (1, ""), result.text


def denied(agent: RunningAgent) -> list[str]:
    """Reasons of the events; one of a reason may stand for those behind it."""
    lines = [json.loads(line) for line in agent.log.read_text().splitlines() if line.startswith("{")]
    return sorted({line["reason"] for line in lines if line.get("event") == "denial"})


@pytest.mark.parametrize("graphics", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_under_a_share_it_is_held_or_refused(
    bed: Bed, runtime: OciRuntime, image: Path, program: str, graphics: bool
) -> None:
    """What draws is made where the node's settings say so: contexts that draw do not stop at any instruction."""
    words = [program, str(2 * QUOTA_MIB)] if program == "vulkan_compute" else [program]
    with RunningAgent(bed, "", config=f"[agent]\ngraphics = {str(graphics).lower()}\n") as agent:
        wrapped = Wrapped(bed, runtime, agent.settings, machine="")
        result = wrapped.run(container(bed, image, words, "compute,graphics", SHARE))
        is_refused = not graphics and program != "opencl_add"
        assert not is_refused or until(lambda: bool(denied(agent)), seconds=5), result.text  # by the agent's next look
        denials = denied(agent)
    print(f"{program} under {SHARE}, graphics {graphics}: {result.code}, {result.text!r}, denials {denials}")
    if is_refused:
        assert result.code != 0, result.text
        return
    assert result.code == 0 and PROGRAMS[program] in result.out, (result.text, denials)
    if program == "vulkan_compute":
        # -1, -2: VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY
        took = re.search(r"took (\d+) result (-?\d+)", result.out)
        assert took and int(took[1]) <= QUOTA_MIB and took[2] in ("-1", "-2"), result.out
