"""Podman with --hooks-dir, and LXC's own nvidia hook script calling our nvidia-container-cli."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import launchers, leftovers, sight
from tests.support.bed import Bed, gpu_env
from tests.support.cgroupview import named
from tests.support.engines import Lxc, Podman

pytestmark = pytest.mark.system

LXC_HOOK = "/usr/share/lxc/hooks/nvidia"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


@pytest.mark.parametrize(
    ("runtime", "view", "stage"),
    [
        pytest.param("runc", "hybrid", "prestart", id="runc-hybrid-prestart"),
        pytest.param("runc", "v2", "createRuntime", id="runc-v2-createRuntime"),
        pytest.param("crun", "v1", "createContainer", id="crun-v1-createContainer"),
        pytest.param("crun", "v2", "prestart", id="crun-v2-prestart"),
    ],
)
def test_podman_with_hooks_dir(bed: Bed, need: Callable[..., None], runtime: str, view: str, stage: str) -> None:
    need("podman", "conmon", runtime)
    seen_view = named(view)
    if seen_view is None:
        pytest.skip(f"this machine cannot show cgroup {view}")
    podman = Podman(runtime, seen_view, bed.directory("podman"), bed.preload(runtime, view), bed.env)
    podman.prepare({stage: bed.hook(stage)})
    name = bed.name("podman")
    look = sight.arguments(nodes=["/dev/nvidia0", "/dev/nvidia-uvm"], libraries=LIBRARIES)
    try:
        result = podman.run(bed.rootfs(), name, look, gpu_env("all"))
    finally:
        podman.clean(name)
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/nvidia0": "ENXIO", "/dev/nvidia-uvm": "ENXIO"}
    assert all(seen.libraries.values())
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]


def _lxc(bed: Bed, *environment: str) -> Lxc:
    """A container whose mount hook is LXC's nvidia script; our command is the first nvidia-container-cli in PATH."""
    machine = bed.machine("h200")
    directory = bed.directory("bin")
    launchers.with_options(directory, "nvidia-container-cli", bed.commands.cli, f"--sim={machine}")
    path = f"{directory}:{os.environ['PATH']}:/usr/sbin:/sbin"
    lxc = Lxc(bed.name("lxc"), bed.rootfs(owner=Lxc.offset), bed.directory("lxc"), path, env=bed.env)
    token = f"{leftovers.VARIABLE}={bed.token}"
    lxc.prepare([*(("lxc.environment", variable) for variable in (token, *environment)), ("lxc.hook.mount", LXC_HOOK)])
    return lxc


@pytest.mark.parametrize(
    ("environment", "libraries"),
    [
        pytest.param(gpu_env("all"), LIBRARIES, id="all"),
        pytest.param(gpu_env("0", "all"), LIBRARIES, id="every-capability"),
        pytest.param((*gpu_env("all"), "NVIDIA_REQUIRE_CUDA=cuda>=11.0"), LIBRARIES, id="requirement"),
    ],
)
def test_lxc_hook_script(
    bed: Bed, need: Callable[..., None], environment: tuple[str, ...], libraries: tuple[str, ...]
) -> None:
    need("lxc-execute", "newuidmap")
    assert Path(LXC_HOOK).exists(), "package lxc without its nvidia hook"
    lxc = _lxc(bed, *environment)
    result = lxc.execute(sight.arguments(nodes=["/dev/nvidia0", "/dev/nvidiactl"], libraries=libraries))
    assert result.code == 0, result.text + lxc.log.read_text()
    seen = sight.read(result.out)
    # LXC's device cgroup is not ours to change (the script passes --no-cgroups); the nodes are there.
    assert seen.numbers == {"/dev/nvidia0": (195, 0), "/dev/nvidiactl": (195, 255)}
    assert all(seen.libraries.values())
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]


def test_lxc_hook_script_shows_our_error(bed: Bed, need: Callable[..., None]) -> None:
    need("lxc-execute", "newuidmap")
    lxc = _lxc(bed, *gpu_env("9"))
    lxc.level = "DEBUG"
    result = lxc.execute(["/bin/true"])
    assert result.code != 0
    assert "device error: 9: unknown device" in result.text + lxc.log.read_text()
