"""What a GPU itself counts, by NVML, beside what the agent writes down: a process that reads it four times a second.

As a program: ``device_counters.py UUID``, a line of JSON a reading on standard output, until it is ended. Memory and
energy are the device's at the moment. Busy time are the samples of its utilisation (percent, each of the time since the
one before) that came since the last reading; a library without them (the simulated one) says that of the moment.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any, Self

LIBRARY = "libnvidia-ml.so.1"
#: nvml.h: NVML_GPU_UTILIZATION_SAMPLES, NVML_ERROR_NOT_FOUND. Of an H100's samples there are five a second.
_UTILIZATION, _NOT_FOUND, _ROOM = 1, 6, 500
_EVERY_S = 0.25


class Counted:
    """Readings. Integrals are over moments (seconds since 1970) between the first and the last one."""

    def __init__(self, readings: Sequence[Mapping[str, Any]]) -> None:
        self.count = len(readings)
        self._memory = [(one["time"], float(one["memory"])) for one in readings]
        self._energy = [(one["time"], one["energy"] / 1000) for one in readings]
        self._percent = [(one["time"], one["percent"] / 100) for one in readings]
        self.samples = [(when, percent / 100) for one in readings for when, percent in one["samples"]]

    @property
    def last_memory(self) -> float:
        """Bytes."""
        return self._memory[-1][1]

    def memory(self, begin: float, end: float) -> float:
        """Byte-seconds that were in use."""
        return _integral(self._memory, begin, end)

    def energy(self, begin: float, end: float) -> float:
        """Joules."""
        return _at(self._energy, end) - _at(self._energy, begin)

    def busy(self, begin: float, end: float) -> float:
        """Seconds."""
        if not self.samples:
            return _integral(self._percent, begin, end)
        each = itertools.pairwise(self.samples)
        return sum(part * max(0.0, min(when, end) - max(before, begin)) for (before, _), (when, part) in each)

    def energy_while_busy(self, begin: float, end: float) -> float:
        """Joules of each second times the part of it in which the GPU was busy."""
        steps = itertools.pairwise([*(begin + second for second in range(int(end - begin))), end])
        return sum(self.energy(start, stop) * self.busy(start, stop) / (stop - start) for start, stop in steps)


class DeviceCounters:
    """The process; it runs until its context is left."""

    def __init__(self, uuid: str, file: Path, environment: Mapping[str, str]) -> None:
        self._file = file
        with file.open("wb") as output:
            command = [sys.executable, __file__, uuid]
            self._process = subprocess.Popen(command, stdout=output, env=dict(environment))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def counted(self) -> Counted:
        """So far. Raises AssertionError where it does not read."""
        assert self._process.poll() is None, f"NVML is not read: exit status {self._process.returncode}"
        lines = self._file.read_text().splitlines(keepends=True)
        return Counted([json.loads(line) for line in lines if line.endswith("\n")])


def _integral(values: list[tuple[float, float]], begin: float, end: float) -> float:
    """Between two readings it is what is between them."""
    steps = itertools.pairwise(values)
    return sum((one + other) / 2 * max(0.0, min(t2, end) - max(t1, begin)) for (t1, one), (t2, other) in steps)


def _at(values: list[tuple[float, float]], moment: float) -> float:
    """By the readings before and after."""
    for (t1, one), (t2, other) in itertools.pairwise(values):
        if t1 <= moment <= t2:
            return one + (other - one) * (moment - t1) / (t2 - t1)
    raise AssertionError(f"no readings at {moment}: {values[0][0]} to {values[-1][0]}")


class _Sample(ctypes.Structure):
    _fields_ = (("when", c_ulonglong), ("value", c_ulonglong))


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


def _samples(nvml: Any, device: c_void_p, since: int) -> list[tuple[float, int]]:
    """When (seconds since 1970) and percent, of those after ``since`` (microseconds)."""
    kind, count, room = c_int(), c_uint(_ROOM), (_Sample * _ROOM)()
    if not hasattr(nvml, "nvmlDeviceGetSamples"):
        return []
    status = nvml.nvmlDeviceGetSamples(device, _UTILIZATION, c_ulonglong(since), byref(kind), byref(count), room)
    assert status in (0, _NOT_FOUND), status
    found = room[: count.value] if status == 0 else []
    # An unsigned int in a union.
    return sorted((one.when / 1e6, one.value & 0xFFFFFFFF) for one in found if one.when > since)


def main() -> None:
    nvml = ctypes.CDLL(LIBRARY)
    device, memory, energy, use = c_void_p(), _Memory(), c_ulonglong(), _Utilization()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByUUID(sys.argv[1].encode(), byref(device)) == 0
    since = int(time.time() * 1e6)
    while True:
        statuses = (
            nvml.nvmlDeviceGetMemoryInfo(device, byref(memory)),
            nvml.nvmlDeviceGetTotalEnergyConsumption(device, byref(energy)),
            nvml.nvmlDeviceGetUtilizationRates(device, byref(use)),
        )
        assert not any(statuses), statuses
        now = time.time()
        samples = _samples(nvml, device, since)
        since = max([since, *(int(when * 1e6) for when, _ in samples)])
        told = {"time": now, "memory": memory.used, "energy": energy.value, "percent": use.gpu, "samples": samples}
        print(json.dumps(told), flush=True)
        time.sleep(max(0.0, _EVERY_S - (time.time() - now)))


if __name__ == "__main__":
    main()
