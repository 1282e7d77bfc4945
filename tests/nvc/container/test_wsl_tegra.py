"""WSL2 and Tegra from the command line to a container's files, on simulated machines and in namespaces of our own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nvc.base.errors import MountError, RequirementError
from nvc.cli.main import main
from nvc.container.operations import AllowDevices, BindMount, Symlink, UpdateLdcache
from nvc.container.plan import Scope, component_directories, device_mount, driver_mount, merge
from nvc.driver.places import CACHE
from nvc.inject.api import Config, ContainerConfig, ContainerOptions, Context, LibraryOptions
from nvc.inject.planner import plan
from nvc.model import CSV_DIRECTORY, TEGRA, WSL, Container, DeviceNode, DriverFile, DriverInfo, Gpu, ProcFile
from nvc.request.capabilities import WORDS, DriverCapabilities
from nvc.request.injection import InjectionRequest
from nvc.sim.create import create
from nvc.sim.description import load
from nvc.sim.platforms import store
from tests.support import injection
from tests.support.injection import container, isolated, mountinfo, tree
from tests.support.native import build

if TYPE_CHECKING:
    from nvc.container.operations import Operation

root = pytest.mark.root
DXG = DeviceNode("/dev/dxg", 10, 125)
STORE = store(load("wsl2"))
SCOPE = Scope(Container(1, "/c", True, "/n", "/usr/bin", "/usr/lib64", "/usr/lib", "", 0, 0), DriverCapabilities(WORDS))
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0:
        pytest.skip("device nodes are made by root only")
    build()
    directory = tmp_path_factory.mktemp("platforms")
    directory.chmod(0o755)
    for name in ("wsl2", "tegra-orin", "h200"):
        create(str(directory / name), name)
    return directory


@pytest.fixture
def run(machines: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    def call(name: str, *words: str) -> tuple[int, str, str]:
        code = main([f"--sim={machines / name}", *words], "nvc-py")
        return code, *capfd.readouterr()

    return call


def configure(
    machine: Path, pid: int, rootfs: Path, *requirements: str, capability: str = "compute", devices: str = "all"
) -> tuple[Operation, ...]:
    with Context(Config(sim=str(machine))) as context:
        options = ContainerOptions(supervised=True, no_cgroups=True, capabilities=(capability,))
        with context.container(ContainerConfig(pid, str(rootfs)), options) as session:
            plan(InjectionRequest((devices,), requirements=requirements), context, session)
            session.apply()
            return session.plan


def gpu(index: int, node: DeviceNode, *more: DeviceNode) -> Gpu:
    return Gpu(index, 0, "x", "x", f"GPU-{index}", "", "8.9", node, "", more_nodes=more)


def driver(platform: str, *components: DriverFile, nodes: tuple[DeviceNode, ...] = ()) -> DriverInfo:
    return DriverInfo("1.0", "12.0", (), (), (), (), (), nodes, platform, components)


# The plan, pure.


def test_below_wsl_files_and_node_come_once_for_any_number_of_gpus() -> None:
    info = driver(WSL, DriverFile("/s/libcuda.so.1.1", "store", ""), nodes=(DXG,))
    # A machine may have /proc/driver/nvidia of something else; nothing of it is shown.
    files = (ProcFile("/proc/driver/nvidia/params", 0o444, "x"),)

    found = merge([*driver_mount(SCOPE, info, files), *(o for n in range(8) for o in device_mount(SCOPE, gpu(n, DXG)))])

    assert found == (
        BindMount("/s/libcuda.so.1.1", "/s/libcuda.so.1.1", "regular", ("ro", "nodev", "nosuid")),
        BindMount("/dev/dxg", "/dev/dxg", "device", ("ro", "nosuid", "noexec"), 10, 125),
        AllowDevices(((10, 125),)),
    )


def test_on_a_tegra_nodes_come_with_the_gpu() -> None:
    one, two = DeviceNode("/dev/nvmap", 10, 1), DeviceNode("/dev/nvhost-gpu", 505, 1)
    info = driver(
        TEGRA,
        DriverFile("/l/a.so", "csv-file", ""),
        DriverFile("/d/d", "csv-directory", ""),
        DriverFile("/d/d/b.so", "csv-file", ""),
        DriverFile("/l/c.so", "csv-link", "", (("c.so", "a.so"),)),
    )

    files = merge(driver_mount(SCOPE, info, ()))
    both = merge((*driver_mount(SCOPE, info, ()), *device_mount(SCOPE, gpu(0, one, two))))

    assert files == (
        BindMount("/l/a.so", "/l/a.so", "regular", ("ro", "nodev", "nosuid")),
        BindMount("/d/d", "/d/d", "directory", ("ro", "nodev", "nosuid")),
        Symlink("/l/c.so", "a.so"),
    )
    assert both[-1] == AllowDevices(((10, 1), (505, 1)))
    assert [o.host_path for o in both if isinstance(o, BindMount) and o.source == "device"] == [one.path, two.path]
    assert component_directories(info) == ("/l", "/d/d")


def test_directories_for_the_loader_are_those_of_listed_libraries() -> None:
    info = driver(WSL, DriverFile("/s/libcuda.so.1.1", "store", ""))
    assert component_directories(info) == ()
    info = driver(TEGRA, DriverFile("/etc/a.conf", "csv-file", ""), DriverFile("/l", "csv-directory", ""))
    assert component_directories(info) == ()


# Information.


@root
def test_info_and_list_below_wsl(run: Run, machines: Path) -> None:
    code, out, _ = run("wsl2", "info", "--json")
    data = json.loads(out)
    assert (code, data["platform"], len(data["gpus"])) == (0, "wsl", 2)
    lines = run("wsl2", "list")[1].splitlines()
    assert lines[0] == "/dev/dxg"
    assert len(lines) == len(set(lines))
    assert all(Path(f"{machines}/wsl2{line}").exists() for line in lines)
    assert f"{STORE}/nvcubins.bin" in lines
    assert run("wsl2", "list", "--device=1")[1] == "/dev/dxg\n"
    assert run("wsl2", "list", "--firmwares")[1] == ""


@root
def test_info_and_list_on_a_tegra(run: Run, machines: Path) -> None:
    code, out, _ = run("tegra-orin", "info", "--csv")
    assert (code, out.splitlines()[1]) == (0, "35.4.1,11.4")
    assert out.splitlines()[-1] == "0,0,Jetson AGX Orin Developer Kit,Unknown,,,8.7"
    lines = run("tegra-orin", "list")[1].splitlines()
    assert len(lines) == len(set(lines))
    assert all(os.path.lexists(f"{machines}/tegra-orin{line}") for line in lines)
    assert "/dev/nvhost-gpu" in lines
    assert "/etc/nv_tegra_release" in lines
    assert not any("cudnn" in line for line in lines)


@root
def test_an_ordinary_machine_says_nothing_of_platforms(run: Run) -> None:
    assert "platform" not in run("h200", "info", "--json")[1]
    assert "components" not in run("h200", "list", "--json")[1]


@root
@pytest.mark.parametrize("name", ["wsl2", "tegra-orin"])
def test_nothing_is_kept_for_later(tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    tmp_path.chmod(0o755)
    host = create(str(tmp_path / "machine"), name)
    # As on an Orin, where the module that drives the display is loaded.
    version = Path(f"{host.root}/proc/driver/nvidia/version")
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  35.4.1  Release Build\n")
    assert main([f"--sim={host.root}", "list"], "nvc-py") == 0
    assert capfd.readouterr().out
    assert not Path(f"{host.root}{CACHE}").exists()


@root
@pytest.mark.parametrize(("name", "words"), [("wsl2", "Windows' driver"), ("tegra-orin", "Tegra's own driver")])
def test_doctor_does_not_miss_nvidias_module(run: Run, name: str, words: str) -> None:
    found = {finding["check"]: finding for finding in json.loads(run(name, "doctor", "--json")[1])["findings"]}
    assert found["driver-loaded"]["level"] == "ok"
    assert words in found["driver-loaded"]["what"]


@root
@pytest.mark.parametrize(
    ("name", "mode", "right"),
    [("wsl2", "csv", "wsl"), ("wsl2", "nvml", "wsl"), ("tegra-orin", "wsl", "csv"), ("h200", "csv", "nvml")],
)
def test_a_cdi_mode_of_another_machine_is_refused(run: Run, name: str, mode: str, right: str) -> None:
    code, out, err = run(name, "cdi", "generate", f"--mode={mode}")
    assert (code, out) == (1, "")
    assert f"mode {mode} is not for this machine" in err
    assert f"--mode {right} is" in err
    code, out, _ = run(name, "cdi", "generate", f"--mode={right}")
    assert code == 0
    assert out == run(name, "cdi", "generate")[1]


@root
def test_a_spec_of_every_list(run: Run) -> None:
    assert "libcudnn" not in run("tegra-orin", "cdi", "generate")[1]
    assert "libcudnn.so.8.6.0" in run("tegra-orin", "cdi", "generate", "--csv-all")[1]


# Containers.


@root
@isolated
def test_a_container_below_wsl(machines: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        operations = configure(machines / "wsl2", pid, rootfs, "cuda>=12.4", "driver>=552.0")
        inside = injection.inside(pid, rootfs, "/")

        assert (inside / f"{STORE[1:]}/nvcubins.bin").read_text() == "SIMULATED cubins\n"
        assert (inside / "dev/dxg").is_char_device()
        assert not (inside / "etc/nvidia").exists()
        mounts = mountinfo(pid)
        # The second time changes nothing.
        configure(machines / "wsl2", pid, rootfs)
        assert mountinfo(pid) == mounts
    (cache,) = [operation for operation in operations if isinstance(operation, UpdateLdcache)]
    assert not any("wsl" in directory for directory in cache.directories)


@root
@isolated
def test_a_container_on_a_tegra(machines: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        configure(machines / "tegra-orin", pid, rootfs, "csv-mounts=all", "cuda>=11.4", "arch>=8.0")
        inside = injection.inside(pid, rootfs, "/")
        (tegra,) = (inside / "usr/lib").glob("*/tegra")

        assert (tegra / "libcuda.so").resolve().name == "libcuda.so.1.1"
        assert os.readlink(tegra.parent / "libcuda.so") == "tegra/libcuda.so"
        assert (tegra.parent / "libcudnn.so.8.6.0").exists()
        assert (inside / "dev/nvgpu/igpu0/ctrl").is_char_device()
        cache = subprocess.run(
            ["/sbin/ldconfig", "-p", "-C", str(rootfs / "etc/ld.so.cache")], capture_output=True, text=True, check=True
        ).stdout
        assert "/tegra/libcuda.so.1\n" in cache
        with pytest.raises(OSError, match="Read-only file system"):
            (tegra / "libcuda.so.1.1").open("r+b")


@root
@isolated
def test_an_images_links_lead_nowhere_else(machines: Path, rootfs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (rootfs / "usr/lib").mkdir(exist_ok=True)
    (rootfs / "usr/lib/firmware").symlink_to(outside)
    (rootfs / "etc/nv_tegra_release").symlink_to("../../../../../../etc/nvc-test-must-not-exist")
    (rootfs / "dev").rmdir()
    (rootfs / "dev").mkdir()
    before = sorted(outside.iterdir())
    with container(rootfs) as pid:
        configure(machines / "tegra-orin", pid, rootfs)
        inside = injection.inside(pid, rootfs, "/")
        assert (inside / f"{str(outside)[1:]}/tegra23x/gpmu_ucode.bin").exists()
        assert (inside / "etc/nvc-test-must-not-exist").read_text().startswith("# R35")
    assert sorted(outside.iterdir()) == before
    assert not Path("/etc/nvc-test-must-not-exist").exists()


@root
@isolated
@pytest.mark.parametrize(
    ("name", "place"), [("wsl2", f"{STORE}/libnvidia-ml.so.1"), ("tegra-orin", "/etc/nv_tegra_release")]
)
def test_a_failure_leaves_nothing(machines: Path, rootfs: Path, name: str, place: str) -> None:
    Path(f"{rootfs}{place}").mkdir(parents=True)
    with container(rootfs) as pid:
        mounts, files = mountinfo(pid), tree(rootfs)
        with pytest.raises(MountError, match="is a directory"):
            configure(machines / name, pid, rootfs)
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


@root
@pytest.mark.parametrize(("name", "used"), [("wsl2", False), ("tegra-orin", False), ("h200", True)])
def test_compat_libraries_are_for_nvidias_module_only(machines: Path, rootfs: Path, name: str, used: bool) -> None:
    compat = rootfs / "usr/local/cuda-99/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.999.1").touch()
    (rootfs / "usr/local/cuda").symlink_to("cuda-99")
    with Context(Config(sim=str(machines / name))) as context:
        config = ContainerConfig(None, str(rootfs))
        options = ContainerOptions(no_cgroups=True, capabilities=("compute",), compat_mode="ldconfig")
        with context.container(config, options) as session:
            plan(InjectionRequest(("all",)), context, session)
            (cache,) = [operation for operation in session.plan if isinstance(operation, UpdateLdcache)]
    assert any("compat" in directory for directory in cache.directories) is used


# Requirements.


@root
@isolated
@pytest.mark.parametrize(
    ("name", "requirement", "words"),
    [
        ("wsl2", "cuda>=12.5", "unsatisfied condition"),
        ("wsl2", "csv-mounts=all", "invalid expression"),
        ("h200", "csv-mounts=all", "invalid expression"),
        ("tegra-orin", "arch>=9.0", "unsatisfied condition"),
        ("tegra-orin", "driver>=36", "unsatisfied condition"),
        ("tegra-orin", "csv-mounts=some", "invalid expression"),
    ],
)
def test_a_requirement_that_does_not_hold(
    machines: Path, rootfs: Path, name: str, requirement: str, words: str
) -> None:
    with container(rootfs) as pid, pytest.raises(RequirementError, match=words):
        configure(machines / name, pid, rootfs, requirement)


@root
def test_the_base_set_can_be_said(machines: Path) -> None:
    with Context(Config(sim=str(machines / "tegra-orin"))) as context:
        recorder = _Recorder()
        plan(InjectionRequest(("0",), requirements=("csv-mounts=base-only",)), context, recorder)  # type: ignore[arg-type]
    assert not any("cudnn" in file.path for file in recorder.driver.components)


class _Recorder:
    """Stands for a session and keeps the driver that is mounted."""

    driver: DriverInfo

    def mount_driver(self, found: DriverInfo) -> None:
        self.driver = found

    def mount_device(self, found: Gpu) -> None:
        assert found.index == 0

    def update_ldcache(self) -> None:
        assert self.driver.platform == TEGRA


@root
def test_modules_are_not_loaded(machines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("modules are loaded")

    monkeypatch.setattr("nvc.driver.kmods.load_kmods", refuse)
    for name in ("wsl2", "tegra-orin"):
        Context(Config(root=str(machines / name)), LibraryOptions(load_kmods=True)).close()
    with pytest.raises(AssertionError, match="modules are loaded"):
        Context(Config(root=str(machines / "h200")), LibraryOptions(load_kmods=True))


@root
def test_another_directory_of_lists(machines: Path) -> None:
    place = machines / "tegra-orin/opt/lists"
    place.mkdir(parents=True)
    (place / "l4t.csv").write_text("lib, /etc/nv_tegra_release\n")
    with Context(Config(sim=str(machines / "tegra-orin"), csv="/opt/lists")) as context:
        assert [file.path for file in context.driver_info().components] == ["/etc/nv_tegra_release"]
    assert CSV_DIRECTORY != "/opt/lists"
