"""Programs, firmware and sockets."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from nvc.base.errors import DetectionError
from nvc.driver import binaries
from nvc.model import DriverFile, DriverOptions
from tests.support.driver_root import VERSION, DriverRoot

NONE = DriverOptions()


def listen(root: DriverRoot, path: str) -> None:
    """A socket file: bound through a short relative name, because a socket's path is limited to 108 bytes."""
    target = root.path / path
    target.parent.mkdir(parents=True, exist_ok=True)
    before = os.getcwd()
    os.chdir(target.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(target.name)
    finally:
        os.chdir(before)


def test_the_first_directory_of_path_wins(driver_root: DriverRoot) -> None:
    driver_root.write("usr/local/bin/nvidia-smi", "")

    files, warnings = binaries.find_binaries(str(driver_root.path), ("/usr/local/bin", "/usr/bin"), NONE)

    expected = ["/usr/local/bin/nvidia-smi", "/usr/bin/nvidia-persistenced", "/usr/bin/nvidia-cuda-mps-control"]
    assert expected == [file.path for file in files]
    assert ["utility", "utility", "compute"] == [file.capability for file in files]
    assert "missing binary nvidia-debugdump" in warnings


def test_a_program_is_taken_over_a_script_that_would_start_it(driver_root: DriverRoot) -> None:
    driver_root.write("usr/local/bin/nvidia-smi", "#!/bin/sh\nexec /opt/driver/nvidia-smi\n")
    driver_root.write("opt/driver/nvidia-smi", "\x7fELF")

    files, warnings = binaries.find_binaries(str(driver_root.path), ("/usr/local/bin", "/opt/driver"), NONE)

    assert "/opt/driver/nvidia-smi" in [file.path for file in files]
    assert "selecting /opt/driver/nvidia-smi over /usr/local/bin/nvidia-smi, which is a script" in warnings


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ("/usr/local/nvidia/lib64/libnvidia-ml.so.580.1", ("/usr/local/nvidia/bin",)),
        ("/lib64/libnvidia-ml.so.580.1", ("/bin",)),
        ("/libnvidia-ml.so.580.1", ()),
        ("/usr/local/nvidia/lib64/libcuda.so.580.1", ()),
    ],
)
def test_programs_may_be_beside_the_library(library: str, expected: tuple[str, ...]) -> None:
    assert binaries.beside([DriverFile(library, "library", "utility")], "libnvidia-ml.so") == expected


def test_a_directory_or_dangling_link_of_the_name_is_passed_over(driver_root: DriverRoot) -> None:
    (driver_root.path / "opt/a/nvidia-smi").mkdir(parents=True)
    (driver_root.path / "opt/b").mkdir()
    (driver_root.path / "opt/b/nvidia-smi").symlink_to("/none")
    (driver_root.path / "opt/c").mkdir()
    (driver_root.path / "opt/c/nvidia-smi").symlink_to("/usr/bin/nvidia-smi")

    files, _ = binaries.find_binaries(str(driver_root.path), ("/opt/a", "/opt/b", "/opt/c"), NONE)

    assert ["/usr/bin/nvidia-smi"] == [file.path for file in files]


def test_no_mps_leaves_its_programs_out(driver_root: DriverRoot) -> None:
    files, warnings = binaries.find_binaries(str(driver_root.path), ("/usr/bin",), DriverOptions(no_mps=True))

    assert not [text for text in (*(file.path for file in files), *warnings) if "mps" in text]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/bin:/bin", ("/usr/bin", "/bin")),
        ("/usr/bin/:/usr/bin", ("/usr/bin",)),
        (":bin:.", ("/", "/bin", "/.")),
        ("", ("/",)),
    ],
)
def test_path_is_split(path: str, expected: tuple[str, ...]) -> None:
    assert expected == binaries.directories({"PATH": path})


def test_no_path_is_an_error() -> None:
    with pytest.raises(DetectionError, match="environment variable PATH not found"):
        binaries.directories({})


def test_firmware_files_by_name(driver_root: DriverRoot) -> None:
    files, warnings = binaries.find_firmware(str(driver_root.path), VERSION, NONE)

    base = f"/lib/firmware/nvidia/{VERSION}"
    assert [f"{base}/gsp_ga10x.bin", f"{base}/gsp_tu10x.bin"] == [file.path for file in files]
    assert [] == warnings


def test_firmware_paths_stay_unresolved(driver_root: DriverRoot) -> None:
    (driver_root.path / "lib").rename(driver_root.path / "elsewhere")
    (driver_root.path / "lib").symlink_to("/elsewhere")

    files, _ = binaries.find_firmware(str(driver_root.path), VERSION, NONE)

    assert f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin" == files[0].path


