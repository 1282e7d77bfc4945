"""WSL2: which driver store is taken, which libraries, and what the driver service says when there is none."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nvc.base.errors import DetectionError, InitializationError, NvcError
from nvc.base.log import Log, open_log
from nvc.bindings import dxcore
from nvc.driver import wsl
from nvc.driver.discover import discover
from nvc.driver.facts import NvmlGpu, NvmlSystem
from nvc.driver.libraries import rows
from nvc.driver.places import platform
from nvc.driver.service import start
from nvc.driver.tables import STORE_FILES, WSL_LIBRARIES
from nvc.formats.ldcache import CacheEntry
from nvc.model import DXG_NODE, NVCAPS_NONE, WSL, DriverOptions, Host, Inventory
from nvc.sim.create import create
from nvc.sim.description import load
from nvc.sim.machine_text import machine_text
from nvc.sim.platforms import FOREIGN_STORE, WSL_DIRECTORY, store
from tests.support.native import build

SOURCE = Path(__file__).with_name("fake_dxcore.c")
ENVIRON = {"PATH": "/usr/local/bin:/usr/bin"}
MACHINE = load("wsl2")
STORE = store(MACHINE)
Compile = Callable[..., str]


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A machine of its own: some tests spoil it."""
    if os.geteuid() != 0:
        pytest.skip("device nodes are made by root only")
    build()
    place = tmp_path_factory.mktemp("wsl")
    # The NVML process has the overflow uid and needs search permission.
    place.chmod(0o755)
    return create(str(place / "machine"), "wsl2")


@pytest.fixture
def fake(tmp_path: Path) -> Compile:
    """A libdxcore.so compiled with these definitions."""

    def make(*definitions: str, target: str = "") -> str:
        path = target or str(tmp_path / f"libdxcore-{'-'.join(d.partition('=')[0] for d in definitions)}.so")
        words = [f"-D{definition}" for definition in definitions]
        subprocess.run(["cc", "-shared", "-fPIC", "-Wno-unused", *words, "-o", path, SOURCE], check=True)
        return path

    return make


def ask(host: Host, log: Log | None = None) -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
    with start(host, uid=None, gid=None, deadline=30, log=log or Log.none()) as client:
        system = client.system()
        return system, tuple(client.gpu(index) for index in range(system.gpu_count))


def find(host: Host, options: DriverOptions | None = None) -> Inventory:
    return discover(host, options or DriverOptions(), *ask(host), ENVIRON)


def made_store(path: Path, *names: str) -> str:
    path.mkdir(parents=True)
    for name in names:
        (path / name).touch()
    return str(path)


# The adapters that libdxcore shows.


def test_the_simulated_library_shows_foreign_adapters_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine").write_text(machine_text(MACHINE, nodes=False))
    monkeypatch.setenv("NVC_SIM_MACHINE", str(tmp_path / "machine"))
    found = dxcore.adapters(str(build() / "libdxcore.so"))
    assert found == ((2500, FOREIGN_STORE), (3000, FOREIGN_STORE), (3000, STORE), (3000, STORE))


@pytest.mark.parametrize("definitions", [(), ("OLD",)], ids=["third-version", "second-version"])
def test_adapters_come_from_either_version_of_the_question(fake: Compile, definitions: tuple[str, ...]) -> None:
    assert dxcore.adapters(fake("COUNT=3", *definitions)) == ((3000, "/store"),) * 3


def test_no_adapter_is_no_error(fake: Compile) -> None:
    assert dxcore.adapters(fake("COUNT=0")) == ()


def test_a_library_that_counts_to_millions_is_believed_up_to_a_limit(fake: Compile) -> None:
    assert len(dxcore.adapters(fake("COUNT=4000000"))) == dxcore.ADAPTERS


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("QUERY_FAILS", (0, "")),
        ("OVERFLOWS", (3000, "")),
        ("ODD", (3000, "")),
        ("NO_END", (3000, "x" * dxcore.PATH_LENGTH)),
        ('STORE=L""', (3000, "")),
    ],
)
def test_an_adapter_that_does_not_tell(fake: Compile, definition: str, expected: tuple[int, str]) -> None:
    assert dxcore.adapters(fake(definition)) == (expected,)


