"""Discovery over every simulated machine: what the description says is what is found, and nothing else."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

import pytest

from nvc.base.log import Log
from nvc.driver.discover import discover
from nvc.driver.facts import NvmlGpu, NvmlMig, NvmlSystem
from nvc.driver.inventory import load
from nvc.driver.libraries import rows
from nvc.driver.places import cache_path
from nvc.driver.service import start
from nvc.driver.tables import MORE_BINARIES
from nvc.model import NVCAPS_DEV, NVCAPS_NONE, NVCAPS_PROC, DriverOptions, Host, Inventory
from nvc.sim import description, files
from nvc.sim.description import MachineDescription
from tests.nvc.driver.conftest import Made

ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
MACHINES = description.names("")


def facts(machine: MachineDescription) -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
    """What NVML would say, straight from the description."""
    gpus = []
    for index, gpu in enumerate(machine.gpus):
        model = machine.gpu_models[gpu.model]
        migs = tuple(
            NvmlMig(number, mig.gi, mig.ci, mig.uuid, f"{gpu.model} MIG {mig.profile}")
            for number, mig in enumerate(gpu.mig)
        )
        gpus.append(
            NvmlGpu(
                index,
                gpu.minor,
                gpu.model,
                model.brand,
                gpu.uuid,
                *gpu.pci,
                model.arch,
                model.mig_capable,
                gpu.mig_enabled,
                migs,
                model.memory << 20,
            )
        )
    return NvmlSystem(machine.driver_version, machine.cuda_version, len(gpus)), tuple(gpus)


def find(host: Host, name: str, options: DriverOptions | None = None) -> Inventory:
    system, gpus = facts(description.load(name))
    return discover(host, options or DriverOptions(), system, gpus, ENVIRON)


def names(found: tuple[object, ...], version: str) -> set[str]:
    return {posixpath.basename(file.path).removesuffix(f".{version}") for file in found}  # type: ignore[attr-defined]


@pytest.mark.parametrize("glvnd", [True, False])
@pytest.mark.parametrize("name", MACHINES)
def test_libraries_are_those_that_were_installed_and_work(made: Made, name: str, glvnd: bool) -> None:
    machine = description.load(name)
    wanted = {row.name for row in rows(glvnd=glvnd)}
    good = wanted - set(machine.damage) - set(machine.versions)

    found = find(made(name), name, DriverOptions(no_glvnd=not glvnd)).driver

    for bits, files_found in ((64, found.libraries), (32, found.libraries32))[: 1 + machine.compat32]:
        # Those in a directory of their own are in no loader cache.
        installed = {one.row.name for one in files.libraries(machine, bits=bits) if not one.directory}
        assert installed & good == names(files_found, machine.driver_version)
    assert bool(found.libraries32) is machine.compat32


@pytest.mark.parametrize("name", MACHINES)
def test_everything_found_is_a_real_file(made: Made, name: str) -> None:
    host = made(name)
    driver = find(host, name).driver

    for file in (*driver.libraries, *driver.libraries32, *driver.binaries, *driver.firmwares, *driver.more):
        path = Path(host.root + file.path)
        assert path.exists()
        assert not path.is_symlink()


@pytest.mark.parametrize("name", MACHINES)
def test_programs_firmware_and_sockets(made: Made, name: str) -> None:
    machine = description.load(name)
    driver = find(made(name), name).driver

    beyond = {row.name for row in MORE_BINARIES}
    programs = {name for name in files.binaries(machine) if name not in ("nvidia-modprobe", "nvidia-settings")}
    assert programs - beyond == names(driver.binaries, "")
    assert programs & beyond == names(tuple(file for file in driver.more if file.kind == "binary"), "")
    assert len(machine.firmware) == len(driver.firmwares)
    assert len(machine.sockets) + machine.mps == len(driver.ipcs)


@pytest.mark.parametrize("name", MACHINES)
def test_gpus_and_mig_devices(made: Made, name: str) -> None:
    host, machine = made(name), description.load(name)
    found = find(host, name)

    style = NVCAPS_NONE if not machine.capabilities else NVCAPS_DEV if machine.caps_in_dev else NVCAPS_PROC
    assert style == found.nvcaps_style
    assert [gpu.uuid for gpu in machine.gpus] == [gpu.uuid for gpu in found.gpus]
    for said, gpu in zip(machine.gpus, found.gpus, strict=True):
        assert f"/proc/driver/nvidia/gpus/{said.bus_id}" == gpu.proc_path
        found_migs = [(mig.gi, mig.ci, mig.uuid, mig.profile) for mig in gpu.mig_devices]
        assert [(mig.gi, mig.ci, mig.uuid, mig.profile) for mig in said.mig] == found_migs
        assert (135 if gpu.mig_capable and style == NVCAPS_DEV else 0) == len(gpu.mig_nodes)
        for mig in gpu.mig_devices:
            for access in (mig.gi_access, mig.ci_access):
                assert os.path.exists(host.root + access.proc_path)
                assert (access.node is not None) is (style == NVCAPS_DEV)
                assert access.node is None or access.node in gpu.mig_nodes


@pytest.mark.root
@pytest.mark.parametrize("name", MACHINES)
def test_nodes(made: Made, name: str) -> None:
    machine = description.load(name)
    expected = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} - set(machine.without)

    found = {node.path for node in find(made(name), name).driver.nodes}

    assert expected | ({"/dev/nvidia-modeset"} if machine.modeset else set()) == found


def test_damage_is_told(made: Made) -> None:
    machine = description.load("broken")
    warnings = find(made("broken"), "broken").warnings

    for library in machine.damage:
        assert any(line.startswith("skipping ") and library in line for line in warnings), library


@pytest.mark.root
@pytest.mark.parametrize("name", MACHINES)
def test_what_nvml_says_is_kept(made: Made, name: str) -> None:
    """The whole way once: the driver service in the machine's root, discovery, the cache file, and a hit."""
    host = made(name)
    asked = 0

    def query() -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        nonlocal asked
        asked += 1
        with start(host, uid=None, gid=None, deadline=30.0, log=Log.none()) as client:
            system = client.system()
            return system, tuple(client.gpu(index) for index in range(system.gpu_count))

    def run() -> Inventory:
        return load(host, DriverOptions(), query, cache=cache_path(host), log=Log.none(), environ=ENVIRON)

    first = run()

    assert find(host, name) == first
    assert first == run()
    assert 1 == asked
