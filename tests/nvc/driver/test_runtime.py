from __future__ import annotations

import os
from typing import Any

import pytest

from nvc.base.errors import DetectionError
from nvc.driver.discover import discover
from nvc.driver.runtime import check_mig_nodes, imex_channels, read_proc_files
from nvc.model import DeviceNode, DriverOptions, ImexChannel
from tests.support.driver_root import H200, NVRM, SYSTEM, DriverRoot


def test_copies_of_the_drivers_files(driver_root: DriverRoot) -> None:
    (driver_root.path / "proc/driver/nvidia/params").chmod(0o444)

    params, version, registry = read_proc_files(driver_root.host)

    assert ("/proc/driver/nvidia/params", 0o444) == (params.path, params.mode)
    assert "ModifyDeviceFiles: 0\n" in params.text
    assert "ModifyDeviceFiles: 1" not in params.text
    assert "DeviceFileMode: 438" in params.text
    assert (NVRM, "/proc/driver/nvidia/registry") == (version.text, registry.path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ModifyDeviceFiles: 0\n", "ModifyDeviceFiles: 0\n"),
        ("A: 1\nModifyDeviceFiles: 1\nModifyDeviceFiles: 1\n", "A: 1\nModifyDeviceFiles: 0\nModifyDeviceFiles: 1\n"),
        ("", ""),
        ("other \udcff text", "other \udcff text"),
    ],
)
def test_only_the_first_switch_is_turned(driver_root: DriverRoot, text: str, expected: str) -> None:
    driver_root.write("proc/driver/nvidia/params", text.encode("utf-8", "surrogateescape"))

    assert expected == read_proc_files(driver_root.host)[0].text


def test_a_missing_file_is_left_out_with_a_warning(driver_root: DriverRoot, log: Any) -> None:
    (driver_root.path / "proc/driver/nvidia/registry").unlink()

    assert 2 == len(read_proc_files(driver_root.host, log))
    assert log.has("missing /proc/driver/nvidia/registry: no such file")
    assert 2 == len(read_proc_files(driver_root.host))


def test_a_file_that_cannot_be_read_is_an_error(driver_root: DriverRoot) -> None:
    (driver_root.path / "proc/driver/nvidia/registry").unlink()
    (driver_root.path / "proc/driver/nvidia/registry").mkdir()

    with pytest.raises(DetectionError, match="file read error: /proc/driver/nvidia/registry"):
        read_proc_files(driver_root.host)


def test_channels_that_are_not_there(driver_root: DriverRoot) -> None:
    driver_root.write("dev/nvidia-caps-imex-channels/channel2", "")

    assert (ImexChannel(0, None), ImexChannel(2, None)) == imex_channels(driver_root.host, (0, 2))


def test_without_channels_nothing_is_read(driver_root: DriverRoot) -> None:
    os.unlink(driver_root.path / "proc/devices")

    assert () == imex_channels(driver_root.host, ())


@pytest.mark.root
def test_channels(driver_root: DriverRoot) -> None:
    path = "/dev/nvidia-caps-imex-channels/channel"
    driver_root.node(f"{path[1:]}0", 242, 0)
    driver_root.node(f"{path[1:]}1048575", 242, 1048575)
    driver_root.node(f"{path[1:]}2", 241, 2)
    driver_root.node(f"{path[1:]}3", 242, 4)

    channels = imex_channels(driver_root.host, (0, 1048575, 2, 3, 0))

    good = (DeviceNode(f"{path}0", 242, 0), DeviceNode(f"{path}1048575", 242, 1048575))
    assert [*good, None, None, good[0]] == [channel.node for channel in channels]


@pytest.mark.root
def test_a_channel_of_a_driver_without_imex(driver_root: DriverRoot) -> None:
    driver_root.node("dev/nvidia-caps-imex-channels/channel0", 242, 0)
    driver_root.majors("241 nvidia-caps")

    assert (ImexChannel(0, None),) == imex_channels(driver_root.host, (0,))


def test_mig_nodes_are_checked_when_they_are_needed(driver_root: DriverRoot) -> None:
    def found() -> Any:
        return discover(driver_root.host, DriverOptions(), SYSTEM, (H200,), driver_root.environ)

    good = found()
    check_mig_nodes(good, good.gpus)
    (driver_root.path / "proc/driver/nvidia-caps/mig-minors").unlink()
    bad = found()

    check_mig_nodes(bad, ())
    with pytest.raises(DetectionError, match="mig-minors cannot be read"):
        check_mig_nodes(bad, bad.gpus)
    driver_root.majors()
    files_only = found()
    check_mig_nodes(files_only, files_only.gpus)
