"""What `info` and `list` say about a real driver, against nvidia-smi and the file system."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.bed import Bed

pytestmark = pytest.mark.gpu

#: Column of `info --json` -> property of nvidia-smi --query-gpu.
QUERY = {"index": "index", "model": "name", "uuid": "uuid", "bus_id": "pci.bus_id", "arch": "compute_cap"}


def _query(properties: str) -> list[list[str]]:
    command = ["nvidia-smi", f"--query-gpu={properties}", "--format=csv,noheader"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split(", ") for line in lines]


def _list(bed: Bed, *options: str) -> list[str]:
    return bed.call(bed.commands.cli, "list", *options, check=True).out.split()


def test_info_agrees_with_nvidia_smi(bed: Bed) -> None:
    data = json.loads(bed.call(bed.commands.nvc, "info", "--json", check=True).out)
    expected = _query(",".join(QUERY.values()))
    actual = [[str(gpu[field]) for field in QUERY] for gpu in data["gpus"]]
    assert [[cell.lower() for cell in row] for row in expected] == [[cell.lower() for cell in row] for row in actual]
    assert [[data["nvrm_version"]]] * len(actual) == _query("driver_version")


def test_info_text_and_csv_agree(bed: Bed) -> None:
    text = bed.call(bed.commands.cli, "info", check=True).out
    csv = bed.call(bed.commands.cli, "info", "--csv", check=True).out
    driver, gpus = (block.splitlines() for block in csv.split("\n\n"))
    version = driver[1].split(",")[0]
    assert text.startswith(f"NVRM version:   {version}\n")
    for line in gpus[1:]:
        for value in line.split(","):
            assert f" {value}\n" in text


def test_every_listed_path_is_there(bed: Bed) -> None:
    paths = _list(bed)
    assert paths
    assert [path for path in paths if not os.path.exists(path)] == []


def test_listed_nodes_are_the_drivers(bed: Bed) -> None:
    nodes = [path for path in _list(bed, "--device=all") if path.startswith("/dev/")]
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"} <= set(nodes)
    assert all(stat.S_ISCHR(os.stat(path).st_mode) for path in nodes)


def test_listed_libraries_are_of_the_running_driver(bed: Bed) -> None:
    version = _query("driver_version")[0][0]
    libraries = _list(bed, "--libraries")
    names = {Path(path).name for path in libraries}
    assert {f"libcuda.so.{version}", f"libnvidia-ml.so.{version}"} <= names
    assert [path for path in libraries if Path(path).is_symlink()] == []


def test_inventory_of_the_cache_is_the_inventory_of_nvml(bed: Bed) -> None:
    warm = [bed.call(bed.commands.nvc, command, "--json", check=True).out for command in ("info", "list")]
    cold = [bed.call(bed.commands.nvc, "--no-cache", command, "--json", check=True).out for command in ("info", "list")]
    assert cold == warm
