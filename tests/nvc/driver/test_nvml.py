"""NVML's answers as values, with a binding that answers from a table."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from nvc.base.errors import DetectionError, InitializationError
from nvc.driver.facts import NvmlLoad, NvmlMig
from nvc.driver.nvml import initialize

ERRORS = {name: getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")}


class Pci:
    domain, bus, device = 1, 0x3B, 0


class Memory:
    total, free, used = 80 << 30, 79 << 30, 1 << 30


class Binding:
    """The names of pynvml that are used. ``answers``: function name -> value, or an error number to raise.

    Handles are what was asked for: ("gpu", 0), ("mig", 2).
    """

    NVMLError = pynvml.NVMLError
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "nvmlInit": None,
            "nvmlErrorString": "An Error",
            "nvmlSystemGetDriverVersion": "570.86.15",
            "nvmlSystemGetCudaDriverVersion": 12080,
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetHandleByIndex": lambda index: ("gpu", index),
            "nvmlDeviceGetPciInfo": Pci(),
            "nvmlDeviceGetCudaComputeCapability": (8, 0),
            "nvmlDeviceGetMigMode": [1, 1],
            "nvmlDeviceGetMinorNumber": 4,
            "nvmlDeviceGetName": lambda handle: "NVIDIA A100" + (" MIG 1g.10gb" if handle[0] == "mig" else ""),
            "nvmlDeviceGetBrand": 14,
            "nvmlDeviceGetUUID": lambda handle: f"{handle[0]}-uuid-{handle[1]}",
            "nvmlDeviceGetMaxMigDeviceCount": 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": lambda gpu, index: ("mig", index),
            "nvmlDeviceGetGpuInstanceId": lambda handle: 10 + handle[1],
            "nvmlDeviceGetComputeInstanceId": 0,
            "nvmlDeviceGetMemoryInfo": Memory(),
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if name in ERRORS:
            return ERRORS[name]
        answer = self.answers[name]

        def function(*arguments: Any) -> Any:
            if isinstance(answer, pynvml.NVMLError):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return function


def error(name: str) -> pynvml.NVMLError:
    return pynvml.NVMLError(ERRORS[name])


def nvml(**answers: Any) -> Any:
    return initialize(Binding(**answers), lambda path: None)


def first_migs(count: int, then: str) -> Any:
    def handle(gpu: Any, index: int) -> Any:
        if index >= count:
            raise error(then)
        return "mig", index

    return handle


def test_mig_devices_are_listed_until_the_first_that_is_not_there() -> None:
    gpu = nvml(nvmlDeviceGetMigDeviceHandleByIndex=first_migs(2, "NVML_ERROR_NOT_FOUND")).gpu(1)
    assert gpu.mig_capable and gpu.mig_enabled
    name = "NVIDIA A100 MIG 1g.10gb"
    assert (NvmlMig(0, 10, 0, "mig-uuid-0", name), NvmlMig(1, 11, 0, "mig-uuid-1", name)) == gpu.migs
    assert "gpu-uuid-1" == gpu.uuid


def test_all_mig_devices_may_be_there() -> None:
    assert list(range(7)) == [mig.index for mig in nvml().gpu(0).migs]


def test_another_error_while_listing_mig_devices_is_not_the_end_of_the_list() -> None:
    with pytest.raises(DetectionError, match="nvml error: an error"):
        nvml(nvmlDeviceGetMigDeviceHandleByIndex=first_migs(2, "NVML_ERROR_UNKNOWN")).gpu(0)


@pytest.mark.parametrize(
    ("mode", "capable", "enabled"),
    [
        pytest.param([1, 0], True, True, id="to be switched off at the next reset"),
        pytest.param([0, 1], True, False, id="to be switched on at the next reset"),
        pytest.param(error("NVML_ERROR_NOT_SUPPORTED"), False, False, id="a GPU without MIG"),
        pytest.param(error("NVML_ERROR_FUNCTION_NOT_FOUND"), False, False, id="a driver without MIG"),
    ],
)
def test_the_mode_that_is_in_force_decides(mode: Any, capable: bool, enabled: bool) -> None:
    gpu = nvml(nvmlDeviceGetMigMode=mode).gpu(0)
    assert (capable, enabled, 7 if enabled else 0) == (gpu.mig_capable, gpu.mig_enabled, len(gpu.migs))


@pytest.mark.parametrize("absent", ["NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND"])
def test_a_missing_brand_or_minor_is_no_failure(absent: str) -> None:
    gpu = nvml(nvmlDeviceGetBrand=error(absent), nvmlDeviceGetMinorNumber=error(absent)).gpu(0)
    assert (0, 0) == (gpu.brand, gpu.minor)


def test_the_memory_is_the_total() -> None:
    assert 80 << 30 == nvml().gpu(0).memory


@pytest.mark.parametrize("why", ["NVML_ERROR_NO_PERMISSION", "NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_GPU_IS_LOST"])
def test_memory_that_nvml_does_not_tell_is_no_failure(why: str) -> None:
    assert 0 == nvml(nvmlDeviceGetMemoryInfo=error(why)).gpu(0).memory


@pytest.mark.parametrize(
    "function",
    [
        *("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo", "nvmlDeviceGetCudaComputeCapability"),
        *("nvmlDeviceGetMigMode", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetName", "nvmlDeviceGetBrand"),
        *("nvmlDeviceGetUUID", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetGpuInstanceId"),
        "nvmlDeviceGetComputeInstanceId",
    ],
)
def test_an_error_of_any_question_names_the_gpu(function: str) -> None:
    lost = nvml(**{function: error("NVML_ERROR_GPU_IS_LOST")}, nvmlErrorString="GPU is lost")
    with pytest.raises(DetectionError) as caught:
        lost.gpu(3)
    assert "detection error: nvml error: gpu is lost" == str(caught.value)
    assert caught.value.hint.startswith("GPU 3: it fell off the bus")


@pytest.mark.parametrize(
    "function", ["nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCount"]
)
def test_an_error_about_the_machine_names_no_gpu(function: str) -> None:
    with pytest.raises(DetectionError, match="nvml error: an error") as caught:
        nvml(**{function: error("NVML_ERROR_UNKNOWN")}).system()
    assert "" == caught.value.hint


def test_a_driver_too_old_to_name_its_errors() -> None:
    broken = nvml(
        nvmlDeviceGetCount=error("NVML_ERROR_NO_PERMISSION"), nvmlErrorString=error("NVML_ERROR_FUNCTION_NOT_FOUND")
    )
    with pytest.raises(DetectionError, match="nvml error: insufficient permissions") as caught:
        broken.system()
    assert "--user=root:video" in caught.value.hint


def test_a_name_that_is_not_text() -> None:
    def name(handle: Any) -> str:
        return b"\xff".decode()

    with pytest.raises(DetectionError, match="not UTF-8"):
        nvml(nvmlDeviceGetName=name).gpu(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("libnvidia-ml.so.1: wrong ELF class: ELFCLASS32", "libnvidia-ml.so.1: wrong ELF class: elfclass32",
                     id="after the last colon only"),
        pytest.param("Out of Memory\nsecond line", "out of memory", id="first line only"),
        pytest.param("", "", id="nothing said"),
    ],
)  # fmt: skip
def test_why_the_library_cannot_be_loaded_is_said_as_the_reference_does(text: str, message: str) -> None:
    def load(path: str) -> None:
        raise OSError(text)

    with pytest.raises(InitializationError) as caught:
        initialize(Binding(), load)
    assert f"initialization error: load library failed: {message}" == str(caught.value)


def test_the_library_may_lie_elsewhere() -> None:
    asked: list[str] = []
    initialize(Binding(), asked.append, "/usr/lib/wsl/drivers/nv/libnvidia-ml.so.1")
    initialize(Binding(), asked.append)
    assert ["/usr/lib/wsl/drivers/nv/libnvidia-ml.so.1", "libnvidia-ml.so.1"] == asked


def test_energy_is_told_of_the_gpus_that_count_it() -> None:
    def counter(handle: Any) -> int:
        if handle == ("gpu", 0):
            raise error("NVML_ERROR_NOT_SUPPORTED")
        return 12_345

    assert nvml(nvmlDeviceGetTotalEnergyConsumption=counter).energy() == {"gpu-uuid-1": 12_345}
    with pytest.raises(DetectionError):
        nvml(nvmlDeviceGetCount=error("NVML_ERROR_UNKNOWN")).energy()


class Utilization:
    gpu, memory = 43, 7


def test_the_load_of_gpus_without_what_is_not_reported() -> None:
    def handle(index: int) -> Any:
        if index == 1:
            raise error("NVML_ERROR_GPU_IS_LOST")
        return "gpu", index

    answers = {
        "nvmlDeviceGetCount": 3,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetUtilizationRates": lambda gpu: refused() if gpu[1] == 2 else Utilization(),
        "nvmlDeviceGetPowerUsage": 312_400,
        "nvmlDeviceGetEnforcedPowerLimit": error("NVML_ERROR_FUNCTION_NOT_FOUND"),
    }

    def refused() -> Any:
        raise error("NVML_ERROR_NOT_SUPPORTED")

    first, third = nvml(**answers).load().gpus
    assert first == NvmlLoad("gpu-uuid-0", 43, 312_400, -1)
    assert third == NvmlLoad("gpu-uuid-2", -1, 312_400, -1), "MIG has no utilisation; the lost GPU is left out"
