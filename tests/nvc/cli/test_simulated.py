"""The command line on simulated machines, through the real library: NVML, loader cache, nodes and all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.cli.main import main
from nvc.sim.create import create
from nvc.sim.description import load
from tests.support.native import build

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    build()
    made: dict[str, str] = {}

    def get(name: str) -> str:
        if name not in made:
            made[name] = create(str(tmp_path_factory.mktemp("machine") / name), name).root
        return made[name]

    return get


@pytest.fixture
def simulated(machine: Callable[[str], str], capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command on a machine by name."""

    def run(name: str, *words: str) -> tuple[int, str, str]:
        code = main([f"--sim={machine(name)}", *words], "nvc-py")
        return code, *capfd.readouterr()

    return run


def test_info_of_one_h200(simulated: Command, machine: Callable[[str], str]) -> None:
    code, out, err = simulated("h200", "info")
    gpu = load("h200").gpus[0]
    assert (code, err) == (0, f"nvc-py: SIMULATED machine: {machine('h200')}\n")
    assert out == (
        f"NVRM version:   {load('h200').driver_version}\n"
        "CUDA version:   13.0\n"
        "\n"
        "Device Index:   0\n"
        "Device Minor:   0\n"
        "Model:          NVIDIA H200\n"
        "Brand:          Nvidia\n"
        f"GPU UUID:       {gpu.uuid}\n"
        "Bus Location:   00000000:00:06.0\n"
        "Architecture:   9.0\n"
    )


def test_a_debug_log_on_a_full_disk_is_said_once(simulated: Command, machine: Callable[[str], str]) -> None:
    code, out, err = simulated("h200", "--debug=/dev/full", "--no-cache", "list")
    assert (code, "/dev/nvidia0" in out) == (0, True)
    assert err == (
        "nvc-py: warning: cannot write the debug log /dev/full: no space left on device; records are lost\n"
        f"nvc-py: SIMULATED machine: {machine('h200')}\n"
    )


def test_csv_of_eight_gpus(simulated: Command) -> None:
    code, out, _ = simulated("h100x8", "info", "--csv")
    assert code == 0
    assert [line.split(",")[0] for line in out.splitlines()[4:]] == [str(index) for index in range(8)]


def test_listed_files_exist_in_the_driver_root(simulated: Command, machine: Callable[[str], str]) -> None:
    code, out, _ = simulated("h100x8", "list", "-lbf", "--compat32")
    root = machine("h100x8")
    assert code == 0
    assert any("/libcuda.so." in path for path in out.splitlines())
    assert [path for path in out.splitlines() if not Path(root + path).is_file()] == []


def test_listed_mig_access_is_that_of_the_device(simulated: Command) -> None:
    code, out, _ = simulated("a100-mig-dev", "list", "--device=0:0")
    gpu = load("a100-mig-dev").gpus[0]
    base = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{gpu.mig[0].gi}"
    assert code == 0
    assert out.splitlines()[-5:-2] == [
        f"/dev/nvidia{gpu.minor}",
        f"{base}/access",
        f"{base}/ci{gpu.mig[0].ci}/access",
    ]


def test_a_damaged_driver_lists_what_is_whole(
    simulated: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVC_DEBUG_FILE", "")  # restored afterwards: --debug sets it
    code, out, _ = simulated("broken", f"--debug={tmp_path}/log", "--no-cache", "list", "-l")
    assert code == 0
    assert "libcuda.so" in out
    assert "stale entry of the loader cache" in (tmp_path / "log").read_text()


def test_a_device_that_is_not_there(simulated: Command) -> None:
    code, out, err = simulated("h200", "list", "-d", "3")
    assert (code, out) == (1, "")
    assert err.splitlines()[1] == "nvc-py: device error: 3: unknown device"


def test_a_directory_that_is_no_machine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([f"--sim={tmp_path}", "info"], "nvc-py") == 1
    assert "internal error" not in capfd.readouterr().err