def test_a_library_that_fails_says_how(fake: Compile, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"enumerating adapters: libdxcore\.so returns 0xc0000001"):
        dxcore.adapters(fake("ENUM_FAILS"))
    with pytest.raises(OSError, match="undefined symbol: D3DKMTQueryAdapterInfo"):
        dxcore.adapters(fake("NO_QUERY"))
    with pytest.raises(OSError, match="cannot open shared object"):
        dxcore.adapters(str(tmp_path / "none.so"))


# The choice of a driver store.


def test_the_store_with_cuda_is_preferred(tmp_path: Path) -> None:
    old = made_store(tmp_path / "old", "libcuda.so.1.1")
    other = made_store(tmp_path / "intel", "libigc.so")
    display = made_store(tmp_path / "display", "nvidia-smi")
    cuda = made_store(tmp_path / "cuda", "libcuda.so.1.1", "nvidia-smi")
    adapters = [(2600, old), (3000, other), (3000, display), (3000, cuda)]

    assert wsl.choose_store(adapters, Log.none()) == cuda
    assert wsl.choose_store(adapters[:3], Log.none()) == display
    assert wsl.choose_store([(2700, cuda)], Log.none()) == cuda


def test_without_a_store_of_nvidias_every_adapter_is_explained(tmp_path: Path) -> None:
    other = made_store(tmp_path / "intel", "libigc.so")
    log = open_log(str(tmp_path / "log"))
    adapters: Sequence[tuple[int, str]] = [(2600, other), (3000, other), (3000, ""), (3000, "/a/../etc"), (3000, "/")]
    with pytest.raises(InitializationError, match="none of the 5 graphics adapters") as caught:
        wsl.choose_store(adapters, log)
    assert "wsl --shutdown" in caught.value.hint
    text = (tmp_path / "log").read_text()
    for words in ("0 is skipped: WDDM 2600", "1 is skipped: no driver of NVIDIA's", "2 is", "3 is", "4 is"):
        assert f"graphics adapter {words}" in text


@pytest.mark.parametrize("path", ["", "/", "usr/lib", "/a/../b", "/a//b", "/a/", "//a/b", "/a/b\n", "/a/\x1bb", "/one"])
def test_what_is_no_path_of_a_store(path: str) -> None:
    assert wsl.store_problem(path)


# The choice of libraries.


