"""The simulated NVML, asked through nvidia-ml-py: it answers what the description says, subject to permissions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.model import Host
from nvc.sim import MACHINE_FILE
from nvc.sim.create import create
from nvc.sim.description import load, names

PROBE = Path(__file__).with_name("nvml_probe.py")
Made = Callable[[str], Host]


def run(root: str, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROBE, root, *more]
    environment = {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)


def ask(root: str, *more: str, **environment: str) -> dict[str, Any]:
    done = run(root, *more, **environment)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def beside(machine: Host) -> dict[str, str]:
    """Environment to use a machine's library without a change of root."""
    return {"LD_LIBRARY_PATH": f"{machine.root}/usr/lib/x86_64-linux-gnu"}


@pytest.fixture
def own(templates: Path, tmp_path: Path) -> Host:
    return create(str(tmp_path / "m"), "a100-mig-dev")


def edit(machine: Host, old: str, new: str) -> None:
    path = Path(machine.root, MACHINE_FILE)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.root
@pytest.mark.parametrize("name", names(""))
def test_answers_what_the_description_says(made: Made, name: str) -> None:
    answer, machine = ask(made(name).root), load(name)
    assert answer["driver"] == machine.driver_version
    assert answer["nvml"] == machine.nvml_version
    assert answer["cuda"] == [machine.cuda_version] * 2
    assert answer["missing"] == ["error 2", "error 6", "error 6"]
    assert answer["after"] == "error 1"
    assert len(answer["gpus"]) == len(machine.gpus)
    for index, (found, gpu) in enumerate(zip(answer["gpus"], machine.gpus, strict=True)):
        model = machine.gpu_models[gpu.model]
        assert (found["uuid"], found["name"], found["minor"]) == (gpu.uuid, gpu.model, gpu.minor)
        assert found["index"] == found["by_uuid"] == found["by_bus_id"] == index
        assert found["brand"] == model.brand
        assert ".".join(map(str, found["arch"])) == model.arch
        assert found["pci"] == found["pci_v2"] == [*gpu.pci, model.pci_id, model.pci_subsystem]
        assert found["bus_id"].lower() == "{:08x}:{:02x}:{:02x}.0".format(*gpu.pci)
        assert found["memory"] == [model.memory << 20, model.memory << 20, model.memory_reserved << 20]
        assert found["utilization"] == ("error 3" if gpu.mig_enabled else 0)
        at_rest, limit = found["power"]
        assert 0 < at_rest == limit // 10
        assert found["mig_mode"] == ([int(gpu.mig_enabled)] * 2 if model.mig_capable else "error 3")
        assert found["gi"] == "error 2"
        assert found["energy"] == "error 3", "without a manager nothing computes"
        assert found["mig_max"] == (7 if gpu.mig_enabled else 0)


@pytest.mark.root
@pytest.mark.parametrize("name", ["a100-mig-dev", "a100-mig-proc"])
def test_mig_devices_are_those_of_the_description(made: Made, name: str) -> None:
    answer, machine = ask(made(name).root), load(name)
    assert sum(len(gpu.mig) for gpu in machine.gpus) >= 11
    for found, gpu in zip(answer["gpus"], machine.gpus, strict=True):
        expected = [
            {
                "uuid": mig.uuid,
                "name": f"{gpu.model} MIG {mig.profile}",
                "by_uuid": f"{gpu.model} MIG {mig.profile}",
                "gi": mig.gi,
                "ci": mig.ci,
                "is_mig": 1,
                "parent": gpu.uuid,
                "slices": list(mig.slices),
                "instances": list(mig.slices),
                "memory": mig.memory,
                "minor": "error 2",
                "index": index,
            }
            for index, mig in enumerate(gpu.mig)
        ]
        assert expected == found["migs"]


@pytest.mark.root
def test_a_user_without_rights_sees_the_same(made: Made) -> None:
    for name in ("a100-mig-dev", "a100-mig-proc"):
        other = ask(made(name).root, "65534")
        # nvml.h: nvmlDeviceGetGpuInstanceById needs root.
        assert {mig.pop("instances") for gpu in other["gpus"] for mig in gpu["migs"]} == {"error 4"}
        own = ask(made(name).root)
        assert all(mig.pop("instances") for gpu in own["gpus"] for mig in gpu["migs"])
        assert own == other


@pytest.mark.root
def test_a_gpu_without_its_node_is_not_there(own: Host) -> None:
    machine = load("a100-mig-dev")
    os.unlink(f"{own.root}/dev/nvidia{machine.gpus[0].minor}")
    assert [gpu["uuid"] for gpu in ask(own.root)["gpus"]] == [gpu.uuid for gpu in machine.gpus[1:]]
    assert [gpu["index"] for gpu in ask(own.root)["gpus"]] == [0, 1]


