"""NVML's answers as values (libnvidia-container.md 3.8, 3.9 and 4.2). Runs in the driver service only.

The binding (``nvc.bindings.nvml``) is passed in: it must be imported before chroot and load its library after.
nvmlShutdown is never called: the kernel cleans up when the process ends, and the call can hang.
"""

from __future__ import annotations

import os

from nvc.base.errors import DetectionError, InitializationError
from nvc.driver.facts import NvmlGpu, NvmlLoad, NvmlLoads, NvmlMig, NvmlSystem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from nvc.base.errors import NvcError

LIBRARY = "libnvidia-ml.so.1"
#: Of a GPU for which NVML has no brand: NVML_BRAND_UNKNOWN.
UNKNOWN_BRAND = 0

_HINTS = {
    "NVML_ERROR_DRIVER_NOT_LOADED": "load the NVIDIA kernel modules (nvidia-modprobe, or --load-kmods) and see dmesg",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the driver was updated while its kernel module was loaded: reboot, or "
    "unload and load the NVIDIA kernel modules",
    "NVML_ERROR_NO_PERMISSION": "the NVML process may not open the device nodes: see --user (for example "
    "--user=root:video) and DeviceFileMode in /proc/driver/nvidia/params",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "the driver is too old for containers with GPUs",
    "NVML_ERROR_GPU_IS_LOST": "it fell off the bus or is powered down: see dmesg; it needs a reset or a reboot",
    "NVML_ERROR_RESET_REQUIRED": "reset it (nvidia-smi --gpu-reset) or reboot",
}


def initialize(
    binding: Any, load: Callable[[str], None], path: str = LIBRARY, *, store: str = "", others: Iterable[str] = ()
) -> Nvml:
    """Load NVML and initialise it.

    load: dlopen. The binding finds the loaded library by its SONAME; its own load hides the reason of a failure.
    path: its name, or its path where the loader does not search. others: paths that are tried where it does not find
    it. store: WSL's driver store, for ``system``.
    Raises InitializationError.
    """
    try:
        _load(load, (path, *(other for other in others if os.path.exists(other))))
    except OSError as error:
        raise InitializationError(
            f"load library failed: {_lower_reason(str(error))}",
            hint=f"is the NVIDIA driver installed, for {os.uname().machine}? "
            f"{LIBRARY} must be in the loader cache of the driver root (--root)",
        ) from error
    try:
        binding.nvmlInit()
    except binding.NVMLError as error:
        raise _translated(binding, error, InitializationError, "") from error
    return Nvml(binding, store)


def _load(load: Callable[[str], None], paths: Sequence[str]) -> None:
    """Load the first that can be. Raises OSError of the first."""
    first: OSError | None = None
    for path in paths:
        try:
            load(path)
        except OSError as error:
            first = first or error
        else:
            return
    assert first is not None
    raise first


def _lower_reason(text: str) -> str:
    head, colon, last = text.splitlines()[0].rpartition(":") if text else ("", "", "")
    return f"{head}{colon}{last.lower()}"


def _translated(binding: Any, error: Any, kind: type[NvcError], what: str) -> NvcError:
    """NVML's own text for the number, which knows more numbers than the binding's table."""
    try:
        text = binding.nvmlErrorString(error.value)
    except (binding.NVMLError, UnicodeDecodeError):
        text = str(error)
    hint = next((hint for name, hint in _HINTS.items() if getattr(binding, name, None) == error.value), "")
    return kind(f"nvml error: {text.lower()}", hint=f"{what}: {hint}" if what and hint else hint or what)


