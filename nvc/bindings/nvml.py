"""NVML, as much of it as discovery asks, under the names of nvidia-ml-py, whose import takes longer
than the whole query. Runs in the driver service; the library is found by its SONAME, once something has loaded it.

Source: nvml.h of NVIDIA's CUDA toolkit. Functions and constants keep their names; a function that the library does not
have answers NVML_ERROR_FUNCTION_NOT_FOUND, as with nvidia-ml-py. Every function raises NVMLError.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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


class NVMLError(Exception):
    """value: nvmlReturn_t."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class nvmlPciInfo_t(ctypes.Structure):
    _fields_ = [
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("busId", ctypes.c_char * 32),
    ]


class nvmlMemory_t(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class nvmlUtilization_t(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


_library: Any = None


def _function(name: str) -> Any:
    global _library
    if _library is None:
        _library = ctypes.CDLL(LIBRARY)
    try:
        return getattr(_library, name)
    except AttributeError:
        raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND) from None


def _call(name: str, *arguments: Any) -> None:
    result = _function(name)(*arguments)
    if result != NVML_SUCCESS:
        raise NVMLError(result)


def _number(name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int:
    value = kind()
    _call(name, *arguments, ctypes.byref(value))
    number: int = value.value
    return number


def _text(name: str, *arguments: Any, size: int) -> str:
    buffer = ctypes.create_string_buffer(size)
    _call(name, *arguments, buffer, ctypes.c_uint(size))
    return buffer.value.decode()


def nvmlInit() -> None:
    _call("nvmlInitWithFlags", ctypes.c_uint(0))


def nvmlErrorString(result: int) -> str:
    """NVML's text for a number."""
    function = _function("nvmlErrorString")
    function.restype = ctypes.c_char_p
    return (function(result) or b"").decode()


def nvmlSystemGetDriverVersion() -> str:
    return _text("nvmlSystemGetDriverVersion", size=_VERSION_SIZE)


def nvmlSystemGetCudaDriverVersion() -> int:
    return _number("nvmlSystemGetCudaDriverVersion", kind=ctypes.c_int)


def nvmlDeviceGetCount() -> int:
    return _number("nvmlDeviceGetCount_v2")


def nvmlDeviceGetHandleByIndex(index: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    return handle


def nvmlDeviceGetPciInfo(handle: ctypes.c_void_p) -> nvmlPciInfo_t:
    info = nvmlPciInfo_t()
    _call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
    return info


def nvmlDeviceGetCudaComputeCapability(handle: ctypes.c_void_p) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def nvmlDeviceGetMigMode(handle: ctypes.c_void_p) -> tuple[int, int]:
    """(mode in force, mode after the next reset)."""
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    _call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
    return current.value, pending.value


def nvmlDeviceGetMinorNumber(handle: ctypes.c_void_p) -> int:
    return _number("nvmlDeviceGetMinorNumber", handle)


def nvmlDeviceGetName(handle: ctypes.c_void_p) -> str:
    return _text("nvmlDeviceGetName", handle, size=_NAME_SIZE)


def nvmlDeviceGetBrand(handle: ctypes.c_void_p) -> int:
    return _number("nvmlDeviceGetBrand", handle)


def nvmlDeviceGetUUID(handle: ctypes.c_void_p) -> str:
    return _text("nvmlDeviceGetUUID", handle, size=_UUID_SIZE)


def nvmlDeviceGetMemoryInfo(handle: ctypes.c_void_p) -> nvmlMemory_t:
    memory = nvmlMemory_t()
    _call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    return memory


def nvmlDeviceGetUtilizationRates(handle: ctypes.c_void_p) -> nvmlUtilization_t:
    utilization = nvmlUtilization_t()
    _call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(utilization))
    return utilization


def nvmlDeviceGetPowerUsage(handle: ctypes.c_void_p) -> int:
    """Milliwatts."""
    return _number("nvmlDeviceGetPowerUsage", handle)


def nvmlDeviceGetEnforcedPowerLimit(handle: ctypes.c_void_p) -> int:
    """Milliwatts."""
    return _number("nvmlDeviceGetEnforcedPowerLimit", handle)


def nvmlDeviceGetTotalEnergyConsumption(handle: ctypes.c_void_p) -> int:
    """Millijoules since the driver was loaded; since Volta."""
    return _number("nvmlDeviceGetTotalEnergyConsumption", handle, kind=ctypes.c_ulonglong)


def nvmlDeviceGetMaxMigDeviceCount(handle: ctypes.c_void_p) -> int:
    return _number("nvmlDeviceGetMaxMigDeviceCount", handle)


def nvmlDeviceGetMigDeviceHandleByIndex(handle: ctypes.c_void_p, index: int) -> ctypes.c_void_p:
    found = ctypes.c_void_p()
    _call("nvmlDeviceGetMigDeviceHandleByIndex", handle, ctypes.c_uint(index), ctypes.byref(found))
    return found


def nvmlDeviceGetGpuInstanceId(handle: ctypes.c_void_p) -> int:
    return _number("nvmlDeviceGetGpuInstanceId", handle)


def nvmlDeviceGetComputeInstanceId(handle: ctypes.c_void_p) -> int:
    return _number("nvmlDeviceGetComputeInstanceId", handle)
