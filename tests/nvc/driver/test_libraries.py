from __future__ import annotations

import os

import pytest

from nvc.base.errors import DetectionError
from nvc.driver.libraries import Chooser, host_arch, rows
from nvc.formats.ldcache import CacheEntry, parse
from nvc.model import DriverFile
from tests.support.driver_root import LIBDIR, OLD_NOTE, TLS_NOTE, VERSION, DriverRoot, compile_library

FLAGS, FLAGS32 = 0x303, 0x003


def choose(
    root: DriverRoot, *entries: CacheEntry, glvnd: bool = True, kind: str = "library"
) -> tuple[tuple[DriverFile, ...], Chooser]:
    """The choice from the root's own cache, or from ``entries``."""
    found = entries or parse((root.path / "etc/ld.so.cache").read_bytes()).entries
    chooser = Chooser(str(root.path), VERSION, rows(glvnd=glvnd), kind=kind)
    arch = host_arch("x86_64")
    files = chooser.choose(found, *((arch.cache, arch.elf) if kind == "library" else (arch.cache32, arch.elf32)))
    return files, chooser


def names(files: tuple[DriverFile, ...]) -> list[str]:
    return [os.path.basename(file.path).removesuffix(f".{VERSION}") for file in files]


def entry(path: str, name: str = "libcuda.so.1", flags: int = FLAGS) -> CacheEntry:
    return CacheEntry(name, path, flags)


def test_libraries_come_in_the_order_of_the_table(driver_root: DriverRoot) -> None:
    files, chooser = choose(driver_root)

    expected = ["libnvidia-ml.so", "libcuda.so", "libnvidia-opticalflow.so", "libnvidia-glcore.so", "libnvidia-tls.so"]
    assert [*expected, "libGLX_nvidia.so"] == names(files)
    assert "libnvidia-cfg.so" in chooser.missing
    assert [] == chooser.skipped


def test_32_bit_libraries_are_chosen_by_the_same_names(driver_root: DriverRoot) -> None:
    files, _ = choose(driver_root, kind="library32")

    assert [f"/usr/lib32/libnvidia-ml.so.{VERSION}", f"/usr/lib32/libcuda.so.{VERSION}"] == [f.path for f in files]
    assert {"library32"} == {file.kind for file in files}


def test_links_are_those_of_the_row(driver_root: DriverRoot) -> None:
    files, _ = choose(driver_root)
    links = {link for file in files for link in file.links}

    assert ("libcuda.so", "libcuda.so.1") in links
    assert ("libGLX_indirect.so.0", f"libGLX_nvidia.so.{VERSION}") in links


def test_without_glvnd_the_old_gl_libraries_are_taken(driver_root: DriverRoot) -> None:
    files, _ = choose(driver_root, glvnd=False)

    assert "libGL.so" in names(files)
    assert "libGLX_nvidia.so" not in names(files)


def test_a_gl_library_that_is_not_nvidias_is_passed_over(driver_root: DriverRoot) -> None:
    compile_library(driver_root.library("libEGL.so"), "libEGL.so.1")
    driver_root.ldconfig()

    files, chooser = choose(driver_root, glvnd=False)

    assert "libEGL.so" not in names(files)
    assert any("libnvidia-eglcore" in line for line in chooser.skipped)


@pytest.mark.parametrize(
    "note",
    [
        pytest.param(OLD_NOTE, id="old-kernel"),
        pytest.param("", id="no-note"),
        pytest.param(TLS_NOTE.replace("0, 2, 3, 99", "1, 2, 3, 99"), id="another-system"),
    ],
)
def test_a_tls_library_with_another_note_is_passed_over(driver_root: DriverRoot, note: str) -> None:
    compile_library(driver_root.library("libnvidia-tls.so"), "", note=note)

    files, chooser = choose(driver_root)

    assert "libnvidia-tls.so" not in names(files)
    assert any("ABI note" in line for line in chooser.skipped)


def test_the_last_acceptable_file_wins(driver_root: DriverRoot) -> None:
    compile_library(driver_root.path / f"opt/a/libcuda.so.{VERSION}", "libcuda.so.1")
    compile_library(driver_root.path / "opt/b/libcuda.so.470.1", "libcuda.so.1")

    files, _ = choose(
        driver_root,
        entry(f"/{LIBDIR}/libcuda.so.{VERSION}"),
        entry(f"/opt/a/libcuda.so.{VERSION}"),
        entry("/opt/b/libcuda.so.470.1"),
    )

    assert [f"/opt/a/libcuda.so.{VERSION}"] == [file.path for file in files]


def test_a_file_that_the_cache_names_twice_is_looked_at_once(driver_root: DriverRoot) -> None:
    path = f"/{LIBDIR}/libcuda.so.{VERSION}"

    files, chooser = choose(driver_root, entry(path), entry(f"/{LIBDIR}/libcuda.so.1"))

    assert [path] == [file.path for file in files]
    assert [] == chooser.skipped


def test_links_in_the_cache_are_resolved_below_the_root(driver_root: DriverRoot) -> None:
    (driver_root.path / "opt").symlink_to(f"/{LIBDIR}")

    files, _ = choose(driver_root, entry("/opt/libcuda.so.1"))

    assert [f"/{LIBDIR}/libcuda.so.{VERSION}"] == [file.path for file in files]


def test_entries_of_other_kinds_are_not_looked_at(driver_root: DriverRoot) -> None:
    path = f"/{LIBDIR}/libcuda.so.{VERSION}"

    files, chooser = choose(
        driver_root, entry(path, flags=0x302), entry(path, flags=0xA03), entry("/none/libz.so.1", name="libz.so.1")
    )

    assert ((), []) == (files, chooser.skipped)


def test_a_stale_entry_is_a_warning(driver_root: DriverRoot) -> None:
    driver_root.library("libcuda.so").unlink()

    files, chooser = choose(driver_root)

    assert "libcuda.so" not in names(files)
    assert "libnvidia-ml.so" in names(files)
    assert any("stale entry" in line and "no such file" in line for line in chooser.skipped)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda data: b"\x7fELF", "ELF, header", id="cut-short"),
        pytest.param(lambda data: b"junk" * 100, "ELF, header", id="not-elf"),
        pytest.param(lambda data: data[:18] + b"\xb7\x00" + data[20:], "built for EM_AARCH64", id="wrong-machine"),
    ],
)
def test_a_file_that_is_not_the_library_is_a_warning(driver_root: DriverRoot, change: object, reason: str) -> None:
    path = driver_root.library("libcuda.so")
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]

    files, chooser = choose(driver_root)

    assert "libcuda.so" not in names(files)
    assert "libnvidia-ml.so" in names(files)
    assert any(reason in line and str(path.name) in line for line in chooser.skipped)


def test_something_that_is_no_file_is_a_warning(driver_root: DriverRoot) -> None:
    path = driver_root.library("libcuda.so")
    path.unlink()
    os.mkfifo(path)

    _, chooser = choose(driver_root)

    assert any("cannot be read" in line for line in chooser.skipped)


def test_a_32_bit_file_under_a_64_bit_entry_is_refused(driver_root: DriverRoot) -> None:
    _, chooser = choose(driver_root, entry(f"/usr/lib32/libcuda.so.{VERSION}"))

    assert any("32 bits" in line for line in chooser.skipped)


def test_an_architecture_without_driver() -> None:
    assert "EM_AARCH64" == host_arch("aarch64").elf
    with pytest.raises(DetectionError, match="unsupported architecture: riscv64"):
        host_arch("riscv64")
