"""Device nodes, nvcaps, GPUs and MIG devices."""

from __future__ import annotations

import os

import pytest

from nvc.base.errors import DetectionError
from nvc.driver import nvcaps
from nvc.driver.gpus import find_gpus
from nvc.driver.nodes import find_nodes
from nvc.driver.nvcaps import Nvcaps, node_of
from nvc.driver.places import read_majors
from nvc.model import NVCAPS_DEV, NVCAPS_NONE, NVCAPS_PROC, DeviceNode, DriverOptions, Host
from tests.support.driver_root import H200, DriverRoot

NONE = DriverOptions()
CONTROL = DeviceNode("/dev/nvidiactl", 195, 255)


def majors(root: DriverRoot) -> dict[str, int]:
    return read_majors(str(root.path))


def caps(root: DriverRoot) -> Nvcaps:
    return Nvcaps(root.host, majors(root))


def test_no_proc_devices_is_an_error(driver_root: DriverRoot) -> None:
    (driver_root.path / "proc/devices").unlink()

    with pytest.raises(DetectionError, match="proc/devices: no such file"):
        majors(driver_root)


def test_missing_nodes_are_warnings(driver_root: DriverRoot) -> None:
    nodes, warnings = find_nodes(str(driver_root.path), majors(driver_root), NONE)

    assert [CONTROL] == nodes
    assert ["missing device /dev/nvidia-uvm", "missing device /dev/nvidia-uvm-tools"] == warnings[:2]
    assert ["missing device /dev/nvidia-modeset"] == warnings[2:]


def test_options_leave_nodes_out(driver_root: DriverRoot) -> None:
    options = DriverOptions(no_uvm=True, no_modeset=True)

    assert ([CONTROL], []) == find_nodes(str(driver_root.path), majors(driver_root), options)


@pytest.mark.root
def test_nodes_with_the_drivers_numbers(driver_root: DriverRoot) -> None:
    driver_root.nodes()

    nodes, warnings = find_nodes(str(driver_root.path), majors(driver_root), NONE)

    expected = [("/dev/nvidia-uvm", 238, 0), ("/dev/nvidia-uvm-tools", 238, 1), ("/dev/nvidia-modeset", 195, 254)]
    assert [CONTROL, *(DeviceNode(*row) for row in expected)] == nodes
    assert [] == warnings


@pytest.mark.root
@pytest.mark.parametrize(
    ("lines", "number", "reason"),
    [
        pytest.param(("239 nvidia-uvm",), (238, 0), "it is 238:0 and the driver's is 239:0", id="major-of-old"),
        pytest.param(("238 nvidia-uvm",), (238, 7), "it is 238:7", id="another-minor"),
        pytest.param(("238 gadget",), (238, 0), "nvidia-uvm is not loaded", id="major-now-of-another-driver"),
    ],
)
def test_a_stale_node_is_never_handed_out(
    driver_root: DriverRoot, lines: tuple[str, ...], number: tuple[int, int], reason: str
) -> None:
    driver_root.majors(*lines)
    driver_root.node("dev/nvidia-uvm", *number)

    nodes, warnings = find_nodes(str(driver_root.path), majors(driver_root), NONE)

    assert [CONTROL] == nodes
    assert any("stale" in line and reason in line for line in warnings)


def test_a_file_in_a_nodes_place_is_passed_over(driver_root: DriverRoot) -> None:
    driver_root.write("dev/nvidia-uvm", "")

    _, warnings = find_nodes(str(driver_root.path), majors(driver_root), NONE)

    assert "skipping device /dev/nvidia-uvm: not a character device" in warnings


def test_styles_of_nvcaps(driver_root: DriverRoot) -> None:
    found = majors(driver_root)
    assert NVCAPS_DEV == nvcaps.style(driver_root.host, found)

    found.pop("nvidia-caps")
    assert NVCAPS_PROC == nvcaps.style(driver_root.host, found)

    os.rename(driver_root.path / "proc/driver/nvidia/capabilities", driver_root.path / "proc/gone")
    assert NVCAPS_NONE == nvcaps.style(driver_root.host, majors(driver_root))


def test_the_node_of_a_capability_file(driver_root: DriverRoot) -> None:
    expected = DeviceNode("/dev/nvidia-caps/nvidia-cap1", 241, 1)

    assert expected == node_of(driver_root.host, "/proc/driver/nvidia/capabilities/mig/config")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/passwd", "not below"),
        ("/proc/driver/nvidia/../../devices", "not below"),
        ("/proc/driver/nvidia/./params", "not below"),
        ("/proc/driver/nvidia/params", "has no DeviceFileMinor"),
        ("/proc/driver/nvidia/none", "no such file"),
    ],
)
def test_other_files_have_no_node(driver_root: DriverRoot, path: str, reason: str) -> None:
    with pytest.raises(DetectionError, match=f"unable to get cap device attributes: {path}: .*{reason}"):
        node_of(driver_root.host, path)


