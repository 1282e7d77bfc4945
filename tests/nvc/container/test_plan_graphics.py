"""The plan of what graphics programs need beyond libnvidia-container (nvidia-container-toolkit.md 5.4, 5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nvc.container.operations import AllowDevices, BindMount, Symlink
from nvc.container.plan import device_mount, driver_mount
from nvc.model import DeviceNode, DriverFile, DrmNode, MigDevice, Nvcap
from nvc.request.capabilities import EVERY, WORDS
from tests.support.plans import DRIVER, V, gpu, scope

if TYPE_CHECKING:
    from nvc.container.operations import Operation

GRAPHICS = DRIVER.replace(
    more=(
        DriverFile(
            f"/lib/x/libnvidia-allocator.so.{V}",
            "library",
            "graphics",
            (("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),),
        ),
        DriverFile(f"/lib/x/vdpau/libvdpau_nvidia.so.{V}", "library", "video", place=f"vdpau/libvdpau_nvidia.so.{V}"),
        DriverFile(f"/lib/x/libnvidia-new.so.{V}", "library", EVERY),
        DriverFile("/usr/bin/nvidia-xconfig", "binary", "graphics"),
        DriverFile("/usr/lib/xorg/nvidia_drv.so", "module", "graphics", place="/usr/lib/xorg/nvidia_drv.so"),
        DriverFile(
            "/store/share/vulkan/icd.d/nvidia_icd.json",
            "config",
            "graphics",
            (("/store/lib/libGLX_nvidia.so.0", f"libGLX_nvidia.so.{V}"),),
            "/etc/vulkan/icd.d/nvidia_icd.json",
        ),
        DriverFile("/etc/OpenCL/vendors/nvidia.icd", "config", "compute", place="/etc/OpenCL/vendors/nvidia.icd"),
    )
)
DRM_GPU = gpu(1).replace(
    mig_devices=(),
    drm=(
        DrmNode(DeviceNode("/dev/dri/card1", 226, 1), "/dev/dri/by-path/pci-0000:07:00.0-card"),
        DrmNode(DeviceNode("/dev/dri/renderD129", 226, 129)),
    ),
)
_MORE = {
    "allocator": ("/usr/lib64/libnvidia-allocator.so.535.104.05", "/usr/lib64/gbm/nvidia-drm_gbm.so"),
    "vdpau": ("/usr/lib64/vdpau/libvdpau_nvidia.so.535.104.05",),
    "unknown": ("/usr/lib64/libnvidia-new.so.535.104.05",),
    "xconfig": ("/usr/bin/nvidia-xconfig",),
    "module": ("/usr/lib/xorg/nvidia_drv.so",),
    "vulkan": ("/etc/vulkan/icd.d/nvidia_icd.json", "/store/lib/libGLX_nvidia.so.0"),
    "opencl": ("/etc/OpenCL/vendors/nvidia.icd",),
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(("utility",), (), id="utility"),
        pytest.param(("compute",), ("opencl",), id="compute"),
        pytest.param(("video",), ("vdpau", "opencl"), id="video"),
        pytest.param(("graphics",), ("allocator", "xconfig", "module", "vulkan"), id="graphics"),
        pytest.param(("display",), ("allocator", "module", "vulkan"), id="display, without programs"),
        pytest.param(WORDS, tuple(_MORE), id="all"),
    ],
)
def test_what_is_beyond_the_librarys_lists_by_capability(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    with_more = {
        o.container_path
        for o in driver_mount(scope(",".join(words)), GRAPHICS, ())
        if isinstance(o, BindMount | Symlink)
    }
    without = {
        o.container_path for o in driver_mount(scope(",".join(words)), DRIVER, ()) if isinstance(o, BindMount | Symlink)
    }
    assert with_more - without == {path for name in expected for path in _MORE[name]}


def test_drm_nodes_come_with_their_gpu_their_rules_and_their_links() -> None:
    assert drm_of(device_mount(scope("graphics"), DRM_GPU)) == [
        "/dev/dri/card1",
        (226, 1),
        "/dev/dri/by-path/pci-0000:07:00.0-card -> ../card1",
        "/dev/dri/renderD129",
        (226, 129),
    ]
    assert drm_of(device_mount(scope("display"), DRM_GPU))
    assert not drm_of(device_mount(scope("compute,utility,video"), DRM_GPU))


def test_a_divided_gpu_and_a_share_bring_no_drm_node() -> None:
    mig = MigDevice(0, "MIG-1", 1, 0, Nvcap("/proc/a"), Nvcap("/proc/b"))
    assert not drm_of(device_mount(scope("graphics"), DRM_GPU.replace(mig_devices=(mig,))))
    shared = scope("graphics,display").replace(shared=True)
    assert not drm_of(device_mount(shared, DRM_GPU))
    paths = {o.container_path for o in driver_mount(shared, DRIVER, ()) if isinstance(o, BindMount)}
    assert "/dev/nvidia-modeset" not in paths
    assert {"/dev/nvidiactl", "/etc/vulkan/icd.d/nvidia_icd.json"} <= paths | {
        o.container_path for o in driver_mount(shared, GRAPHICS, ()) if isinstance(o, BindMount)
    }


def drm_of(operations: tuple[Operation, ...]) -> list[object]:
    """What there is of DRM nodes: paths, rules, links."""
    found: list[object] = []
    for operation in operations:
        if isinstance(operation, AllowDevices):
            found += [rule for rule in operation.rules if rule[0] == 226]
        elif isinstance(operation, BindMount | Symlink) and "/dri/" in operation.container_path:
            link = f" -> {operation.text}" if isinstance(operation, Symlink) else ""
            found.append(operation.container_path + link)
    return found