def test_wsls_own_directory_is_never_given_up(tmp_path: Path) -> None:
    for path in ("usr/lib/wsl/lib/libcuda.so.1", "usr/lib/x/libcuda.so.1", "usr/lib/x/libdxcore.so"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()

    def choose(*paths: str) -> list[str]:
        chooser = wsl.WslChooser(str(tmp_path), "", (*rows(glvnd=True), *WSL_LIBRARIES), kind="library")
        entries = [CacheEntry(os.path.basename(path), path, 0x303) for path in paths]
        return [file.path for file in chooser.choose(entries, 0x300, "EM_X86_64")]

    ours, theirs = "/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/x/libcuda.so.1"
    assert choose(ours, theirs) == choose(theirs, ours) == [ours]
    # Anything is taken: no version, and these are not even ELF files.
    assert choose(theirs, "/usr/lib/x/libdxcore.so", "/usr/lib/none/libcuda.so.1") == [
        theirs,
        "/usr/lib/x/libdxcore.so",
    ]


# Discovery on the simulated machine.


@pytest.mark.root
def test_everything_is_found(host: Host) -> None:
    found = find(host)
    driver = found.driver

    assert platform(host) == driver.platform == WSL
    assert (driver.nvrm_version, driver.cuda_version) == (MACHINE.driver_version, "12.4")
    assert [file.path for file in driver.components] == [f"{STORE}/{name}" for name in STORE_FILES]
    assert [file.path for file in driver.binaries] == [f"{STORE}/nvidia-smi"]
    assert {os.path.dirname(file.path) for file in driver.libraries} == {WSL_DIRECTORY}
    assert (driver.libraries[-1].path, driver.libraries[-1].capability) == (f"{WSL_DIRECTORY}/libdxcore.so", "")
    assert [node.path for node in driver.nodes] == [DXG_NODE]
    assert (driver.firmwares, found.nvcaps_style, found.mig_config, found.mig_monitor) == ((), NVCAPS_NONE, None, None)
    assert [gpu.uuid for gpu in found.gpus] == [gpu.uuid for gpu in MACHINE.gpus]
    for gpu in found.gpus:
        assert (gpu.minor, gpu.node, gpu.proc_path, gpu.mig_capable) == (0, driver.nodes[0], "", False)


@pytest.mark.root
def test_what_the_store_lacks_is_a_warning(host: Host) -> None:
    os.unlink(f"{host.root}{STORE}/nvcubins.bin")
    os.unlink(f"{host.root}{STORE}/libnvdxgdmal.so.1")
    os.mkdir(f"{host.root}{STORE}/libnvdxgdmal.so.1")

    found = find(host)

    assert len(found.driver.components) == len(STORE_FILES) - 2
    assert f"missing {STORE}/nvcubins.bin: no such file or directory" in found.warnings
    assert f"skipping {STORE}/libnvdxgdmal.so.1: not a file" in found.warnings


@pytest.mark.root
def test_nvml_comes_from_the_store(host: Host) -> None:
    os.unlink(f"{host.root}{WSL_DIRECTORY}/libnvidia-ml.so.1")
    system, gpus = ask(host)
    assert (system.driver_store, system.gpu_count, len(gpus)) == (STORE, 2, 2)


@pytest.mark.root
def test_a_store_without_nvml_leaves_wsls(host: Host) -> None:
    os.unlink(f"{host.root}{STORE}/libnvidia-ml.so.1")
    assert ask(host)[0].gpu_count == 2


@pytest.mark.root
def test_no_driver_in_windows(host: Host) -> None:
    shutil.rmtree(f"{host.root}{STORE}")
    with pytest.raises(InitializationError, match="none of the 4 graphics adapters") as caught:
        ask(host)
    assert "update the graphics driver in Windows" in caught.value.hint


@pytest.mark.root
@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("ENUM_FAILS", "load library failed: enumerating adapters"),
        ("NO_QUERY", "undefined symbol"),
        ("COUNT=0", "none of the 0"),
        ('STORE=L"/etc"', "none of the 1"),
        ('STORE=L"/usr/lib/wsl/../../../etc"', "none of the 1"),
        ("NO_END", "none of the 1"),
    ],
)
def test_a_libdxcore_that_is_no_good(host: Host, fake: Compile, definition: str, words: str) -> None:
    path = f"{host.root}{WSL_DIRECTORY}/libdxcore.so"
    os.unlink(path)
    fake(definition, target=path)
    with pytest.raises(InitializationError, match=words):
        ask(host)


@pytest.mark.root
@pytest.mark.parametrize("answer", ["", "/", "/etc/../root", "relative", "/a/b\n"])
def test_the_service_s_store_is_not_taken_for_granted(host: Host, answer: str) -> None:
    system = NvmlSystem("1.0", 12000, 0, answer)
    with pytest.raises(DetectionError, match="returned no driver store"):
        discover(host, DriverOptions(), system, (), ENVIRON)


@pytest.mark.root
def test_a_store_that_is_somewhere_else_gives_nothing_but_files_of_the_known_names(host: Host) -> None:
    found = discover(host, DriverOptions(), NvmlSystem("1.0", 12000, 0, "/proc/sys"), (), ENVIRON)
    assert found.driver.components == ()


@pytest.mark.root
def test_dxg_that_is_no_device_is_not_wsl(host: Host) -> None:
    node = f"{host.root}{DXG_NODE}"
    number = os.lstat(node).st_rdev
    os.unlink(node)
    assert platform(host) == ""
    Path(node).touch()
    assert platform(host) == ""
    os.unlink(node)
    os.mknod(node, stat.S_IFCHR | 0o666, number)
    os.unlink(f"{host.root}{WSL_DIRECTORY}/libdxcore.so")
    assert platform(host) == ""


@pytest.mark.root
def test_a_node_that_nobody_may_use_is_told(host: Host) -> None:
    os.chmod(f"{host.root}{DXG_NODE}", 0o600)
    with pytest.raises(NvcError, match="insufficient permissions"):
        ask(host)