def test_without_the_major_there_is_no_node(driver_root: DriverRoot) -> None:
    driver_root.majors()

    with pytest.raises(DetectionError, match="has no nvidia-caps"):
        node_of(driver_root.host, nvcaps.MIG_CONFIG)


def test_a_gpu(driver_root: DriverRoot) -> None:
    (gpu,), warnings = find_gpus(Host(str(driver_root.path), system=str(driver_root.path)), (H200,), caps(driver_root))

    assert ("00000000:00:06.0", "Nvidia", "9.0") == (gpu.bus_id, gpu.brand, gpu.arch)
    assert DeviceNode("/dev/nvidia0", 195, 0) == gpu.node
    assert "/proc/driver/nvidia/gpus/0000:00:06.0" == gpu.proc_path
    assert "/proc/driver/nvidia/capabilities/gpu0" == gpu.mig_caps_path
    assert [DeviceNode(f"/dev/nvidia-caps/nvidia-cap{n}", 241, n) for n in range(3, 138)] == list(gpu.mig_nodes)
    assert [] == warnings


@pytest.mark.parametrize(
    ("domain", "name"),
    [(0x10000, "10000:3d:00.0"), (0xCFDDABCD, "cfddabcd:3d:00.0"), (1, "0001:3d:00.0"), (1, "00000001:3D:00.0")],
)
def test_proc_directories_of_every_domain_width(driver_root: DriverRoot, domain: int, name: str) -> None:
    driver_root.write(f"proc/driver/nvidia/gpus/{name}/information", "")
    fact = H200.replace(domain=domain, bus=0x3D, device=0)

    (gpu,), _ = find_gpus(Host(str(driver_root.path), system=str(driver_root.path)), (fact,), caps(driver_root))

    assert f"/proc/driver/nvidia/gpus/{name}" == gpu.proc_path
    assert f"{domain:08x}:3d:00.0" == gpu.bus_id


def test_a_gpu_without_proc_directory_is_a_warning(driver_root: DriverRoot) -> None:
    driver_root.write("proc/driver/nvidia/gpus/README", "")

    (gpu,), warnings = find_gpus(
        Host(str(driver_root.path), system=str(driver_root.path)), (H200.replace(bus=9),), caps(driver_root)
    )

    assert "" == gpu.proc_path
    assert any("missing /proc/driver/nvidia/gpus entry of GPU 0" in line for line in warnings)


def test_a_root_without_proc_is_a_warning(driver_root: DriverRoot) -> None:
    os.rename(driver_root.path / "proc/driver/nvidia/gpus", driver_root.path / "proc/gone")

    _, warnings = find_gpus(Host(str(driver_root.path), system=str(driver_root.path)), (H200,), caps(driver_root))

    assert any("missing /proc/driver/nvidia/gpus: no such file" in line for line in warnings)


@pytest.mark.parametrize(("brand", "expected"), [(2, "Tesla"), (14, "Nvidia"), (0, "Unknown"), (99, "Unknown")])
def test_brands(driver_root: DriverRoot, brand: int, expected: str) -> None:
    (gpu,), _ = find_gpus(
        Host(str(driver_root.path), system=str(driver_root.path)), (H200.replace(brand=brand),), caps(driver_root)
    )

    assert expected == gpu.brand


def test_a_gpu_without_mig_has_none_of_it(driver_root: DriverRoot) -> None:
    (gpu,), _ = find_gpus(
        Host(str(driver_root.path), system=str(driver_root.path)), (H200.replace(mig_capable=False),), caps(driver_root)
    )

    assert ("", (), ()) == (gpu.mig_caps_path, gpu.mig_devices, gpu.mig_nodes)


def test_more_than_64_gpus(driver_root: DriverRoot) -> None:
    facts = [H200.replace(index=n, minor=n, bus=n) for n in range(80)]

    gpus, _ = find_gpus(Host(str(driver_root.path), system=str(driver_root.path)), facts, caps(driver_root))

    assert 80 == len(gpus)


def test_mig_devices_with_nodes(driver_root: DriverRoot) -> None:
    migs = (driver_root.mig_instance(0, 1, 0), driver_root.mig_instance(0, 5, 2))

    (gpu,), warnings = find_gpus(
        Host(str(driver_root.path), system=str(driver_root.path)), (H200.replace(migs=migs),), caps(driver_root)
    )

    base = "/proc/driver/nvidia/capabilities/gpu0/mig"
    first, second = gpu.mig_devices
    assert (f"{base}/gi1/access", f"{base}/gi1/ci0/access") == (first.gi_access.proc_path, first.ci_access.proc_path)
    assert DeviceNode("/dev/nvidia-caps/nvidia-cap12", 241, 12) == first.gi_access.node
    assert DeviceNode("/dev/nvidia-caps/nvidia-cap51", 241, 51) == second.ci_access.node
    assert [] == warnings


