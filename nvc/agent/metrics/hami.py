"""HAMi's names for what the agent knows, for dashboards and rules that have them (``metrics-hami``).

Names, labels and units are those of HAMi's vGPUmonitor and scheduler, its older names included: its "ratios" of
computing are percentages. What has no counterpart here is in docs/reference/metrics.md. ``namespace`` and ``pod`` are
the engine's, empty where it names none; ``container`` is the engine's id.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from nvc.agent.metrics.samples import COUNT, Row, cap, engine_names, limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nvc.agent.metrics.samples import Sample
    from nvc.agent.status import AgentStatus, StatusGpu, TenantGpu

#: What HAMi's chart sets, in its monitor's environment.
NODE_NAME = "NODE_NAME"
_PERCENT = 100
_CONTAINER = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_OLD_CONTAINER = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_DEVICE = ("node", "device_uuid", "device_index", "device_type")
_OLD_DEVICE = ("nodeid", "deviceuuid", "deviceidx", "devicetype")
#: HAMi puts the model behind it, which the agent does not know.
_TYPE = "NVIDIA"


def node() -> str:
    """The value of the label ``node``."""
    return os.environ.get(NODE_NAME) or socket.gethostname()


def _each(value: Callable[[AgentStatus, TenantGpu], float | None]) -> Callable[[AgentStatus], Iterator[Sample]]:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        for tenant in status.tenants:
            for position, gpu in enumerate(tenant.gpus):
                found = value(status, gpu)
                if found is not None:
                    yield (*engine_names(tenant.name)[:2], tenant.container, str(position), gpu.uuid), found

    return samples


def _device(value: Callable[[AgentStatus, StatusGpu], float]) -> Callable[[AgentStatus], Iterator[Sample]]:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        here = node()
        for gpu in status.gpus:
            yield (here, gpu.uuid, str(gpu.minor), _TYPE), value(status, gpu)

    return samples


def _on(status: AgentStatus, uuid: str) -> list[TenantGpu]:
    return [gpu for tenant in status.tenants for gpu in tenant.gpus if gpu.uuid == uuid]


def _memory(status: AgentStatus, gpu: TenantGpu) -> float:
    return gpu.memory


def _limit(status: AgentStatus, gpu: TenantGpu) -> float | None:
    return limit(status, gpu) or None


def _computing(status: AgentStatus, gpu: TenantGpu) -> float | None:
    return gpu.achieved_ratio * _PERCENT if gpu.target_ratio or gpu.is_measured else None


def _allocated(status: AgentStatus, gpu: StatusGpu) -> float:
    return sum(limit(status, one) for one in _on(status, gpu.uuid))


def _cores(status: AgentStatus, gpu: StatusGpu) -> float:
    """The caps' sum in percent: a tenant without a cap was given no part, as in HAMi."""
    return sum(part * _PERCENT for one in _on(status, gpu.uuid) if (part := cap(one)) < 1)


def _shared(status: AgentStatus, gpu: StatusGpu) -> float:
    return len(_on(status, gpu.uuid))


def _total(status: AgentStatus, gpu: StatusGpu) -> float:
    return gpu.memory


_USED = "Memory that a container has of a GPU."
_ALLOWED = "Memory that a container may have of a GPU."
_TIME = (
    "Part of the GPU's time that a container computed, or where that is not measured an estimate, in percent "
    "(HAMi: use of the SMs)."
)
_WHOLE = "Memory of a GPU."
_SHARING = "Containers that share a GPU."
_GIVEN = "Sum of the memory limits of a GPU's containers."
_CAPS = "Sum of the caps of a GPU's containers, in percent."

HAMI = (
    Row("hami_vgpu_memory_used_bytes", "gauge", "bytes", _CONTAINER, _USED, _each(_memory)),
    Row("hami_vgpu_memory_limit_bytes", "gauge", "bytes", _CONTAINER, _ALLOWED, _each(_limit)),
    Row("hami_container_device_memory_bytes", "gauge", "bytes", _CONTAINER, _USED, _each(_memory)),
    Row("hami_container_device_utilization_ratio", "gauge", "ratio", _CONTAINER, _TIME, _each(_computing)),
    Row("hami_gpu_memory_limit_bytes", "gauge", "bytes", _DEVICE, _WHOLE, _device(_total)),
    Row("hami_gpu_shared_count", "gauge", COUNT, _DEVICE, _SHARING, _device(_shared)),
    Row("hami_gpu_core_allocated_ratio", "gauge", "ratio", _DEVICE, _CAPS, _device(_cores)),
    Row(
        "hami_gpu_memory_allocated_bytes",
        "gauge",
        "bytes",
        ("node", "device_uuid", "device_index", "device_type", "device_cores"),
        _GIVEN,
        lambda status: [((*labels, str(_PERCENT)), value) for labels, value in _device(_allocated)(status)],
    ),
    Row("vGPU_device_memory_usage_in_bytes", "gauge", COUNT, _OLD_CONTAINER, _USED, _each(_memory)),
    Row("vGPU_device_memory_limit_in_bytes", "gauge", COUNT, _OLD_CONTAINER, _ALLOWED, _each(_limit)),
    Row("Device_utilization_desc_of_container", "gauge", COUNT, _OLD_CONTAINER, _TIME, _each(_computing)),
    Row("GPUDeviceMemoryLimit", "gauge", COUNT, _OLD_DEVICE, _WHOLE, _device(_total)),
    Row("GPUDeviceSharedNum", "gauge", COUNT, _OLD_DEVICE, _SHARING, _device(_shared)),
    Row("GPUDeviceCoreAllocated", "gauge", COUNT, _OLD_DEVICE, _CAPS, _device(_cores)),
)