class Nvml:
    """An initialised NVML. Its methods are the driver service's verbs; they raise DetectionError."""

    def __init__(self, binding: Any, store: str = "") -> None:
        self._binding = binding
        self._store = store
        self._absent = (binding.NVML_ERROR_NOT_SUPPORTED, binding.NVML_ERROR_FUNCTION_NOT_FOUND)

    def system(self) -> NvmlSystem:
        """Versions and the number of GPUs."""
        answer: NvmlSystem = self._ask("", self._system)
        return answer

    def gpu(self, index: int) -> NvmlGpu:
        """The GPU with NVML's index."""
        answer: NvmlGpu = self._ask(f"GPU {index}", self._gpu, index)
        return answer

    def load(self) -> NvmlLoads:
        """What the GPUs do now. A GPU that has fallen off the bus keeps nothing of the others."""
        return NvmlLoads(tuple(filter(None, map(self._load, range(self._ask("", self._binding.nvmlDeviceGetCount))))))

    def _load(self, index: int) -> NvmlLoad | None:
        nvml = self._binding
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except (nvml.NVMLError, UnicodeDecodeError):
            return None
        return NvmlLoad(
            uuid,
            self._number(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            self._number(lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
            self._number(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
        )

    def _number(self, function: Callable[[], int]) -> int:
        """-1 where there is none."""
        try:
            return function()
        except self._binding.NVMLError:
            return -1

    def energy(self) -> dict[str, int]:
        """UUID -> millijoules since the driver was loaded, of the GPUs that count them."""
        found: dict[str, int] = self._ask("", self._energy)
        return found

    def _energy(self) -> dict[str, int]:
        nvml, found = self._binding, {}
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found[nvml.nvmlDeviceGetUUID(handle)] = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            except nvml.NVMLError:
                continue  # before Volta; or lost
        return found

    def _ask(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._binding.NVMLError as error:
            raise _translated(self._binding, error, DetectionError, what) from error
        except UnicodeDecodeError as error:
            raise DetectionError("nvml error: a text that is not UTF-8", hint=what) from error

    def _system(self) -> NvmlSystem:
        nvml = self._binding
        return NvmlSystem(
            driver_version=nvml.nvmlSystemGetDriverVersion(),
            cuda_version=nvml.nvmlSystemGetCudaDriverVersion(),
            gpu_count=nvml.nvmlDeviceGetCount(),
            driver_store=self._store,
        )

    def _gpu(self, index: int) -> NvmlGpu:
        nvml = self._binding
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        pci = nvml.nvmlDeviceGetPciInfo(handle)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        mode = self._unless_absent(None, nvml.nvmlDeviceGetMigMode, handle)
        # The pending mode takes effect with the next reset; until then there are no instances.
        enabled = mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
        return NvmlGpu(
            index=index,
            # WSL has no minors.
            minor=self._unless_absent(0, nvml.nvmlDeviceGetMinorNumber, handle),
            name=nvml.nvmlDeviceGetName(handle),
            brand=self._unless_absent(UNKNOWN_BRAND, nvml.nvmlDeviceGetBrand, handle),
            uuid=nvml.nvmlDeviceGetUUID(handle),
            domain=pci.domain,
            bus=pci.bus,
            device=pci.device,
            arch=f"{major}.{minor}",
            mig_capable=mode is not None,
            mig_enabled=enabled,
            migs=self._migs(handle) if enabled else (),
            memory=self._memory(handle),
        )

    def _memory(self, gpu: Any) -> int:
        """Bytes, or 0 when NVML does not report them (a GPU in MIG mode, for an ordinary user): not an error, because
        whole GPUs do not need the number.
        """
        try:
            total: int = self._binding.nvmlDeviceGetMemoryInfo(gpu).total
        except self._binding.NVMLError:
            return 0
        return total

    def _migs(self, gpu: Any) -> tuple[NvmlMig, ...]:
        """MIG devices in NVML's order. The indices have no gaps: the first missing one is the end."""
        nvml = self._binding
        found = []
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_NOT_FOUND:
                    break
                raise
            found.append(
                NvmlMig(
                    index=index,
                    gi=nvml.nvmlDeviceGetGpuInstanceId(handle),
                    ci=nvml.nvmlDeviceGetComputeInstanceId(handle),
                    uuid=nvml.nvmlDeviceGetUUID(handle),
                    name=self._unless_absent("", nvml.nvmlDeviceGetName, handle),
                )
            )
        return tuple(found)

    def _unless_absent(self, default: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """``default`` where the GPU, or the driver, does not have this property."""
        try:
            return function(*arguments)
        except self._binding.NVMLError as error:
            if error.value in self._absent:
                return default
            raise
