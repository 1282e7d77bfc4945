"""A container with `graphics`, started by hook, nvc-runtime and a CDI spec: the files and nodes of its own GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import sight
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime, Result
from tests.support.wrapped import Wrapped

pytestmark = pytest.mark.system

MACHINE, VERSION = "l40s-server", "580.95.05"
#: The second of two GPUs, and the other one's.
OWN, OTHER = ("/dev/dri/card1", "/dev/dri/renderD129"), ("/dev/other", 226, 0)
DRI, BY_PATH, VULKAN, LAYERS = "/dev/dri", "/dev/dri/by-path", "/etc/vulkan/icd.d", "/etc/vulkan/implicit_layer.d"
EGL, PLATFORMS = "/usr/share/glvnd/egl_vendor.d", "/usr/share/egl/egl_external_platform.d"
LISTS = (DRI, BY_PATH, VULKAN, LAYERS, EGL, PLATFORMS, "/usr/share/nvidia", "/etc/OpenCL/vendors")
SHOWN = {
    DRI: ("by-path", "card1", "renderD129"),
    BY_PATH: ("pci-0000:e1:00.0-card", "pci-0000:e1:00.0-render"),
    VULKAN: ("nvidia_icd.x86_64.json",),
    LAYERS: ("nvidia_layers.json",),
    EGL: ("10_nvidia.json",),
    PLATFORMS: ("10_nvidia_wayland.json", "15_nvidia_gbm.json", "20_nvidia_xcb.json", "20_nvidia_xlib.json"),
    "/usr/share/nvidia": ("nvoptix.bin",),
    "/etc/OpenCL/vendors": ("nvidia.icd",),
}
LIBRARIES = ("libGLX_nvidia.so.0", "libEGL_nvidia.so.0", "libnvidia-egl-gbm.so.1", "libnvidia-vksc-core.so.1")
LOOK = sight.arguments(nodes=OWN, make=[OTHER], libraries=LIBRARIES, lists=LISTS, texts=())


def by_hook(bed: Bed, runtime: OciRuntime, container: Container) -> Result:
    return bed.run(runtime, replace(container, hooks={"prestart": [bed.hook("prestart", machine=MACHINE)]}))


def by_runtime(bed: Bed, runtime: OciRuntime, container: Container) -> Result:
    return Wrapped(bed, runtime, machine=MACHINE).run(container)


def by_cdi(bed: Bed, runtime: OciRuntime, container: Container) -> Result:
    directory = bed.directory("cdi")
    machine = str(bed.machine(MACHINE))
    words = ("--sim", machine, "cdi", "generate", "--output", f"{directory}/n.yaml")
    bed.call(bed.commands.nvc, *words, "--nvc-hook-path", str(bed.commands.directory / "nvc-cdi-hook"), check=True)
    config = f'mode = "cdi"\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{directory}"]'
    return Wrapped(bed, runtime, config, machine=MACHINE).run(container)


@pytest.mark.parametrize("way", [by_hook, by_runtime, by_cdi])
def test_it_has_the_files_of_every_loader_and_its_own_gpus_nodes(
    bed: Bed, runc: OciRuntime, way: Callable[..., Result]
) -> None:
    env = gpu_env("1", "all")
    result = way(bed, runc, Container(bed.rootfs(), LOOK, env))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    # ENXIO, or ENODEV: the device cgroup lets them through, and there is no such device.
    assert [seen.nodes[path] in ("ENXIO", "ENODEV") for path in OWN] == [True, True]
    assert [seen.numbers[path] for path in OWN] == [(226, 1), (226, 129)]
    assert (seen.made[OTHER[0]], seen.nodes[OTHER[0]]) == ("ok", "EPERM")
    assert seen.lists == SHOWN
    assert all(seen.libraries.values())


@pytest.mark.parametrize("way", [by_hook, by_runtime, by_cdi])
def test_without_graphics_it_has_none_of_it(bed: Bed, runc: OciRuntime, way: Callable[..., Result]) -> None:
    look = sight.arguments(make=[("/dev/mine", 226, 1)], libraries=LIBRARIES[:3], lists=LISTS, texts=())
    result = way(bed, runc, Container(bed.rootfs(), look, gpu_env("1")))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.nodes["/dev/mine"] == "EPERM"
    found = {directory: names for directory, names in seen.lists.items() if names and directory != BY_PATH}
    assert found.pop(DRI, ("by-path",)) == ("by-path",)  # of a spec's links, which then lead nowhere
    assert found == {"/etc/OpenCL/vendors": ("nvidia.icd",)}
    assert not any(seen.libraries.values())


def test_a_share_leaves_the_nodes_out_and_says_so(bed: Bed, runc: OciRuntime) -> None:
    log = bed.directory("log") / "debug"
    wrapped = Wrapped(bed, runc, machine=MACHINE)
    config = wrapped.directory / "nvc/config.toml"
    config.write_text(f'{config.read_text()}[nvidia-container-cli]\ndebug = "{log}"\n')
    look = sight.arguments(nodes=OWN, make=[("/dev/mine", 226, 1)], lists=LISTS, texts=())
    share = {"nvc.share": "mem=4Gi"}
    result = wrapped.run(Container(bed.rootfs(), look, gpu_env("1", "all"), annotations=share))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.nodes["/dev/mine"] == "EPERM"
    assert seen.lists[DRI] == ()
    assert seen.lists[VULKAN] == SHOWN[VULKAN]
    assert re.search("no DRM node and no nvidia-modeset", log.read_text())
