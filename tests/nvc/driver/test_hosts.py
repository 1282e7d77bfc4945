"""Hosts without a loader cache, and driver roots that hold the driver alone: simulated machines of their layouts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.errors import DetectionError, InitializationError, NvcError
from nvc.base.log import Log
from nvc.cdi.gather import gather
from nvc.cdi.generate import GenerateOptions, generate
from nvc.driver.discover import discover
from nvc.driver.machinekey import machine_key
from nvc.driver.service import start
from nvc.inject.api import Config, Context
from nvc.model import DriverOptions, Host, Inventory
from nvc.sim import description
from nvc.sim.create import create
from nvc.sim.layouts import LAYOUTS
from tests.nvc.driver.test_simulated import facts
from tests.support.native import build

pytestmark = pytest.mark.root

MACHINE = "l40s-server"
ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin"}
WITHOUT_CACHE = sorted(name for name, row in LAYOUTS.items() if not row.cache)
OWN_ROOT = sorted(name for name, row in LAYOUTS.items() if row.prefix)
Made = Callable[[str], Host]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Hosts as an administrator names them: the driver root, and the root of nodes where that is another."""
    build()
    hosts: dict[str, Host] = {}

    def get(layout: str) -> Host:
        if layout not in hosts:
            machine = description.load(MACHINE).replace(layout=layout)
            root = create(str(tmp_path_factory.mktemp("host") / layout), machine).root
            prefix = LAYOUTS[layout].prefix
            hosts[layout] = Host(root + prefix, system=root, dev_root=root if prefix else "")
        return hosts[layout]

    return get


def found(host: Host) -> Inventory:
    system, gpus = facts(description.load(MACHINE))
    return discover(host, DriverOptions(), system, gpus, ENVIRON)


def names(inventory: Inventory) -> set[str]:
    driver = inventory.driver
    files = (*driver.libraries, *driver.binaries, *driver.more)
    return {file.place if file.kind == "config" else file.path.rpartition("/")[2] for file in files}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_every_layout_has_the_same_driver(made: Made, layout: str) -> None:
    inventory, usual = found(made(layout)), found(made("rhel"))
    icds = {f"/etc/vulkan/icd.d/nvidia_icd.{kind}json" for kind in ("", f"{os.uname().machine}.")}
    assert names(inventory) - icds == names(usual) - icds
    assert len(names(inventory) & icds) == 1
    assert [gpu.drm for gpu in inventory.gpus] == [gpu.drm for gpu in usual.gpus]
    assert inventory.driver.nodes == usual.driver.nodes
    for file in (*inventory.driver.libraries, *inventory.driver.more):
        assert os.path.isfile(made(layout).root + file.path)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_spec_names_files_and_nodes_of_this_machine(made: Made, layout: str) -> None:
    host = made(layout)
    inventory = found(host)
    spec = generate(inventory, gather(host, inventory), host, GenerateOptions())
    paths = [mount.host_path for mount in spec.edits.mounts]
    nodes = [node for edits in (spec.edits, *(one.edits for one in spec.devices)) for node in edits.device_nodes]
    assert all(os.path.exists(path) for path in paths)
    assert len(paths) > 50
    assert all(node.host_path == f"{host.nodes}{node.path}" and os.path.exists(node.host_path) for node in nodes)
    assert all(mount.container_path.startswith(("/usr", "/etc", "/lib", "/var", "/nix")) for mount in spec.edits.mounts)


@pytest.mark.parametrize("layout", sorted(set(WITHOUT_CACHE) - set(OWN_ROOT)))
def test_nvml_is_loaded_from_where_it_was_found(made: Made, layout: str) -> None:
    with start(made(layout), uid=None, gid=None, deadline=20, log=Log.none()) as client:
        assert client.system().driver_version == "580.95.05"


def test_below_a_root_without_nodes_nvml_is_loaded_without_a_chroot() -> None:
    # Not pytest's directory, which only root may enter: NVML's process is another user's.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        root = create(f"{directory}/gke", description.load(MACHINE).replace(layout="gke")).root
        host = Host(root + LAYOUTS["gke"].prefix, system=root, dev_root=root)
        with start(host, uid=None, gid=None, deadline=20, log=Log.none()) as client:
            # The simulated NVML looks for nodes below its own root, and there may be none on this computer.
            try:
                client.system()
            except NvcError as error:
                assert "load library failed" not in error.message
            assert os.readlink(f"/proc/{client.pid}/root") == "/"


def test_a_new_file_in_a_directory_is_noticed_where_there_is_no_loader_cache(made: Made) -> None:
    host = made("alpine")
    before = machine_key(host)
    other = Path(host.root) / "usr/lib/libnvidia-later.so.1"
    other.touch()
    try:
        assert machine_key(host) != before
    finally:
        other.unlink()


def test_without_cache_and_without_libraries_it_is_the_cache_that_is_missing(tmp_path: Path) -> None:
    system, gpus = facts(description.load(MACHINE))
    with pytest.raises(DetectionError, match=r"open failed: /etc/ld\.so\.cache"):
        discover(Host(str(tmp_path), system=str(tmp_path)), DriverOptions(), system, gpus, ENVIRON)


def test_a_library_of_another_processor_in_a_directory_is_passed_over(made: Made, tmp_path: Path) -> None:
    machine = description.load(MACHINE).replace(layout="alpine", damage={"libcuda.so": "foreign"})
    root = create(str(tmp_path / "machine"), machine).root
    inventory = found(Host(root, system=root))
    assert not any("libcuda.so" in file.path for file in inventory.driver.libraries)
    assert any("built for" in warning for warning in inventory.warnings)


def test_named_directories_are_the_only_ones(made: Made) -> None:
    host = made("rhel")
    assert names(found(host.replace(libraries=("/usr/lib64",)))) == names(found(host))
    with pytest.raises(DetectionError):
        found(host.replace(libraries=("/opt",)))
    without = found(host.replace(configs=("/opt",)))
    assert not any(file.kind == "config" for file in without.driver.more)


def test_with_a_root_of_nodes_nothing_is_applied_to_a_container(made: Made) -> None:
    host = made("gke")
    config = Config(root=host.root, dev_root=host.dev_root, cache=False)
    with Context(config) as context, pytest.raises(InitializationError, match="device nodes below"):
        context.container(None)  # type: ignore[arg-type] # refused before it is looked at
