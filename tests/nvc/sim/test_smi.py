"""The simulated programs, run for real in a root directory that has a C library and nothing else of this computer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nvc.sim import MACHINE_FILE
from nvc.sim.create import create
from nvc.sim.description import load

pytestmark = pytest.mark.root


def with_libc(name: str, directory: Path) -> str:
    """A machine's root in which dynamic programs start."""
    root = create(str(directory / "m"), name).root
    listed = subprocess.run(["/usr/bin/ldd", f"{root}/usr/bin/nvidia-smi"], capture_output=True, text=True, check=True)
    for path in re.findall(r"(/\S+) \(0x", listed.stdout):
        target = f"{root}{os.path.realpath(os.path.dirname(path))}"
        os.makedirs(target, exist_ok=True)
        shutil.copy(path, target)
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)
    return root


def run(root: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["chroot", root, *command], capture_output=True, text=True, timeout=30, check=False)


def test_lists_as_the_real_one(templates: Path, tmp_path: Path) -> None:
    done = run(with_libc("h200", tmp_path), "nvidia-smi", "-L")
    assert done.returncode == 0
    assert done.stdout == "GPU 0: NVIDIA H200 (UUID: GPU-11111111-2222-3333-4444-555555555555)\n"
    assert "SIMULATED machine h200" in done.stderr


def test_lists_mig_devices_as_the_real_one(templates: Path, tmp_path: Path) -> None:
    lines = run(with_libc("a100-mig-dev", tmp_path), "nvidia-smi", "-L").stdout.splitlines()
    machine = load("a100-mig-dev")
    assert lines[1] == f"  MIG 1g.10gb     Device  0: (UUID: {machine.gpus[0].mig[0].uuid})"
    assert lines[9] == f"  MIG 1c.3g.40gb  Device  0: (UUID: {machine.gpus[1].mig[0].uuid})"
    assert len(lines) == 3 + 7 + 5


def test_the_table_says_simulated_and_is_straight(templates: Path, tmp_path: Path) -> None:
    done = run(with_libc("h100x8", tmp_path), "nvidia-smi")
    lines = done.stdout.splitlines()
    assert "SIMULATED machine h100x8" in lines[1]
    assert "550.54.15" in lines[1]
    assert "12.4" in lines[1]
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 4 + 8


def test_failures_have_the_real_exit_codes_and_a_reason(templates: Path, tmp_path: Path) -> None:
    root = with_libc("h200", tmp_path)
    assert run(root, "nvidia-smi", "--gom=0").returncode == 255
    os.rename(f"{root}/dev/nvidia0", f"{root}/dev/aside")
    assert (run(root, "nvidia-smi", "-L").stdout, run(root, "nvidia-smi").returncode) == ("No devices found.\n", 6)
    os.unlink(f"{root}/dev/nvidiactl")
    done = run(root, "nvidia-smi", "-L")
    assert done.returncode == 9
    assert done.stdout.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert "/dev/nvidiactl: No such file or directory" in done.stderr
    Path(root, MACHINE_FILE).write_text("nvc-sim-machine=1\nhello\n")
    assert "line 2: a line is key=value" in run(root, "nvidia-smi").stderr
    os.unlink(f"{root}/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    done = run(root, "nvidia-smi")
    assert done.returncode == 12
    assert "couldn't find libnvidia-ml.so.1" in done.stderr


def test_other_programs_say_that_they_are_simulated(templates: Path, tmp_path: Path) -> None:
    done = run(with_libc("h200", tmp_path), "nvidia-persistenced")
    assert (done.returncode, done.stdout) == (0, "nvidia-persistenced: SIMULATED, does nothing\n")


def test_libcuda_answers_and_says_that_it_is_simulated(templates: Path, tmp_path: Path) -> None:
    root = create(str(tmp_path / "m"), "h100x8").root
    command = ["/usr/bin/python3", "-I", Path(__file__).parent / "programs/ask_libcuda.py", root]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "SIMULATED machine h100x8" in done.stderr
