from __future__ import annotations

import os

import pytest

from nvc.base.errors import DetectionError
from nvc.driver.discover import cuda_text, discover
from nvc.driver.search import read_cache
from nvc.model import NVCAPS_DEV, DriverOptions, Inventory
from tests.support import ldcache_writer
from tests.support.driver_root import H200, LIBDIR, SYSTEM, VERSION, DriverRoot


def run(root: DriverRoot, options: DriverOptions | None = None) -> Inventory:
    return discover(root.host, options or DriverOptions(), SYSTEM, (H200,), root.environ)


def test_everything_of_a_machine(driver_root: DriverRoot) -> None:
    found = run(driver_root)

    assert (VERSION, "13.0", NVCAPS_DEV) == (found.driver.nvrm_version, found.driver.cuda_version, found.nvcaps_style)
    assert [6, 2, 3, 0, 2, 1] == [
        len(found.driver.libraries),
        len(found.driver.libraries32),
        len(found.driver.binaries),
        len(found.driver.ipcs),
        len(found.driver.firmwares),
        len(found.driver.nodes),
    ]
    assert ["NVIDIA H200"] == [gpu.model for gpu in found.gpus]
    assert found.mig_config is not None
    assert found.mig_monitor is not None
    assert "missing library libnvoptix.so" in found.warnings
    assert found == Inventory.from_data(found.as_data())


@pytest.mark.parametrize("layout", ["new", "compat", "old"])
def test_caches_of_every_layout_give_the_same(driver_root: DriverRoot, layout: str) -> None:
    expected = run(driver_root)
    driver_root.ldconfig(layout)

    assert expected == run(driver_root)


def test_a_host_without_32_bit_libraries_is_one_warning(driver_root: DriverRoot) -> None:
    for file in (driver_root.path / "usr/lib32").iterdir():
        file.unlink()
    driver_root.ldconfig()

    found = run(driver_root)

    assert () == found.driver.libraries32
    assert ["missing compat32 libraries"] == [line for line in found.warnings if "compat32" in line]


@pytest.mark.parametrize(("number", "expected"), [(12020, "12.2"), (13000, "13.0"), (11080, "11.8"), (12090, "12.9")])
def test_cuda_versions(number: int, expected: str) -> None:
    assert expected == cuda_text(number)


def test_a_driver_in_a_directory_of_its_own_with_wrappers_in_path(driver_root: DriverRoot) -> None:
    (driver_root.path / "opt/driver").mkdir(parents=True)
    (driver_root.path / LIBDIR).rename(driver_root.path / "opt/driver/lib64")
    driver_root.write("etc/ld.so.conf", "/opt/driver/lib64\n")
    driver_root.ldconfig()
    driver_root.write("opt/driver/bin/nvidia-smi", "\x7fELF")
    driver_root.write("opt/driver/bin/nvidia-debugdump", "\x7fELF")

    programs = [file.path for file in run(driver_root).driver.binaries]

    assert "/opt/driver/bin/nvidia-smi" in programs
    assert "/opt/driver/bin/nvidia-debugdump" in programs
    assert "/usr/bin/nvidia-smi" not in programs


def test_no_cache(driver_root: DriverRoot) -> None:
    with_cache = run(driver_root).driver.libraries
    (driver_root.path / "etc/ld.so.cache").unlink()

    found = run(driver_root)

    assert found.driver.libraries == with_cache
    assert any("loader cache /etc/ld.so.cache is missing" in warning for warning in found.warnings)


def test_no_cache_and_no_driver(driver_root: DriverRoot) -> None:
    (driver_root.path / "etc/ld.so.cache").unlink()
    for library in driver_root.path.glob("**/libnvidia-ml.so*"):
        library.unlink()

    with pytest.raises(DetectionError, match=r"open failed: /etc/ld.so.cache: no such file") as caught:
        run(driver_root)
    assert "ldconfig" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"glibc-ld.so.cache1.1", bytes(4096), b"\xff" * 999])
def test_a_damaged_cache_is_named(driver_root: DriverRoot, data: bytes) -> None:
    driver_root.write("etc/ld.so.cache", data)

    with pytest.raises(DetectionError, match=r"unsupported file format: /etc/ld.so.cache: .*header"):
        run(driver_root)


def test_a_cache_elsewhere(driver_root: DriverRoot) -> None:
    (driver_root.path / "etc/ld.so.cache").rename(driver_root.path / "etc/other")
    (driver_root.path / "etc/link").symlink_to("/etc/other")

    assert read_cache(driver_root.host.replace(ldcache="/etc/link")).entries


def test_a_driver_of_another_version_says_what_to_do(driver_root: DriverRoot) -> None:
    with pytest.raises(DetectionError, match=r"no libnvidia-ml.so.999.1 in /etc/ld.so.cache") as caught:
        discover(
            driver_root.host, DriverOptions(), SYSTEM.replace(driver_version="999.1"), (H200,), driver_root.environ
        )
    assert "ldconfig" in caught.value.hint


@pytest.mark.parametrize("version", ["", "..", "../../etc", "1.2/3", ".1", "5\u06f0.1", "1\n2"])
def test_a_version_that_could_name_another_directory_is_refused(driver_root: DriverRoot, version: str) -> None:
    with pytest.raises(DetectionError, match="invalid driver version"):
        discover(
            driver_root.host, DriverOptions(), SYSTEM.replace(driver_version=version), (H200,), driver_root.environ
        )


def test_half_a_driver(driver_root: DriverRoot) -> None:
    for file in (driver_root.path / LIBDIR).glob("libnvidia-ml*"):
        file.unlink()

    with pytest.raises(DetectionError, match=r"no libnvidia-ml.so") as caught:
        run(driver_root)
    assert "run ldconfig" in caught.value.hint


def test_a_driver_of_another_architecture(driver_root: DriverRoot) -> None:
    entry = ("libnvidia-ml.so.1", "/usr/lib/s390x-linux-gnu/libnvidia-ml.so.1", 0x0403, 0)
    driver_root.write("etc/ld.so.cache", ldcache_writer.new((entry,)))

    with pytest.raises(DetectionError, match=r"no libnvidia-ml.so") as caught:
        run(driver_root)
    assert f"it is there for s390x only: install the driver for {os.uname().machine}" == caught.value.hint


def test_a_stale_entry_does_not_end_the_detection(driver_root: DriverRoot) -> None:
    driver_root.library("libcuda.so").unlink()

    found = run(driver_root)

    assert 5 == len(found.driver.libraries)
    assert any("stale entry" in line for line in found.warnings)


def test_stale_32_bit_entries_are_told_even_when_nothing_is_left(driver_root: DriverRoot) -> None:
    for file in (driver_root.path / "usr/lib32").iterdir():
        if not file.is_symlink():
            file.unlink()

    found = run(driver_root)

    assert any("stale entry" in line and "lib32" in line for line in found.warnings)