def test_mig_devices_of_a_driver_with_files_only(driver_root: DriverRoot) -> None:
    migs = (driver_root.mig_instance(0, 1, 0),)
    driver_root.majors("238 nvidia-uvm")

    (gpu,), _ = find_gpus(
        Host(str(driver_root.path), system=str(driver_root.path)), (H200.replace(migs=migs),), caps(driver_root)
    )

    assert (None, ()) == (gpu.mig_devices[0].gi_access.node, gpu.mig_nodes)


def test_an_unreadable_capability_file_is_made_up_for_by_mig_minors(driver_root: DriverRoot) -> None:
    migs = (driver_root.mig_instance(0, 1, 0),)
    (driver_root.path / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access").unlink()

    (gpu,), _ = find_gpus(
        Host(str(driver_root.path), system=str(driver_root.path)), (H200.replace(migs=migs),), caps(driver_root)
    )

    assert DeviceNode("/dev/nvidia-caps/nvidia-cap13", 241, 13) == gpu.mig_devices[0].ci_access.node


@pytest.mark.parametrize("text", [None, "", "nonsense\n", "config 1\n"])
def test_a_mig_device_whose_nodes_nothing_tells_is_an_error(driver_root: DriverRoot, text: str | None) -> None:
    migs = (driver_root.mig_instance(0, 1, 0),)
    (driver_root.path / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/access").unlink()
    minors = driver_root.write("proc/driver/nvidia-caps/mig-minors", text or "")
    if text is None:
        minors.unlink()

    with pytest.raises(DetectionError, match=r"unable to get cap device attributes: .*gi1/access"):
        find_gpus(
            Host(str(driver_root.path), system=str(driver_root.path)), (H200.replace(migs=migs),), caps(driver_root)
        )


@pytest.mark.parametrize(("text", "reason"), [(None, "no such file"), ("config 1\nnonsense\n", "mig-minors, line 2")])
def test_mig_minors_that_nobody_needs_is_a_warning(driver_root: DriverRoot, text: str | None, reason: str) -> None:
    minors = driver_root.write("proc/driver/nvidia-caps/mig-minors", text or "")
    if text is None:
        minors.unlink()

    (gpu,), warnings = find_gpus(Host(str(driver_root.path), system=str(driver_root.path)), (H200,), caps(driver_root))

    assert () == gpu.mig_nodes
    assert any(reason in line for line in warnings)


def test_mig_devices_without_capabilities_directory_are_a_warning(driver_root: DriverRoot) -> None:
    migs = (driver_root.mig_instance(0, 1, 0),)
    os.rename(driver_root.path / "proc/driver/nvidia/capabilities", driver_root.path / "proc/gone")

    (gpu,), warnings = find_gpus(
        Host(str(driver_root.path), system=str(driver_root.path)), (H200.replace(migs=migs),), caps(driver_root)
    )

    assert gpu.mig_devices[0].gi_access.node is None
    assert any("has MIG devices, but there is no" in line for line in warnings)


def test_config_and_monitor(driver_root: DriverRoot) -> None:
    warnings: list[str] = []
    found = caps(driver_root).optional(nvcaps.MIG_MONITOR, warnings)

    assert found is not None
    assert (nvcaps.MIG_MONITOR, 2) == (found.proc_path, found.node and found.node.minor)
    assert caps(driver_root).optional(f"{nvcaps.CAPABILITIES}/none", warnings) is None
    assert [] == warnings


def test_config_without_major_has_no_node(driver_root: DriverRoot) -> None:
    driver_root.majors()
    found = caps(driver_root).optional(nvcaps.MIG_CONFIG, [])

    assert found is not None
    assert found.node is None


@pytest.mark.parametrize(("minors", "expected"), [("config 7\n", 7), ("", None)])
def test_config_with_a_damaged_file(driver_root: DriverRoot, minors: str, expected: int | None) -> None:
    driver_root.write(nvcaps.MIG_CONFIG[1:], "nonsense\n")
    driver_root.write("proc/driver/nvidia-caps/mig-minors", minors)
    known = caps(driver_root)

    for _ in range(2):  # read once, and said to each that asks
        warnings: list[str] = []
        found = known.optional(nvcaps.MIG_CONFIG, warnings)

        assert found is not None
        assert expected == (found.node.minor if found.node else None)
        assert bool(warnings) is (expected is None)


def test_majors_of_the_host() -> None:
    assert 1 == read_majors(Host().system)["mem"]
