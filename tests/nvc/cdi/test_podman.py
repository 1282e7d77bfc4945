"""Podman 4.3, which takes CDI up to 0.5.0 only, with a spec that we made for a simulated machine."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support import sight
from tests.support.bed import Bed, gpu_env
from tests.support.cdipodman import MEMORY, CdiPodman, forgotten, podman
from tests.support.fixtures import bed, need, whole_bed

__all__ = ["bed", "forgotten", "need", "podman", "whole_bed"]
pytestmark = pytest.mark.system
LIBRARIES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
COMMON = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")


def look(*nodes: str) -> list[str]:
    return sight.arguments(nodes=nodes, libraries=LIBRARIES)


@pytest.mark.parametrize(
    ("runtime", "view", "device"),
    [
        pytest.param("runc", "hybrid", "nvidia.com/gpu=0", id="runc-hybrid-index"),
        pytest.param("runc", "v2", "nvidia.com/gpu=all", id="runc-v2-all"),
        pytest.param("crun", "v1", "nvidia.com/gpu=0", id="crun-v1-index"),
        pytest.param("crun", "v2", "nvidia.com/gpu=all", id="crun-v2-all"),
    ],
)
def test_a_gpu_by_name(podman: Callable[..., CdiPodman], runtime: str, view: str, device: str) -> None:
    result = podman(runtime, view).run([device], look("/dev/nvidia0", *COMMON))
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    # A node that could be opened but has no driver behind it, as on every simulated machine.
    assert seen.nodes == dict.fromkeys(("/dev/nvidia0", *COMMON), "ENXIO")
    assert all(seen.libraries.values()), seen.libraries
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    library = next(point for point in seen.mounts if "libcuda.so" in point)
    assert {"ro", "nosuid", "nodev"} <= seen.mounts[library]


def test_nvidia_smi_names_the_gpu(podman: Callable[..., CdiPodman]) -> None:
    result = podman("runc", "hybrid").run(["nvidia.com/gpu=0"], ["nvidia-smi", "-L"])
    assert result.code == 0, result.text
    assert result.out.startswith("GPU 0: NVIDIA H200")


def test_a_mig_device_comes_with_its_capabilities_and_no_others(podman: Callable[..., CdiPodman]) -> None:
    one = podman("runc", "hybrid", machine="a100-mig-dev")
    spec = one.specs / "nvidia.yaml"
    listed = one.bed.call(one.bed.commands.nvc, "cdi", "list", "--spec-dir", str(spec.parent), check=True).out.split()
    name = next(name for name in listed if "=0:" in name)
    result = one.run([name], sight.arguments(lists=["/dev/nvidia-caps", "/dev"]))
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert len(seen.lists["/dev/nvidia-caps"]) == 2
    # The machine's GPU 0 has the minor number 2.
    assert [node for node in seen.lists["/dev"] if node.startswith("nvidia") and node[6:].isdigit()] == ["nvidia2"]


def test_capabilities_decide_what_is_mounted(podman: Callable[..., CdiPodman]) -> None:
    result = podman("runc", "hybrid", "--capabilities=utility").run(["nvidia.com/gpu=0"], look("/dev/nvidia0"))
    assert result.code == 0, result.text
    found = sight.read(result.out).libraries
    assert found["libnvidia-ml.so.1"]
    assert not found["libcuda.so.1"]


def test_a_read_only_container_works(podman: Callable[..., CdiPodman]) -> None:
    result = podman("runc", "hybrid").run(["nvidia.com/gpu=0"], look("/dev/nvidia0"), "--read-only")
    assert result.code == 0, result.text
    assert all(sight.read(result.out).libraries.values())


def test_a_second_start_finds_what_the_first_left(podman: Callable[..., CdiPodman], bed: Bed) -> None:
    one, rootfs = podman("runc", "hybrid"), bed.rootfs()
    for _ in range(2):
        result = one.run(["nvidia.com/gpu=0"], look("/dev/nvidia0"), rootfs=rootfs)
        assert result.code == 0, result.text
        assert all(sight.read(result.out).libraries.values())
    assert len(list((rootfs / "etc/ld.so.conf.d").glob("*nvc*"))) <= 2


def test_hostile_variables_do_not_reach_the_hooks(podman: Callable[..., CdiPodman], bed: Bed) -> None:
    rootfs = bed.rootfs()
    (rootfs / "poc.so").write_text("not a library: ld.so would complain on stderr")
    hostile = ("--env=LD_PRELOAD=/proc/self/cwd/poc.so", "--env=PYTHONPATH=/", "--env=NVIDIA_VISIBLE_DEVICES=all")
    result = podman("runc", "hybrid").run(["nvidia.com/gpu=0"], ["/bin/busybox", "env"], *hostile, rootfs=rootfs)
    assert result.code == 0, result.text
    assert "poc.so" not in result.err
    # A legacy hook that is registered for every container must not act too.
    assert "NVIDIA_VISIBLE_DEVICES=void" in result.out


def test_a_failing_hook_says_why(podman: Callable[..., CdiPodman], bed: Bed) -> None:
    rootfs = bed.rootfs()
    (rootfs / "etc/ld.so.conf.d/00-nvcr-nvc.conf").mkdir(mode=0o700)
    result = podman("runc", "hybrid").run(["nvidia.com/gpu=0"], ["/bin/true"], rootfs=rootfs)
    assert result.code != 0
    assert "nvc-cdi-hook: mount error: " in result.text
    assert "00-nvcr-nvc.conf" in result.text


def test_a_hook_of_the_environment_variables_and_cdi_do_not_clash(podman: Callable[..., CdiPodman], bed: Bed) -> None:
    one = podman("runc", "hybrid")
    data = {"version": "1.0.0", "hook": bed.hook("prestart").as_data(), "when": {"always": True}}
    (one.podman.place / "hooks.d/nvc.json").write_text(json.dumps({**data, "stages": ["prestart"]}))
    asked = [word for variable in gpu_env("all") for word in ("--env", variable)]
    result = one.run(["nvidia.com/gpu=0"], look("/dev/nvidia0"), *asked)
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert len([line for line in seen.texts[sight.MOUNTINFO].splitlines() if " /dev/nvidia0 " in line]) == 0


#: The container's share as it sees it; gnutrue has a loader.
SHARE = (
    "cat /etc/ld.so.preload; head -c 4 /run/nvc-share/limits; head -c 4 /run/nvc-share/region; echo; "
    "/usr/bin/gnutrue && echo runs; (echo x >>/run/nvc-share/limits) 2>/dev/null && echo written; true"
)
SEEN = "/usr/lib/nvc/$PLATFORM/libnvc-shim.so\n/usr/lib/nvc/$PLATFORM/libnvc-shim-managed.so\nNVCLNVCR\nruns\n"


@pytest.mark.parametrize(("runtime", "view"), [("runc", "hybrid"), ("crun", "v2")])
def test_an_annotation_gives_a_share_of_the_device(
    podman: Callable[..., CdiPodman], forgotten: None, runtime: str, view: str
) -> None:
    one = podman(runtime, view, "--share")
    asked = one.run(["nvidia.com/gpu=0"], ["sh", "-c", SHARE], "--annotation=nvc.share=mem=2Gi,cap=50%")
    assert (asked.code, asked.out) == (0, SEEN), asked.text
    silent = one.run(["nvidia.com/gpu=0"], ["sh", "-c", "ls /usr/lib/nvc /etc/ld.so.preload 2>/dev/null; true"])
    assert (silent.code, silent.out) == (0, ""), silent.text


def test_a_spec_has_a_share_for_containers_that_request_none(podman: Callable[..., CdiPodman], forgotten: None) -> None:
    one = podman("runc", "hybrid", "--share=mem=25%")
    result = one.run(["nvidia.com/gpu=0"], ["sh", "-c", SHARE])
    assert (result.code, result.out) == (0, SEEN), result.text


@pytest.mark.parametrize(
    "attack", ["--annotation=nvc.share=mem=100%", "--annotation=nvc.share=off", "--env=NVC_SHARE=off"]
)
def test_no_container_gets_more_than_the_cdi_specification_says(
    podman: Callable[..., CdiPodman], forgotten: None, attack: str
) -> None:
    """They are the administrator's, or those of a driver for Kubernetes' claims; the annotation is the tenant's."""
    one = podman("runc", "hybrid", "--share=mem=25%")
    result = one.run(["nvidia.com/gpu=0"], MEMORY, attack)
    assert result.code == 0, result.text
    assert int.from_bytes(bytes.fromhex(result.out.strip()), "little") == 143771 // 4 << 20, result.text
