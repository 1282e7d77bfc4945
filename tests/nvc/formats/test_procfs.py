from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.formats import FormatError
from nvc.formats.procfs import (
    FileAttributes,
    MigMinor,
    PciAddress,
    char_majors,
    file_attributes,
    gpu_information,
    mig_minors,
    numbered,
    nvrm_version,
    pci_address,
)

DEVICES = (
    "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n238 nvidia-uvm\n  9 odd name\nx junk\n300 nvidia-uvm\n\n"
    "Block devices:\n  8 sd\n"
)


def test_majors_of_character_devices() -> None:
    expected = {"mem": 1, "nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 238, "odd name": 9}

    assert expected == char_majors(DEVICES)


@pytest.mark.parametrize("text", ["", "Block devices:\n  8 sd\n", "Character devices:"])
def test_no_character_devices(text: str) -> None:
    assert {} == char_majors(text)


def test_a_list_that_nothing_follows() -> None:
    assert {"mem": 1, "nvidia": 195} == char_majors("Character devices:\n  1 mem\n195 nvidia")


def test_majors_of_this_machine() -> None:
    assert 1 == char_majors(Path("/proc/devices").read_text())["mem"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", FileAttributes(), id="empty"),
        pytest.param(
            "DeviceFileUID: 5\nDeviceFileGID: 6\nDeviceFileMode: 432\nModifyDeviceFiles: 0\n",
            FileAttributes(5, 6, 0o660, False),
            id="params",
        ),
        pytest.param(
            "DeviceFileMinor: 7\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
            FileAttributes(mode=0o400, minor=7),
            id="capability",
        ),
        pytest.param('A: 1\nRegistry: ""\nDeviceFileUID: 5\n', FileAttributes(), id="ends-at-the-first-text-value"),
        pytest.param("\nDeviceFileUID: 5\n", FileAttributes(), id="ends-at-an-empty-line"),
        pytest.param(": 3\nDeviceFileUID: 5\n", FileAttributes(), id="ends-at-a-line-without-name"),
        pytest.param("DeviceFileUID: 5", FileAttributes(5), id="last-line-not-ended"),
        pytest.param("DeviceFileUID: -5\n", FileAttributes(), id="negative"),
        pytest.param("DeviceFileUID: 99999999999\n", FileAttributes(), id="beyond-32-bits"),
        pytest.param("DeviceFileUID: \u0665\n", FileAttributes(), id="digits-of-another-script"),
        pytest.param("ModifyDeviceFiles: 2\n", FileAttributes(modify=False), id="modify-is-one-or-not"),
    ],
)
def test_file_attributes_are_read_as_scanf_reads(text: str, expected: FileAttributes) -> None:
    assert expected == file_attributes(text)


def test_mig_minors() -> None:
    expected = (
        MigMinor("config", 1),
        MigMinor("monitor", 2),
        MigMinor("gpu0/gi0/access", 3, 0, 0),
        MigMinor("gpu12/gi3/ci7/access", 1658, 12, 3, 7),
    )

    assert expected == mig_minors("config 1\nmonitor 2\ngpu0/gi0/access 3\n\ngpu12/gi3/ci7/access 1658\n")


@pytest.mark.parametrize(
    "line",
    [
        "config",
        "config x",
        "other 3",
        "gpu0/access 3",
        "gpu0/gi0/ci0 3",
        "gpux/gi0/access 3",
        "gpu0/gi/access 3",
        "gpu0/gi0/ci0/x/access 3",
        "gi0/gpu0/access 3",
        "config 99999999999",
    ],
)
def test_a_broken_line_of_mig_minors_is_named(line: str) -> None:
    with pytest.raises(FormatError, match="mig-minors, line 2"):
        mig_minors("config 1\n" + line + "\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:00:06.0", PciAddress(0, 0, 6, 0)),
        ("10000:3D:1f.7", PciAddress(0x10000, 0x3D, 0x1F, 7)),
        ("cfddabcd:00:00.0", PciAddress(0xCFDDABCD, 0, 0, 0)),
        ("00:06.0", None),
        ("0000:00:06", None),
        ("0000:00:06.", None),
        ("0000::06.0", None),
        ("0000:00:0g.0", None),
        ("0x00:00:06.0", None),
        ("123456789:00:06.0", None),
        ("", None),
    ],
)
def test_pci_addresses_of_every_width(text: str, expected: PciAddress | None) -> None:
    assert expected == pci_address(text)


@pytest.mark.parametrize(("name", "expected"), [("gpu0", 0), ("gpu12", 12), ("gpu", -1), ("gi0", -1), ("gpu-1", -1)])
def test_numbered_names(name: str, expected: int) -> None:
    assert expected == numbered(name, "gpu")


def test_gpu_information() -> None:
    text = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-1\nBus Location: \t 0000:00:06.0\njunk\n: x\n"

    assert {"Model": "NVIDIA H200", "GPU UUID": "GPU-1", "Bus Location": "0000:00:06.0"} == gpu_information(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (a@b)\n", "580.159.04"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54  Tue\nGCC version: gcc 12.2.0\n", "535.54"),
        ("NVRM version: nothing here\nGCC version: 12.2.0", ""),
        ("GCC version: gcc version 15.3.0\n", ""),
        ("", ""),
    ],
)
def test_driver_version(text: str, expected: str) -> None:
    assert expected == nvrm_version(text)


@given(st.text())
def test_random_text_never_breaks_a_parser(text: str) -> None:
    char_majors("Character devices:\n" + text)
    file_attributes(text)
    gpu_information(text)
    nvrm_version("NVRM version:" + text)
    pci_address(text)
    try:
        mig_minors(text)
    except FormatError as error:
        assert error.place.startswith("line ")
