"""NVML, as much of it as discovery asks, under the names of nvidia-ml-py, whose import takes longer
than the whole query. Runs in the driver service; the library is found by its SONAME, once something has loaded it.

Source: nvml.h of NVIDIA's CUDA toolkit. Functions and constants keep their names; a function that the library does not
have answers NVML_ERROR_FUNCTION_NOT_FOUND, as with nvidia-ml-py. Every function raises NVMLError.
"""

from __future__ import annotations

import struct
import sys

from nvc.bindings.library import INT
from nvc.linux import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.linux.raw_ctypes import Argument

LIBRARY = "libnvidia-ml.so.1"

# nvmlReturn_t
NVML_SUCCESS = 0
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18

NVML_DEVICE_MIG_ENABLE = 1

# Sizes of buffers: NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE, NVML_DEVICE_NAME_V2_BUFFER_SIZE,
# NVML_DEVICE_UUID_V2_BUFFER_SIZE.
_VERSION_SIZE, _NAME_SIZE, _UUID_SIZE = 80, 96, 96
_POINTER = 8


class NVMLError(Exception):
    """value: nvmlReturn_t."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class nvmlPciInfo_t:
    """The members that are used. Behind them: ids and busId."""

    __slots__ = ("bus", "device", "domain")
    SIZE = 16 + 5 * 4 + 32

    def __init__(self, buffer: bytearray) -> None:
        self.domain, self.bus, self.device = struct.unpack_from("=3I", buffer, 16)  # behind busIdLegacy


class nvmlMemory_t:
    """Bytes."""

    __slots__ = ("free", "total", "used")

    def __init__(self, buffer: bytearray) -> None:
        self.total, self.free, self.used = struct.unpack("=3Q", buffer)


class nvmlUtilization_t:
    """Percent."""

    __slots__ = ("gpu", "memory")

    def __init__(self, buffer: bytearray) -> None:
        self.gpu, self.memory = struct.unpack("=2I", buffer)


_library = 0
_functions: dict[str, int] = {}


def _function(name: str) -> int:
    global _library
    found = _functions.get(name)
    if found is None:
        _library = _library or syscalls.load(LIBRARY)
        found = _functions[name] = syscalls.symbol(_library, name)
    if not found:
        raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND)
    return found


def _call(name: str, *arguments: Argument) -> None:
    result = syscalls.invoke(_function(name), *arguments) & INT
    if result != NVML_SUCCESS:
        raise NVMLError(result)


def _number(name: str, *arguments: Argument, size: int = 4) -> int:
    """The unsigned number of so many bytes that it writes."""
    value = bytearray(size)
    _call(name, *arguments, value)
    return int.from_bytes(value, sys.byteorder)


def _two(name: str, handle: int) -> tuple[int, int]:
    """The two numbers that it writes."""
    first, second = bytearray(4), bytearray(4)
    _call(name, handle, first, second)
    return int.from_bytes(first, sys.byteorder), int.from_bytes(second, sys.byteorder)


def _text(name: str, *arguments: Argument, size: int) -> str:
    buffer = bytearray(size)
    _call(name, *arguments, buffer, size)
    return buffer.partition(b"\0")[0].decode()


def nvmlInit() -> None:
    _call("nvmlInitWithFlags", 0)


def nvmlErrorString(result: int) -> str:
    """NVML's text for a number."""
    return syscalls.text(syscalls.invoke(_function("nvmlErrorString"), result)).decode()


def nvmlSystemGetDriverVersion() -> str:
    return _text("nvmlSystemGetDriverVersion", size=_VERSION_SIZE)


def nvmlSystemGetCudaDriverVersion() -> int:
    return _number("nvmlSystemGetCudaDriverVersion")


def nvmlDeviceGetCount() -> int:
    return _number("nvmlDeviceGetCount_v2")


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return _number("nvmlDeviceGetHandleByIndex_v2", index, size=_POINTER)


def nvmlDeviceGetPciInfo(handle: int) -> nvmlPciInfo_t:
    buffer = bytearray(nvmlPciInfo_t.SIZE)
    _call("nvmlDeviceGetPciInfo_v3", handle, buffer)
    return nvmlPciInfo_t(buffer)


def nvmlDeviceGetCudaComputeCapability(handle: int) -> tuple[int, int]:
    return _two("nvmlDeviceGetCudaComputeCapability", handle)


def nvmlDeviceGetMigMode(handle: int) -> tuple[int, int]:
    """(mode in force, mode after the next reset)."""
    return _two("nvmlDeviceGetMigMode", handle)


def nvmlDeviceGetMinorNumber(handle: int) -> int:
    return _number("nvmlDeviceGetMinorNumber", handle)


def nvmlDeviceGetName(handle: int) -> str:
    return _text("nvmlDeviceGetName", handle, size=_NAME_SIZE)


def nvmlDeviceGetBrand(handle: int) -> int:
    return _number("nvmlDeviceGetBrand", handle)


def nvmlDeviceGetUUID(handle: int) -> str:
    return _text("nvmlDeviceGetUUID", handle, size=_UUID_SIZE)


def nvmlDeviceGetMemoryInfo(handle: int) -> nvmlMemory_t:
    buffer = bytearray(24)
    _call("nvmlDeviceGetMemoryInfo", handle, buffer)
    return nvmlMemory_t(buffer)


def nvmlDeviceGetUtilizationRates(handle: int) -> nvmlUtilization_t:
    buffer = bytearray(8)
    _call("nvmlDeviceGetUtilizationRates", handle, buffer)
    return nvmlUtilization_t(buffer)


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    """Milliwatts."""
    return _number("nvmlDeviceGetPowerUsage", handle)


def nvmlDeviceGetEnforcedPowerLimit(handle: int) -> int:
    """Milliwatts."""
    return _number("nvmlDeviceGetEnforcedPowerLimit", handle)


def nvmlDeviceGetTotalEnergyConsumption(handle: int) -> int:
    """Millijoules since the driver was loaded; since Volta."""
    return _number("nvmlDeviceGetTotalEnergyConsumption", handle, size=8)


def nvmlDeviceGetMaxMigDeviceCount(handle: int) -> int:
    return _number("nvmlDeviceGetMaxMigDeviceCount", handle)


def nvmlDeviceGetMigDeviceHandleByIndex(handle: int, index: int) -> int:
    return _number("nvmlDeviceGetMigDeviceHandleByIndex", handle, index, size=_POINTER)


def nvmlDeviceGetGpuInstanceId(handle: int) -> int:
    return _number("nvmlDeviceGetGpuInstanceId", handle)


def nvmlDeviceGetComputeInstanceId(handle: int) -> int:
    return _number("nvmlDeviceGetComputeInstanceId", handle)
