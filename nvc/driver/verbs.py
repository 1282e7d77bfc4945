"""The verbs of the driver service."""

from __future__ import annotations

from nvc.base.errors import DetectionError, InitializationError
from nvc.base.verbs import HelperService, Verb
from nvc.driver.facts import GpuRequest, LoadRequest, NvmlGpu, NvmlLoads, NvmlSystem, SystemRequest

_SLOW = (
    "the GPU driver takes too long to start: keep it loaded with nvidia-persistenced (nvidia-smi -pm 1), "
    "or allow more with --timeout SECONDS"
)

#: NVML, in a process without rights: chrooted to the driver root, uid of --user, no capabilities, no new privileges,
#: seccomp. It takes no descriptors and no paths: a caller can do no more with it than query NVML.
DRIVER = HelperService(
    "driver",
    (
        Verb(
            "system",
            SystemRequest,
            NvmlSystem,
            why="Takes nothing. Versions and a count that every user of the machine may ask nvidia-smi for.",
            failure=InitializationError,
            hint=_SLOW,
        ),
        Verb(
            "gpu",
            GpuRequest,
            NvmlGpu,
            why="Takes a number that only NVML's own bounds check sees. Reads properties, sets nothing.",
            failure=DetectionError,
            hint=_SLOW,
        ),
        Verb(
            "load",
            LoadRequest,
            NvmlLoads,
            why="Takes nothing. Utilisation and power that every user of the machine may ask nvidia-smi for.",
            failure=DetectionError,
            hint=_SLOW,
        ),
    ),
    crash_hint="the driver's NVML library failed, not nvc-py: try nvidia-smi, see dmesg, reinstall the driver",
)