@pytest.mark.parametrize(("version", "expected"), [("1.2.3", "no such file"), (VERSION, "gsp*.bin")])
def test_missing_firmware_is_a_warning(driver_root: DriverRoot, version: str, expected: str) -> None:
    for file in (driver_root.path / f"lib/firmware/nvidia/{VERSION}").glob("gsp*"):
        file.unlink()

    files, (warning,) = binaries.find_firmware(str(driver_root.path), version, NONE)

    assert [] == files
    assert expected in warning


def test_firmware_can_be_left_out(driver_root: DriverRoot) -> None:
    assert ([], []) == binaries.find_firmware(str(driver_root.path), "none", DriverOptions(no_gsp_firmware=True))


def test_sockets_are_found_through_roots_links_and_named_as_in_the_table(driver_root: DriverRoot) -> None:
    listen(driver_root, "run/nvidia-persistenced/socket")
    listen(driver_root, "run/nvidia-fabricmanager/socket")
    (driver_root.path / "var").mkdir(exist_ok=True)
    (driver_root.path / "var/run").symlink_to("/run")
    listen(driver_root, "tmp/nvidia-mps/control")

    files, warnings = binaries.find_ipcs(str(driver_root.path), {}, NONE)

    assert [
        ("/var/run/nvidia-persistenced/socket", "utility"),
        ("/var/run/nvidia-fabricmanager/socket", "utility"),
        ("/tmp/nvidia-mps", "compute"),
    ] == [(file.path, file.capability) for file in files]
    assert [] == warnings


def test_each_socket_can_be_left_out(driver_root: DriverRoot) -> None:
    every = DriverOptions(no_persistenced=True, no_fabricmanager=True, no_mps=True)

    assert ([], []) == binaries.find_ipcs(str(driver_root.path), {}, every)


def test_missing_sockets_are_warnings(driver_root: DriverRoot) -> None:
    files, warnings = binaries.find_ipcs(str(driver_root.path), {}, NONE)

    assert [] == files
    assert 3 == len(warnings)


@pytest.mark.parametrize("directory", ["/srv/mps", "srv/mps"])
def test_the_mps_directory_may_be_elsewhere(driver_root: DriverRoot, directory: str) -> None:
    listen(driver_root, "srv/mps/control")

    files, _ = binaries.find_ipcs(str(driver_root.path), {"CUDA_MPS_PIPE_DIRECTORY": directory}, NONE)

    assert ["/srv/mps"] == [file.path for file in files]


@pytest.mark.parametrize("directory", ["/", "/etc/..", "/etc/ld.so.conf"])
def test_no_pipe_directory_hands_out_the_root_or_a_file(driver_root: DriverRoot, directory: str) -> None:
    files, warnings = binaries.find_ipcs(str(driver_root.path), {"CUDA_MPS_PIPE_DIRECTORY": directory}, NONE)

    assert [] == files
    assert any(f"skipping ipc path {directory}" in line for line in warnings)


def test_a_file_in_a_sockets_place_is_passed_over(driver_root: DriverRoot) -> None:
    driver_root.write("var/run/nvidia-persistenced/socket", "")

    files, warnings = binaries.find_ipcs(str(driver_root.path), {}, NONE)

    assert [] == files
    assert any("not a socket" in line for line in warnings)


@pytest.mark.root
def test_a_socket_that_may_not_be_looked_at_is_missing(driver_root: DriverRoot) -> None:
    listen(driver_root, "var/run/nvidia-persistenced/socket")
    (driver_root.path / "var/run").chmod(0o700)
    # pytest's directories are for their owner only; every one above must be passable for the other user.
    for parent in [driver_root.path, *driver_root.path.parents]:
        if parent != Path("/tmp") and str(parent).startswith("/tmp"):
            parent.chmod(0o755)

    child = os.fork()
    if child == 0:
        os.setuid(65534)
        files, warnings = binaries.find_ipcs(str(driver_root.path), {}, NONE)
        os._exit(0 if files == [] and "permission denied" in warnings[0] else 1)

    assert 0 == os.waitpid(child, 0)[1]


def test_another_failure_is_an_error(driver_root: DriverRoot) -> None:
    (driver_root.path / "srv").mkdir()
    long = {"CUDA_MPS_PIPE_DIRECTORY": "/srv/" + "x" * 300}

    with pytest.raises(DetectionError, match=r"stat failed: /srv/xxx.*: " + os.strerror(errno.ENAMETOOLONG).lower()):
        binaries.find_ipcs(str(driver_root.path), long, NONE)
