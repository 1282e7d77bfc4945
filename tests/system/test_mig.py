"""MIG devices in real containers: the capability nodes of the chosen instance open, those of its neighbours do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import sight
from tests.support.bed import Bed, device_nodes, gpu_env
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime
from tests.support.wrapped import Wrapped

pytestmark = pytest.mark.system


def _gpu_with_migs(bed: Bed, machine: Path) -> dict[str, Any]:
    data = json.loads(bed.call(bed.commands.nvc, f"--sim={machine}", "info", "--json", check=True).out)
    return next(gpu for gpu in data["gpus"] if len({mig["gi"] for mig in gpu["mig_devices"]}) > 1)


def _access(bed: Bed, machine: Path, uuid: str) -> tuple[set[str], set[str]]:
    """What a MIG device adds to the list of its GPU: files below /proc, device nodes."""
    lines = bed.call(bed.commands.nvc, f"--sim={machine}", "list", f"--device={uuid}", check=True).out.split()
    proc = {line for line in lines if line.startswith("/proc/")}
    return proc, {line for line in lines if line.startswith("/dev/nvidia-caps/")}


@pytest.mark.parametrize("pair", [("runc", "v1"), ("crun", "v2")], ids="-".join)
def test_one_mig_device(bed: Bed, ask: Callable[[str, str], OciRuntime], pair: tuple[str, str]) -> None:
    machine = bed.machine("a100-mig-dev")
    gpu = _gpu_with_migs(bed, machine)
    mine = gpu["mig_devices"][0]
    other = next(mig for mig in gpu["mig_devices"] if mig["gi"] != mine["gi"])
    proc, nodes = _access(bed, machine, mine["uuid"])
    foreign_proc, foreign_nodes = _access(bed, machine, other["uuid"])
    assert (len(proc), len(nodes), len(foreign_nodes - nodes)) == (2, 2, 2)

    numbers = device_nodes(machine)
    foreign = [(f"/dev/foreign{index}", *numbers[path]) for index, path in enumerate(sorted(foreign_nodes))]
    own = [f"/dev/nvidia{gpu['minor']}", *sorted(nodes)]
    look = sight.arguments(nodes=own, make=foreign, texts=[*sorted(proc), *sorted(foreign_proc)])
    hooks = {"prestart": [bed.hook("prestart", machine="a100-mig-dev")]}
    result = bed.run(ask(*pair), Container(bed.rootfs(), look, gpu_env(mine["uuid"]), hooks))
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes[own[0]] == "ENXIO"
    # nvidia-cap nodes are 0444: opened read-write only by root, which the container's is.
    assert [seen.nodes[path] for path in sorted(nodes)] == ["ENXIO", "ENXIO"]
    assert [seen.nodes[path] for path, _, _ in foreign] == ["EPERM", "EPERM"]
    assert all("DeviceFileMinor" in seen.texts[path] for path in proc)
    assert [seen.texts[path] for path in foreign_proc] == ["", ""]


def test_nvidia_smi_lists_the_one_mig_device(bed: Bed, ask: Callable[[str, str], OciRuntime]) -> None:
    machine = bed.machine("a100-mig-dev")
    gpu = _gpu_with_migs(bed, machine)
    hooks = {"prestart": [bed.hook("prestart", machine="a100-mig-dev")]}
    uuids = [mig["uuid"] for mig in gpu["mig_devices"]]
    container = Container(bed.rootfs(), ["nvidia-smi", "-L"], gpu_env(uuids[1]), hooks)
    result = bed.run(ask("crun", "v2"), container)
    assert result.code == 0, result.text
    assert [uuid for uuid in uuids if uuid in result.out] == [uuids[1]]


@pytest.mark.parametrize("rule", ["default", "maximum"])
def test_a_whole_gpu_beside_a_mig_device_is_under_the_nodes_rules(bed: Bed, runc: OciRuntime, rule: str) -> None:
    """Attack: 2,0:0 started with the whole GPU 2, without a share and without the guard that the node requires."""
    rules = f'[agent]\ndirectory = "{bed.directory("none")}"\n[share]\nguard = "require"\n{rule} = "mem=4Gi"\n'
    runtime = Wrapped(bed, runc, rules, machine="a100-mig-dev")
    started = {}
    for devices in ("2", "2,0:0", "0:0,2", "all", "0:0"):
        result = runtime.run(Container(bed.rootfs(), ["/bin/echo", "started"], gpu_env(devices)))
        started[devices] = result.code == 0
        assert started[devices] or "this node requires a guard for shares" in result.text, result.text
    assert [devices for devices, is_started in started.items() if is_started] == ["0:0"]
