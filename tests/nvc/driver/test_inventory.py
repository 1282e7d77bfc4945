from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import nvc
from nvc.driver import inventory as module
from nvc.driver.facts import NvmlGpu, NvmlSystem
from nvc.driver.inventory import cache_path, load
from nvc.errors import DetectionError
from nvc.log import Log
from nvc.model import DriverOptions, Host, Inventory
from rpc.codec import dumps, loads
from tests.support.driver_root import H200, LIBDIR, NVRM, SYSTEM, VERSION, DriverRoot


class Machine:
    """A driver root with its cache file, and a count of the questions to NVML."""

    def __init__(self, root: DriverRoot, cache: Path) -> None:
        self.root = root
        self.cache = cache
        self.asked = 0
        self.options = DriverOptions()
        self.environ = dict(root.environ)
        self.host = root.host
        self.gpus: tuple[NvmlGpu, ...] = (H200,)
        self.log: Any = Log.none()

    def query(self) -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        self.asked += 1
        return SYSTEM, self.gpus

    def load(self, cache: Path | None = None) -> Inventory:
        path = str(cache or self.cache)
        return load(self.host, self.options, self.query, cache=path, log=self.log, environ=self.environ)


@pytest.fixture
def machine(driver_root: DriverRoot, tmp_path: Path) -> Machine:
    return Machine(driver_root, tmp_path / "run/nvc/inventory.json")


def test_a_hit_asks_nothing_and_gives_the_same(machine: Machine) -> None:
    machine.gpus = (H200.replace(migs=(machine.root.mig_instance(0, 1, 0),)),)
    first = machine.load()

    assert [first] * 5 == [machine.load() for _ in range(5)]
    assert 1 == machine.asked
    assert 135 == len(first.gpus[0].mig_nodes)


def test_a_hit_imports_no_discovery(machine: Machine) -> None:
    machine.load()
    script = f"""
import sys
sys.path.insert(0, {str(Path(nvc.__file__).parents[1])!r})
from nvc.driver.inventory import load
from nvc.log import Log
from nvc.model import DriverOptions, Host
host = Host(root={machine.host.root!r}, system={machine.host.system!r})
assert load(host, DriverOptions(), None, cache={str(machine.cache)!r}, log=Log.none(), environ={machine.environ!r})
print(*sys.modules)
"""
    command = [sys.executable, "-I", "-S", "-c", script]
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


def damage_json(cache: Path) -> None:
    cache.write_bytes(cache.read_bytes()[:-40])


def damage_field(*path: str | int, value: object) -> Callable[[Path], None]:
    def change(cache: Path) -> None:
        content = loads(cache.read_bytes())
        place = content
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        cache.write_bytes(dumps(content))

    return change


def link(cache: Path) -> None:
    cache.rename(cache.with_suffix(".real"))
    cache.symlink_to(cache.with_suffix(".real"))


def second_name(cache: Path) -> None:
    os.link(cache, cache.with_suffix(".second"))


def fifo(cache: Path) -> None:
    cache.unlink()
    os.mkfifo(cache)


def too_big(cache: Path) -> None:
    with cache.open("ab") as file:
        file.truncate(module.SIZE_LIMIT + 1)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda cache: cache.write_bytes(b""), id="empty"),
        pytest.param(damage_json, id="cut-short"),
        pytest.param(lambda cache: cache.write_bytes(os.urandom(500)), id="random"),
        pytest.param(lambda cache: cache.write_bytes(b"[]"), id="a-list"),
        pytest.param(lambda cache: cache.write_bytes(b'{"machine":1}'), id="fields-missing"),
        pytest.param(damage_field("machine", value=5), id="machine-of-another-type"),
        pytest.param(damage_field("views", value=5), id="views-of-another-type"),
        pytest.param(damage_field("views", value=[5]), id="view-of-another-type"),
        pytest.param(damage_field("views", 0, "inventory", "gpus", value=[5]), id="gpu-of-another-type"),
        pytest.param(damage_field("views", 0, "inventory", "driver", "nvrm_version", value=5), id="version-a-number"),
        pytest.param(damage_field("views", 0, "watch", value=5), id="watch-of-another-type"),
        pytest.param(lambda cache: cache.chmod(0o666), id="writable-by-others"),
        pytest.param(lambda cache: cache.chmod(0o660), id="writable-by-the-group"),
        pytest.param(link, id="a-link"),
        pytest.param(second_name, id="a-second-name"),
        pytest.param(fifo, id="a-fifo"),
        pytest.param(too_big, id="too-big"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_rebuilt(machine: Machine, damage: Callable[[Path], None]) -> None:
    first = machine.load()

    damage(machine.cache)
    assert first == machine.load()
    assert 2 == machine.asked

    assert first == machine.load()
    assert 2 == machine.asked
    assert 0o100600 == machine.cache.lstat().st_mode


def test_damaged_facts_are_asked_for_again(machine: Machine) -> None:
    machine.load()
    damage_field("facts", value=[1])(machine.cache)
    machine.options = DriverOptions(no_mps=True)

    machine.load()

    assert 2 == machine.asked


@pytest.mark.root
def test_a_file_of_another_user_is_rebuilt(machine: Machine) -> None:
    machine.load()
    os.chown(machine.cache, 65534, 65534)

    machine.load()

    assert 2 == machine.asked
    assert 0 == machine.cache.stat().st_uid


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_that_others_may_write_is_not_used(machine: Machine, mode: int) -> None:
    machine.load()
    machine.cache.parent.chmod(mode)

    machine.load()
    machine.load()

    assert 3 == machine.asked


def test_a_directory_that_is_a_link_is_not_used(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    machine.cache.parent.parent.mkdir()
    machine.cache.parent.symlink_to(tmp_path / "elsewhere")

    machine.load()

    assert [] == list((tmp_path / "elsewhere").iterdir())


def test_a_cache_that_cannot_be_written_is_a_line_in_the_log(machine: Machine, log: Any) -> None:
    machine.log = log

    machine.load(Path("/proc/none/inventory.json"))

    assert log.has("inventory is not kept in /proc/none/inventory.json")


@pytest.mark.parametrize("room", [0, 10])
def test_a_full_disk_is_a_line_in_the_log(
    machine: Machine, log: Any, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: Sequence[int]) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return room

    machine.log = log
    monkeypatch.setattr(os, "write", full)

    machine.load()

    assert log.has("no space left on device")
    assert [] == list(machine.cache.parent.iterdir())


def test_the_log_says_why_nvml_was_asked(machine: Machine, log: Any) -> None:
    machine.log = log
    machine.load()
    machine.root.write("proc/driver/nvidia/version", NVRM + "\n")
    machine.load()
    machine.load()

    assert log.has("is of another time: nvrm changed")
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
