"""Every kind of machine that is described, in one container each: its GPUs arrive, nothing optional is fatal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import sight
from tests.support.bed import Bed, device_nodes, gpu_env
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime

pytestmark = pytest.mark.system

MACHINES = ("a100-mig-dev", "a100-mig-proc", "broken", "h100x8", "h200", "imex", "v100-legacy")


@pytest.mark.parametrize("name", MACHINES)
def test_all_gpus_of_a_machine(bed: Bed, runc: OciRuntime, name: str) -> None:
    machine = bed.machine(name)
    data = json.loads(bed.call(bed.commands.nvc, f"--sim={machine}", "info", "--json", check=True).out)
    nodes = [f"/dev/nvidia{gpu['minor']}" for gpu in data["gpus"]]
    look = sight.arguments(nodes=nodes, libraries=["libcuda.so.1", "libnvidia-ml.so.1"])
    hooks = {"prestart": [bed.hook("prestart", machine=name)]}
    result = bed.run(runc, Container(bed.rootfs(), look, gpu_env("all", "all"), hooks))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert dict.fromkeys(nodes, "ENXIO") == seen.nodes
    assert len(nodes) == len(seen.lists[sight.GPUS])
    version = data["nvrm_version"]
    assert [Path(path).name for path in seen.libraries.values()] == [
        f"libcuda.so.{version}",
        f"libnvidia-ml.so.{version}",
    ]


def test_what_is_missing_is_a_warning_in_the_log(bed: Bed, runc: OciRuntime) -> None:
    log = bed.directory("log") / "hook.log"
    machine = bed.new_machine("broken")
    hooks = {"prestart": [bed.hook("prestart", f"--debug={log}", machine=machine)]}
    result = bed.run(runc, Container(bed.rootfs(), ["nvidia-smi", "-L"], gpu_env("all"), hooks))
    assert (result.code, result.complaints) == (0, "")
    assert result.out.count("GPU-") == 1
    warnings = [line for line in log.read_text().splitlines() if line.startswith("W")]
    assert any("nvidia-uvm-tools" in line for line in warnings)
    assert any(".so" in line for line in warnings)


def test_imex_channels(bed: Bed, runc: OciRuntime) -> None:
    directory = "/dev/nvidia-caps-imex-channels"
    numbers = device_nodes(bed.machine("imex"))
    other = ("/dev/other-channel", *numbers[f"{directory}/channel1"])
    look = sight.arguments(nodes=[f"{directory}/channel0", f"{directory}/channel2047"], make=[other], lists=[directory])
    hooks = {"prestart": [bed.hook("prestart", machine="imex")]}
    env = gpu_env("0", "utility", "NVIDIA_IMEX_CHANNELS=0,2047")
    result = bed.run(runc, Container(bed.rootfs(), look, env, hooks))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.lists[directory] == ("channel0", "channel2047")
    assert seen.nodes == {f"{directory}/channel0": "ENXIO", f"{directory}/channel2047": "ENXIO", other[0]: "EPERM"}