@pytest.mark.root
def test_a_gpu_whose_node_is_closed_is_not_there_for_others(own: Host) -> None:
    os.chmod(f"{own.root}/dev/nvidia{load('a100-mig-dev').gpus[1].minor}", 0o600)
    assert len(ask(own.root)["gpus"]) == 3
    assert len(ask(own.root, "65534")["gpus"]) == 2


@pytest.mark.root
def test_a_mig_device_needs_both_its_caps(own: Host) -> None:
    caps = sorted(Path(own.root, "dev/nvidia-caps").iterdir(), key=lambda path: int(path.name[10:]))
    gi2, ci0 = caps[2], caps[3]  # behind config and monitor: GPU 0 (by minor), GPU instance 2, its first CI
    ci0.unlink()
    assert [len(gpu["migs"]) for gpu in ask(own.root)["gpus"]] == [7, 4, 0]
    gi2.unlink()
    assert [len(gpu["migs"]) for gpu in ask(own.root)["gpus"]] == [7, 3, 0]


@pytest.mark.root
def test_without_the_control_node_the_driver_is_not_loaded(own: Host) -> None:
    os.chmod(f"{own.root}/dev/nvidiactl", 0o600)
    assert ask(own.root, "65534")["error"] == 4
    os.unlink(f"{own.root}/dev/nvidiactl")
    assert ask(own.root) == {"error": 9, "text": "Driver Not Loaded"}


@pytest.mark.root
def test_the_library_carries_its_description(own: Host) -> None:
    os.unlink(f"{own.root}/{MACHINE_FILE}")
    assert len(ask(own.root)["gpus"]) == 3


def test_the_library_works_beside_the_hosts_own_files(templates: Path, tmp_path: Path) -> None:
    machine = create(str(tmp_path / "m"), "h100x8")
    edit(machine, "nodes=1", "nodes=0") if os.geteuid() == 0 else None
    answer = ask("", **beside(machine), NVC_SIM_MACHINE=f"{machine.root}/{MACHINE_FILE}")
    assert len(answer["gpus"]) == 8


@pytest.mark.root
def test_a_template_without_description_is_no_driver(templates: Path, own: Host) -> None:
    os.unlink(f"{own.root}/{MACHINE_FILE}")
    shutil.copy(templates / "libnvidia-ml.so", f"{own.root}/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.104.05")
    assert ask(own.root)["error"] == 9


@pytest.mark.root
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("end=3\n", "", id="cut off"),
        pytest.param("end=3\n", "end=4\n", id="wrong count"),
        pytest.param("nvc-sim-machine=1", "nvc-sim-machine=9", id="other version"),
        pytest.param("minor=2", "minor=x", id="no number"),
        pytest.param("profile=", "colour=", id="unknown key"),
        pytest.param("name=", "\0=", id="zero byte"),
    ],
)
def test_a_malformed_description_is_an_error_and_no_crash(own: Host, old: str, new: str) -> None:
    edit(own, old, new)
    assert ask(own.root) == {"error": 999, "text": "Unknown Error"}


@pytest.mark.root
def test_a_description_that_is_no_file_is_an_error_and_no_hang(own: Host) -> None:
    path = Path(own.root, MACHINE_FILE)
    path.unlink()
    os.mkfifo(path)
    assert ask(own.root)["error"] == 999
    path.unlink()
    path.mkdir()
    assert ask(own.root)["error"] == 999


@pytest.mark.root
@pytest.mark.parametrize(
    ("fault", "number"), [("nvmlInit error 18", 18), ("nvmlDeviceGetCount error 15", 15)], ids=["init", "count"]
)
def test_a_planted_error_is_answered(own: Host, fault: str, number: int) -> None:
    edit(own, "nodes=1\n", f"nodes=1\nfault={fault}\n")
    assert ask(own.root)["error"] == number


@pytest.mark.root
def test_a_planted_crash_ends_the_process(own: Host) -> None:
    edit(own, "nodes=1\n", "nodes=1\nfault=nvmlDeviceGetName crash\n")
    assert run(own.root).returncode == -signal.SIGILL


@pytest.mark.root
def test_a_planted_delay_delays_and_a_planted_hang_hangs(own: Host) -> None:
    edit(own, "nodes=1\n", "nodes=1\nfault=nvmlInit slow 300\n")
    assert len(ask(own.root)["gpus"]) == 3
    edit(own, "slow 300", "hang")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, PROBE, own.root], timeout=1.5, check=False)
