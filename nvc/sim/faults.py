"""What can go wrong in a simulated machine's NVML: "FUNCTION hang", as native/sim/machine_parse.c reads it."""

from __future__ import annotations

import re

from nvc.base.errors import InputError
from nvc.base.nearest import nearest

WHAT = "hang | crash | error NUMBER | slow MILLISECONDS"
_WHAT = re.compile(r"hang|crash|error [0-9]{1,3}|slow [0-9]{1,6}")
#: Functions of native/sim/nvml_*.c that look for a fault at their start (tests/nvc/sim/test_faults.py compares).
#: nvmlInit stands for each of its versions.
FUNCTIONS = (
    "nvmlComputeInstanceGetInfo",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetPciInfo_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlGpuInstanceGetComputeInstanceById",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    "nvmlGpuInstanceGetInfo",
    "nvmlInit",
    "nvmlShutdown",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
)


def check(fault: str, where: str) -> None:
    """Raises InputError for a fault that the simulated NVML cannot have."""
    function, _, what = fault.partition(" ")
    if function not in FUNCTIONS:
        near = nearest(function, FUNCTIONS)
        raise InputError(
            f"{where}: the simulated NVML has no function {function[:64]!r}",
            hint=f"did you mean {near}?" if near else f"there are {', '.join(FUNCTIONS)}",
        )
    if not _WHAT.fullmatch(what):
        raise InputError(f"{where}: {fault[:99]!r} does not say what goes wrong", hint=f"write {function} {WHAT}")
