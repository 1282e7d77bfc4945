"""The kept inventory: asked for again exactly when something changed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nvc
from nvc.base.errors import DetectionError
from nvc.driver import inventory as module
from nvc.driver.inventory import load
from nvc.driver.places import cache_path
from nvc.model import DriverOptions, Host, Inventory
from rpc.codec import dumps, loads
from tests.support.cached_machine import Machine
from tests.support.driver_root import H200, LIBDIR, NVRM, VERSION


def test_a_hit_asks_nothing_and_gives_the_same(machine: Machine) -> None:
    machine.gpus = (H200.replace(migs=(machine.root.mig_instance(0, 1, 0),)),)
    first = machine.load()

    assert [first] * 5 == [machine.load() for _ in range(5)]
    assert 1 == machine.asked
    assert 135 == len(first.gpus[0].mig_nodes)


def test_a_hit_imports_no_discovery(machine: Machine) -> None:
    machine.load()
    program = Path(__file__).parent / "programs/load_inventory.py"
    words = [Path(nvc.__file__).parents[1], machine.host.root, machine.host.system, machine.cache]
    variables = [f"{name}={value}" for name, value in machine.environ.items()]
    command = [sys.executable, "-I", "-S", program, *words, *variables]
    loaded = set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.split())

    slow = {"nvc.driver.discover", "nvc.driver.tables", "nvc.formats.ldcache", "nvc.formats.elf", "elftools", "json",
            "re", "enum", "dataclasses", "typing", "contextlib", "collections", "functools", "subprocess"}  # fmt: skip
    assert set() == slow & loaded


def test_the_file_is_for_root_alone(machine: Machine) -> None:
    machine.load()

    assert 0o600 == machine.cache.stat().st_mode & 0o777
    assert [machine.cache] == list(machine.cache.parent.iterdir())


def test_without_cache_nothing_is_kept(machine: Machine) -> None:
    for _ in range(2):
        load(machine.host, machine.options, machine.query, cache=None, log=machine.log, environ=machine.environ)

    assert 2 == machine.asked
    assert not machine.cache.exists()


def test_without_a_driver_nothing_is_kept(machine: Machine) -> None:
    (machine.root.path / "proc/driver/nvidia/version").unlink()

    machine.load()

    assert not machine.cache.exists()


def rewrite(path: str, text: str) -> Callable[[Machine], None]:
    def change(machine: Machine) -> None:
        machine.root.write(path, text)

    return change


def destroy_and_make_mig(machine: Machine) -> None:
    """The same instance made anew: same names, another time."""
    os.utime(machine.root.path / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0", ns=(1, 1))


def set_field(name: str, value: object) -> Callable[[Machine], None]:
    def change(machine: Machine) -> None:
        setattr(machine, name, value)

    return change


def other_ldcache(machine: Machine) -> None:
    machine.root.write("etc/other", (machine.root.path / "etc/ld.so.cache").read_bytes())
    machine.host = machine.host.replace(ldcache="/etc/other")


def other_root(machine: Machine) -> None:
    link = machine.root.path.parent / "link"
    link.symlink_to(machine.root.path)
    machine.host = Host(root=str(link), system=str(link))


MACHINE_CHANGES = [
    pytest.param(rewrite("proc/driver/nvidia/version", NVRM.replace("15", "16")), id="nvrm-version"),
    pytest.param(lambda m: m.root.ldconfig("compat"), id="ld.so.cache-rewritten"),
    pytest.param(lambda m: os.utime(m.root.path / "etc/ld.so.cache", ns=(1, 1)), id="ld.so.cache-time"),
    pytest.param(other_ldcache, id="ld.so.cache-elsewhere"),
    pytest.param(other_root, id="driver-root"),
    pytest.param(rewrite("proc/driver/nvidia/gpus/0000:00:07.0/information", ""), id="gpu-added"),
    pytest.param(rewrite("sys/bus/pci/drivers/nvidia/0000:00:07.0", ""), id="gpu-bound"),
    pytest.param(lambda m: m.root.mig_instance(0, 2, 0), id="mig-instance-made"),
    pytest.param(destroy_and_make_mig, id="mig-instance-made-anew"),
    pytest.param(lambda m: m.root.majors("239 nvidia-uvm", "241 nvidia-caps"), id="majors"),
]
VIEW_CHANGES = [
    pytest.param(set_field("options", DriverOptions(no_mps=True)), id="options"),
    pytest.param(set_field("environ", {"PATH": "/usr/bin"}), id="PATH"),
    pytest.param(
        set_field("environ", {"PATH": "/usr/local/bin:/usr/bin", "CUDA_MPS_PIPE_DIRECTORY": "/srv"}), id="mps-directory"
    ),
    pytest.param(rewrite("usr/bin/nv-fabricmanager", ""), id="program-installed"),
    pytest.param(lambda m: (m.root.path / "usr/bin/nvidia-smi").unlink(), id="program-removed"),
    pytest.param(rewrite(f"lib/firmware/nvidia/{VERSION}/gsp_x.bin", ""), id="firmware-added"),
    pytest.param(lambda m: (m.root.path / "tmp/nvidia-mps").mkdir(parents=True), id="mps-started"),
    pytest.param(rewrite("var/run/nvidia-persistenced/socket", ""), id="socket-appeared"),
    pytest.param(rewrite("dev/nvidia-uvm", ""), id="node-appeared"),
    pytest.param(lambda m: m.root.library("libcuda.so").unlink(), id="library-removed"),
    pytest.param(lambda m: os.utime(m.root.library("libcuda.so"), ns=(1, 1)), id="library-replaced"),
]


@pytest.mark.parametrize("change", MACHINE_CHANGES)
def test_a_change_of_the_machine_asks_nvml_again(machine: Machine, change: Callable[[Machine], None]) -> None:
    machine.gpus = (H200.replace(migs=(machine.root.mig_instance(0, 1, 0),)),)
    machine.load()

    change(machine)
    machine.load()
    assert 2 == machine.asked

    machine.load()
    assert 2 == machine.asked


@pytest.mark.parametrize("change", VIEW_CHANGES)
def test_a_change_of_the_view_finds_files_anew_without_nvml(
    machine: Machine, change: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.load()
    found = 0
    discover = module._discover

    def counted(*arguments: Any) -> Any:
        nonlocal found
        found += 1
        return discover(*arguments)

    monkeypatch.setattr(module, "_discover", counted)
    change(machine)
    machine.load()
    machine.load()

    assert (1, 1) == (machine.asked, found)


def test_another_boot_and_another_version_of_ours_ask_again(machine: Machine) -> None:
    machine.load()
    for name in ("boot", "program"):
        content = loads(machine.cache.read_bytes())
        content["machine"][name] = "another"
        machine.cache.write_bytes(dumps(content))
        machine.asked = 0

        machine.load()

        assert 1 == machine.asked


def test_a_simulated_machine_is_not_the_host(machine: Machine) -> None:
    machine.load()
    machine.host = machine.host.replace(simulated="h200")
    machine.load()

    assert 2 == machine.asked
    assert "/run/nvc/inventory.json" == cache_path(Host())
    assert "/sim/run/nvc/inventory.json" == cache_path(Host(root="/sim", system="/sim", simulated="h200"))


def test_what_appears_is_in_the_next_inventory(machine: Machine) -> None:
    assert 3 == len(machine.load().driver.binaries)

    machine.root.write("usr/bin/nv-fabricmanager", "")

    assert 4 == len(machine.load().driver.binaries)


@pytest.mark.root
def test_a_node_made_after_boot_is_in_the_next_inventory(machine: Machine) -> None:
    assert 1 == len(machine.load().driver.nodes)

    machine.root.nodes()

    assert 4 == len(machine.load().driver.nodes)
    assert 1 == machine.asked


def test_several_views_live_side_by_side(machine: Machine) -> None:
    views = [DriverOptions(), DriverOptions(no_mps=True), DriverOptions(no_glvnd=True), DriverOptions(no_uvm=True)]
    results = []
    for machine.options in views:
        results.append(machine.load())
    before = machine.cache.read_bytes()

    for machine.options, result in zip(views, results, strict=True):
        assert result == machine.load()

    assert before == machine.cache.read_bytes()
    assert 1 == machine.asked


def test_views_do_not_pile_up(machine: Machine) -> None:
    for number in range(3 * module.VIEW_LIMIT):
        machine.environ = {"PATH": f"/usr/bin:/opt/{number}"}
        machine.load()

    assert module.VIEW_LIMIT == len(loads(machine.cache.read_bytes())["views"])


def test_the_log_says_why_nvml_was_asked(machine: Machine, log: Any) -> None:
    machine.log = log
    machine.load()
    machine.root.write("proc/driver/nvidia/version", NVRM + "\n")
    machine.load()
    machine.load()

    assert log.has("is outdated: nvrm changed")
    assert log.has(f"inventory from {machine.cache}")
    assert log.has("missing library libnvoptix.so")


def test_an_error_of_the_detection_is_not_kept(machine: Machine) -> None:
    for file in (machine.root.path / LIBDIR).glob("libnvidia-ml*"):
        file.unlink()

    with pytest.raises(DetectionError):
        machine.load()
    assert not machine.cache.exists()


def test_many_at_once(machine: Machine) -> None:
    expected = machine.load()
    machine.cache.unlink()
    results: list[Inventory] = []

    def run() -> None:
        for _ in range(5):
            results.append(machine.load())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [expected] * 40 == results
    assert [machine.cache] == list(machine.cache.parent.iterdir())


def test_the_environment_is_the_default(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")

    found = load(machine.host, machine.options, machine.query, cache=None, log=machine.log)

    assert "/usr/bin/nvidia-smi" == found.driver.binaries[0].path
