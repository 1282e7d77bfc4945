"""What containers get beyond libnvidia-container's lists: found on every simulated machine that has it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from nvc.driver import graphics
from nvc.driver.discover import discover
from nvc.driver.drm import drm_nodes
from nvc.driver.tables import CONFIGS, LIBRARIES, MODULES, MORE_BINARIES, MORE_LIBRARIES
from nvc.model import DriverFile, DriverInfo, DriverOptions, Host
from nvc.request.capabilities import EVERY, WORDS
from nvc.sim import description, files
from nvc.sim.create import create
from tests.nvc.driver.conftest import Made
from tests.nvc.driver.test_simulated import ENVIRON, facts
from tests.support.rootfs import multiarch

DESKTOP, SERVER, WITHOUT = "rtx4090-desktop", "l40s-server", "h200"


def driver(host: Host, name: str) -> DriverInfo:
    system, gpus = facts(description.load(name))
    return discover(host, DriverOptions(), system, gpus, ENVIRON).driver


def places(found: DriverInfo, kind: str) -> set[str]:
    return {file.place for file in found.more if file.kind == kind}


def test_rows_have_known_capabilities_and_notes() -> None:
    for row in (*MORE_LIBRARIES, *MORE_BINARIES, *CONFIGS, *MODULES):
        assert row.capability in WORDS
        assert row.note


def test_no_library_is_in_two_rows_of_one_capability() -> None:
    rows = [(row.name, row.capability) for row in (*LIBRARIES, *MORE_LIBRARIES)]
    assert sorted(set(rows)) == sorted(rows)


def test_a_desktop_has_every_file_of_loaders_and_of_the_x_server(made: Made) -> None:
    found = driver(made(DESKTOP), DESKTOP)
    other_names = {"/etc/vulkan/icd.d/nvidia_icd.x86_64.json", "/etc/vulkan/icd.d/nvidia_icd.aarch64.json"}
    never = {"/etc/vulkan/icd.d/nvidia_layers.json"}  # some drivers' name of the file in implicit_layer.d
    assert places(found, "config") == {f"{row.target}/{row.path}" for row in CONFIGS} - other_names - never
    assert places(found, "module") == {
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.590.44.01",
    }


def test_a_server_has_none_of_the_x_servers_and_its_icd_under_the_name_of_rpm_packages(made: Made) -> None:
    found = driver(made(SERVER), SERVER)
    assert f"/etc/vulkan/icd.d/nvidia_icd.{os.uname().machine}.json" in places(found, "config")
    assert not any("X11" in place for place in places(found, "config"))
    assert not places(found, "module")


def test_a_driver_without_graphics_files_has_only_libraries(made: Made) -> None:
    assert {file.kind for file in driver(made(WITHOUT), WITHOUT).more} == {"library"}


@pytest.mark.parametrize("name", [DESKTOP, SERVER])
def test_every_library_of_the_drivers_version_is_found_once(made: Made, name: str) -> None:
    machine = description.load(name)
    found = driver(made(name), name)
    by_name: dict[str, list[DriverFile]] = {}
    for file in (*found.libraries, *found.more):
        if file.kind == "library":
            by_name.setdefault(file.path.rpartition("/")[2], []).append(file)
    assert {one.file for one in files.libraries(machine, bits=64)} == set(by_name)
    # The allocator is compute's, and once more with GBM's link for graphics.
    assert [name for name, rows in by_name.items() if len(rows) > 1] == [
        f"libnvidia-allocator.so.{machine.driver_version}"
    ]


def test_a_library_that_no_row_names_is_for_containers_with_every_capability(made: Made) -> None:
    found = {file.path.rpartition("/")[2]: file for file in driver(made(DESKTOP), DESKTOP).more}
    assert found["libnvidia-unheard-of.so.590.44.01"].capability == EVERY
    vdpau = found["libvdpau_nvidia.so.590.44.01"]
    assert (vdpau.capability, vdpau.place) == ("video", "vdpau/libvdpau_nvidia.so.590.44.01")


def test_a_library_with_a_version_of_its_own_is_taken_by_it_alone(made: Made, tmp_path: Path) -> None:
    machine = create(str(tmp_path / "machine"), description.load(DESKTOP).replace(name="copy"))
    libraries = Path(f"{machine.root}/usr/lib/{multiarch()}")
    (libraries / "libnvidia-egl-gbm.so.1.1.2").rename(libraries / "libnvidia-egl-gbm.so.1.1.2-beta")
    (libraries / "libnvidia-egl-gbm.so.1").unlink()
    (libraries / "libnvidia-egl-gbm.so.1").symlink_to("libnvidia-egl-gbm.so.1.1.2-beta")
    assert not any("egl-gbm" in file.path for file in driver(machine, DESKTOP).more if file.kind == "library")


LIBRARY = DriverFile("/nix/store/x-nvidia-580/lib/libGLX_nvidia.so.580", "library", "graphics")


def put(root: Path, path: str, text: str = "x") -> None:
    (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    (root / path.lstrip("/")).write_text(text)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/usr/share/vulkan/icd.d/nvidia_icd.json",
        "/usr/local/share/vulkan/icd.d/nvidia_icd.json",
        "/run/opengl-driver/share/vulkan/icd.d/nvidia_icd.json",
        "/nix/store/x-nvidia-580/share/vulkan/icd.d/nvidia_icd.json",
        "/vulkan/icd.d/nvidia_icd.json",
    ],
)
def test_wherever_the_host_keeps_the_icd_the_container_has_it_where_loaders_look(tmp_path: Path, path: str) -> None:
    put(tmp_path, path)
    (found,) = graphics.find_configs(Host(str(tmp_path)), (LIBRARY,))
    assert (found.path, found.place) == (path, "/etc/vulkan/icd.d/nvidia_icd.json")


def test_only_vulkans_files_are_looked_for_at_the_driver_root_itself(tmp_path: Path) -> None:
    put(tmp_path, "/OpenCL/vendors/nvidia.icd")
    assert not list(graphics.find_configs(Host(str(tmp_path)), (LIBRARY,)))


def test_a_link_to_nowhere_and_a_directory_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "etc/vulkan/icd.d/nvidia_icd.json").mkdir(parents=True)
    (tmp_path / "usr/share/vulkan/icd.d").mkdir(parents=True)
    (tmp_path / "usr/share/vulkan/icd.d/nvidia_icd.json").symlink_to("/nowhere")
    assert not list(graphics.find_configs(Host(str(tmp_path)), (LIBRARY,)))


def test_an_absolute_path_in_a_configuration_is_remembered_with_the_library_that_it_leads_to(tmp_path: Path) -> None:
    put(tmp_path, LIBRARY.path)
    (tmp_path / "nix/store/x-nvidia-580/lib/libGLX_nvidia.so.0").symlink_to("libGLX_nvidia.so.580")
    text = '{"ICD": {"library_path" : "/nix/store/x-nvidia-580/lib/libGLX_nvidia.so.0"}}'
    put(tmp_path, "/run/opengl-driver/share/vulkan/icd.d/nvidia_icd.json", text)
    put(tmp_path, "/etc/vulkan/implicit_layer.d/nvidia_layers.json", '{"library_path": "/etc/passwd"}')
    found = {
        file.place.rpartition("/")[2]: file.links for file in graphics.find_configs(Host(str(tmp_path)), (LIBRARY,))
    }
    assert found == {
        "nvidia_icd.json": (("/nix/store/x-nvidia-580/lib/libGLX_nvidia.so.0", "libGLX_nvidia.so.580"),),
        "nvidia_layers.json": (),
    }


@pytest.mark.root
def test_drm_nodes_are_the_gpus_own(made: Made) -> None:
    host = made(DESKTOP)
    found = drm_nodes(host, "00000000:01:00.0", "/proc/driver/nvidia/gpus/0000:01:00.0")
    assert [(drm.node.path, drm.node.major, drm.node.minor, drm.link) for drm in found] == [
        ("/dev/dri/card1", 226, 1, "/dev/dri/by-path/pci-0000:01:00.0-card"),
        ("/dev/dri/renderD129", 226, 129, "/dev/dri/by-path/pci-0000:01:00.0-render"),
    ]


def test_a_pci_domain_of_more_than_four_digits_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc in the driver root, 00010000:01:00.0 got the DRM nodes of 0000:01:00.0, another GPU's."""
    for bus, card in (("0000:01:00.0", "card0"), ("10000:01:00.0", "card1")):
        (tmp_path / "sys/bus/pci/devices" / bus / "drm" / card).mkdir(parents=True)
    monkeypatch.setattr("nvc.driver.drm.status", lambda root, path: os.stat("/dev/null"))
    host = Host(system=str(tmp_path))
    found = [[drm.node.path for drm in drm_nodes(host, f"{domain}:01:00.0")] for domain in ("00010000", "00000000")]
    assert found == [["/dev/dri/card1"], ["/dev/dri/card0"]]


@pytest.mark.root
def test_what_sysfs_names_and_dev_lacks_is_no_node(tmp_path: Path) -> None:
    host = create(str(tmp_path / "machine"), DESKTOP)
    dri = Path(host.root) / "dev/dri"
    (dri / "card1").unlink()
    (dri / "by-path/pci-0000:01:00.0-render").unlink()
    (dri / "by-path/pci-0000:01:00.0-render").symlink_to("../renderD128")
    (Path(host.root) / "sys/bus/pci/devices/0000:01:00.0/drm/version").mkdir()
    found = drm_nodes(host, "00000000:01:00.0")
    assert [(drm.node.path, drm.link) for drm in found] == [("/dev/dri/renderD129", "")]
    shutil.rmtree(dri)
    assert drm_nodes(host, "00000000:01:00.0") == ()
