"""Run as a program: asks NVML about everything, prints JSON. Arguments: root to change to, or "" to stay.

A process of its own, because NVML keeps state, and a faulty one may hang or crash.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pynvml as nv


def attempt(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except nv.NVMLError as error:
        return f"error {error.value}"


def pci_v2(handle: Any) -> Any:
    """nvidia-ml-py has the structure and no function of that name."""
    info = nv.nvmlPciInfo_v2_t()
    assert nv._nvmlGetFunctionPointer("nvmlDeviceGetPciInfo_v2")(handle, ctypes.byref(info)) == 0
    return info


def instances(gpu: Any, mig: Any) -> list[int]:
    """The slices of a MIG device's GPU instance and compute instance, by the profiles as nvidia-ctk looks them up."""
    instance = nv.nvmlDeviceGetGpuInstanceById(gpu, nv.nvmlDeviceGetGpuInstanceId(mig))
    compute = nv.nvmlGpuInstanceGetComputeInstanceById(instance, nv.nvmlDeviceGetComputeInstanceId(mig))
    wanted = nv.nvmlGpuInstanceGetInfo(instance).profileId, nv.nvmlComputeInstanceGetInfo_v2(compute).profileId
    found = []
    for number in range(nv.NVML_GPU_INSTANCE_PROFILE_COUNT - 1):
        profile = attempt(nv.nvmlDeviceGetGpuInstanceProfileInfo, gpu, number, 1)
        if not isinstance(profile, str) and profile.id == wanted[0]:
            found.append(profile.sliceCount)
    for number in range(nv.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        profile = attempt(nv.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, number, 0, 1)
        if not isinstance(profile, str) and profile.id == wanted[1]:
            found.append(profile.sliceCount)
    return found


def gpu(handle: Any) -> dict[str, Any]:
    pci, pci2 = nv.nvmlDeviceGetPciInfo_v3(handle), pci_v2(handle)
    memory = nv.nvmlDeviceGetMemoryInfo(handle)
    memory2 = nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
    migs = []
    for index in range(nv.nvmlDeviceGetMaxMigDeviceCount(handle) + 1):
        mig = attempt(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if isinstance(mig, str):
            break
        parent = nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
        attributes = nv.nvmlDeviceGetAttributes(mig)
        migs.append(
            {
                "uuid": nv.nvmlDeviceGetUUID(mig),
                "name": nv.nvmlDeviceGetName(mig),
                "gi": nv.nvmlDeviceGetGpuInstanceId(mig),
                "ci": nv.nvmlDeviceGetComputeInstanceId(mig),
                "is_mig": nv.nvmlDeviceIsMigDeviceHandle(mig).value,  # nvidia-ml-py returns a c_uint here
                "parent": nv.nvmlDeviceGetUUID(parent),
                "slices": [attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount],
                "instances": attempt(instances, handle, mig),
                "memory": nv.nvmlDeviceGetMemoryInfo(mig).total,
                "minor": attempt(nv.nvmlDeviceGetMinorNumber, mig),
                "index": nv.nvmlDeviceGetIndex(mig),
                "by_uuid": nv.nvmlDeviceGetName(nv.nvmlDeviceGetHandleByUUID(nv.nvmlDeviceGetUUID(mig))),
            }
        )
    uuid, utilization = nv.nvmlDeviceGetUUID(handle), attempt(nv.nvmlDeviceGetUtilizationRates, handle)
    return {
        "uuid": uuid,
        "name": nv.nvmlDeviceGetName(handle),
        "brand": nv.nvmlDeviceGetBrand(handle),
        "minor": nv.nvmlDeviceGetMinorNumber(handle),
        "index": nv.nvmlDeviceGetIndex(handle),
        "arch": list(nv.nvmlDeviceGetCudaComputeCapability(handle)),
        "pci": [pci.domain, pci.bus, pci.device, pci.pciDeviceId, pci.pciSubSystemId],
        "pci_v2": [pci2.domain, pci2.bus, pci2.device, pci2.pciDeviceId, pci2.pciSubSystemId],
        "bus_id": pci.busId,
        "memory": [memory.total, memory2.total, memory2.reserved],
        "utilization": utilization if isinstance(utilization, str) else utilization.gpu,
        "power": [nv.nvmlDeviceGetPowerUsage(handle), nv.nvmlDeviceGetEnforcedPowerLimit(handle)],
        "mig_mode": attempt(nv.nvmlDeviceGetMigMode, handle),
        "energy": attempt(nv.nvmlDeviceGetTotalEnergyConsumption, handle),
        "mig_max": nv.nvmlDeviceGetMaxMigDeviceCount(handle),
        "gi": attempt(nv.nvmlDeviceGetGpuInstanceId, handle),
        "by_uuid": nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByUUID(uuid)),
        "by_bus_id": nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByPciBusId(pci.busId)),
        "migs": migs,
    }


def main() -> dict[str, Any]:
    if sys.argv[1]:
        os.chroot(sys.argv[1])
        os.chdir("/")
    if len(sys.argv) > 2:
        os.setgroups([])
        os.setgid(int(sys.argv[2]))
        os.setuid(int(sys.argv[2]))
    nv.nvmlInit()
    answer = {
        "driver": nv.nvmlSystemGetDriverVersion(),
        "nvml": nv.nvmlSystemGetNVMLVersion(),
        "cuda": [nv.nvmlSystemGetCudaDriverVersion(), nv.nvmlSystemGetCudaDriverVersion_v2()],
        "gpus": [gpu(nv.nvmlDeviceGetHandleByIndex(i)) for i in range(nv.nvmlDeviceGetCount())],
        "missing": [
            attempt(nv.nvmlDeviceGetHandleByIndex, 64),
            attempt(nv.nvmlDeviceGetHandleByUUID, "GPU-none"),
            attempt(nv.nvmlDeviceGetHandleByPciBusId, "0000:ff:1f.0"),
        ],
    }
    nv.nvmlShutdown()
    answer["after"] = attempt(nv.nvmlDeviceGetCount)
    return answer


if __name__ == "__main__":
    try:
        print(json.dumps(main()))
    except nv.NVMLError as error:
        print(json.dumps({"error": error.value, "text": str(error)}))
