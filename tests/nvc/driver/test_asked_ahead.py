"""What NVML's process asks for while its caller looks at files."""

from __future__ import annotations

import pytest

from nvc.base.errors import DetectionError
from nvc.base.log import Log
from nvc.driver.facts import GpuRequest, NvmlGpu, NvmlSystem, SystemRequest
from nvc.driver.service import _Handlers


def fact(index: int) -> NvmlGpu:
    return NvmlGpu(
        index, index, "GPU", 2, f"GPU-{index}", 0, 1, 0, "9.0", mig_capable=False, mig_enabled=False, migs=(), memory=0
    )


class Asked:
    """An NVML with three GPUs, of which the second is lost."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def system(self) -> NvmlSystem:
        return NvmlSystem("1.2.3", 12000, 3)

    def gpu(self, index: int) -> NvmlGpu:
        self.seen.append(index)
        if index == 1:
            raise DetectionError("nvml error: gpu is lost")
        return fact(index)


@pytest.fixture
def nvml() -> Asked:
    return Asked()


@pytest.fixture
def handlers(nvml: Asked) -> _Handlers:
    made = _Handlers(lambda: pytest.fail("begun"), Log.none())
    made._nvml = nvml  # type: ignore[assignment]
    return made


def test_each_gpu_is_asked_for_once(handlers: _Handlers, nvml: Asked) -> None:
    assert handlers.system(SystemRequest(), []).gpu_count == 3
    assert nvml.seen == []
    assert handlers.ask_ahead()
    assert nvml.seen == [0], "one at a time"
    assert handlers.gpu(GpuRequest(0), []) == fact(0)
    assert nvml.seen == [0]
    assert handlers.ask_ahead()
    with pytest.raises(DetectionError, match="lost"):
        handlers.gpu(GpuRequest(1), [])
    assert handlers.ask_ahead()
    assert handlers.gpu(GpuRequest(2), []) == fact(2)
    assert nvml.seen == [0, 1, 2]
    assert not handlers.ask_ahead()


def test_another_gpu_than_expected_is_asked_for(handlers: _Handlers, nvml: Asked) -> None:
    handlers.system(SystemRequest(), [])
    handlers.ask_ahead()
    assert handlers.gpu(GpuRequest(2), []) == fact(2)
    assert handlers.gpu(GpuRequest(0), []) == fact(0)
    assert nvml.seen == [0, 2, 0], "an answer is given once, right after it was asked for"


def test_nothing_is_asked_for_unless_the_system_was(handlers: _Handlers, nvml: Asked) -> None:
    """The agent asks for loads alone."""
    assert not handlers.ask_ahead()
    assert nvml.seen == []
