"""`info`: text byte for byte (libnvidia-container.md 1.5), CSV, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

from nvc.base.errors import DetectionError, InitializationError
from tests.support.inventories import GPU_A, GPU_B, MIG_7, two_gpus, without_gpus
from tests.support.library import FakeLibrary

HUMAN = f"""\
NVRM version:   535.104.05
CUDA version:   12.2

Device Index:   0
Device Minor:   0
Model:          NVIDIA H100 80GB HBM3
Brand:          Nvidia
GPU UUID:       {GPU_A}
Bus Location:   00000000:3d:00.0
Architecture:   9.0

Device Index:   1
Device Minor:   1
Model:          NVIDIA H100 80GB HBM3
Brand:          Nvidia
GPU UUID:       {GPU_B}
Bus Location:   00000001:3e:00.0
Architecture:   9.0
"""

CSV = f"""\
NVRM version,CUDA version
535.104.05,12.2

Device Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture
0,0,NVIDIA H100 80GB HBM3,Nvidia,{GPU_A},00000000:3d:00.0,9.0
1,1,NVIDIA H100 80GB HBM3,Nvidia,{GPU_B},00000001:3e:00.0,9.0
"""

Command = Callable[..., tuple[int, str, str]]


def test_human(command: Command) -> None:
    assert command("info") == (0, HUMAN, "")


def test_csv(command: Command) -> None:
    assert command("info", "--csv") == (0, CSV, "")


def test_without_gpus(command: Command) -> None:
    empty = FakeLibrary(without_gpus())
    assert command("info", on=empty).out == HUMAN[: HUMAN.index("\nDevice")]
    assert command("info", "--csv", on=empty).out == CSV[: CSV.index("0,0,")]


def test_json(command: Command) -> None:
    code, out, _ = command("info", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["nvrm_version"] == "535.104.05"
    assert [gpu["uuid"] for gpu in data["gpus"]] == [GPU_A, GPU_B]
    assert data["gpus"][0]["mig_devices"] == []
    assert data["gpus"][1]["mig_devices"][0] == {"index": 0, "uuid": MIG_7, "gi": 7, "ci": 0}


def test_two_formats_exclude_each_other(command: Command, library: FakeLibrary) -> None:
    assert command("info", "--csv", "--json") == (
        1,
        "",
        "nvidia-container-cli: input error: --csv and --json exclude each other\n",
    )
    assert library.calls == []


def test_no_arguments_are_taken(command: Command) -> None:
    code, out, err = command("info", "all")
    assert (code, out) == (1, "")
    assert err.startswith(
        "nvidia-container-cli info: Too many arguments\nUsage: nvidia-container-cli info [OPTION...]\n"
    )


def test_failures_keep_their_stage(command: Command) -> None:
    broken = FakeLibrary(two_gpus(), {"init": InitializationError("nvml error: driver not loaded")})
    assert command("info", on=broken) == (
        1,
        "",
        "nvidia-container-cli: initialization error: nvml error: driver not loaded\n",
    )
    broken = FakeLibrary(two_gpus(), {"inventory": DetectionError("open failed: /x", hint="look at /x")})
    assert command("info", on=broken).err == (
        "nvidia-container-cli: detection error: open failed: /x\nnvidia-container-cli: hint: look at /x\n"
    )
    assert broken.calls[-1] == ("shutdown",)
