"""The structures of native/sim/nvml.h against those of nvidia-ml-py."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pynvml

THEIRS: dict[str, type[ctypes.Structure]] = {
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlPciInfo_v2_t": pynvml.nvmlPciInfo_v2_t,
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
    "nvmlGpuInstanceInfo_t": pynvml.c_nvmlGpuInstanceInfo_t,
    "nvmlComputeInstanceInfo_t": pynvml.c_nvmlComputeInstanceInfo_t,
    "nvmlGpuInstanceProfileInfo_t": pynvml.c_nvmlGpuInstanceProfileInfo_t,
    "nvmlComputeInstanceProfileInfo_t": pynvml.c_nvmlComputeInstanceProfileInfo_t,
}


def test_sizes_and_offsets_agree(templates: Path) -> None:
    text = subprocess.run([templates / "abi_nvml"], capture_output=True, text=True, check=True).stdout
    ours, theirs = {}, {}
    for line in text.splitlines():
        name, offset, size = line.split()
        ours[name] = (int(offset), int(size))
        structure, _, member = name.partition(".")
        if member == "*":
            theirs[name] = (0, ctypes.sizeof(THEIRS[structure]))
        else:
            field = getattr(THEIRS[structure], member)
            theirs[name] = (field.offset, field.size)
    assert theirs == ours
    assert {name.partition(".")[0] for name in ours} == set(THEIRS)


def test_error_numbers_agree() -> None:
    source = (Path(__file__).parents[3] / "native/sim/nvml.h").read_text()
    for line in source.splitlines():
        name, _, number = line.strip().rstrip(",").partition(" = ")
        if name.startswith("NVML_ERROR_"):
            assert getattr(pynvml, name) == int(number)
