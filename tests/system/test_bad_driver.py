"""Broken drivers, end to end: the command names what is wrong, in time, and its container is as it was.

One container waits at its prestart hook while every broken machine is tried on it; at the end it must be a container
without a GPU, device cgroup included.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import cgroupview, rootfs, sight
from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.paused import Paused
from tests.support.runtimes import Result

pytestmark = pytest.mark.system

LIBRARIES = f"usr/lib/{rootfs.multiarch()}"
VERSION = "580.159.04"
CACHE = "etc/ld.so.cache"
MINORS = "proc/driver/nvidia-caps/mig-minors"
#: The h200's 64-bit library that answers for NVML.
NVML = f"{LIBRARIES}/libnvidia-ml.so.{VERSION}"
#: e_machine of a machine that is neither x86-64 nor aarch64 (elf.h: EM_S390).
FOREIGN = struct.pack("<H", 22)
SECONDS = 2

Spoil = Callable[[Path], object]


@dataclass(frozen=True)
class Held:
    """The container that waits, and all of it that a failed command could have changed."""

    bed: Bed
    container: Paused

    def state(self) -> tuple[object, ...]:
        """The tree, the mounts of the container's namespace, those of this one, and the rules of its device cgroup."""
        seen = Path(f"/proc/{self.container.pid}/mountinfo").read_text().splitlines()
        # Other tests' mounts on this machine come and go there too.
        mounts = [line for line in seen if self.bed.token in line]
        rules = cgroupview.device_rules(*cgroupview.device_cgroup(self.container.pid))
        here = [line for line in Path(sight.MOUNTINFO).read_text().splitlines() if self.bed.token in line]
        return rootfs.fingerprint(self.container.tree), mounts, here, rules

    def configure(self, machine: Path, *arguments: str, timeout: str = "20") -> Result:
        sim = (f"--sim={machine}", f"--timeout={timeout}")
        rest = (*(arguments or ("-d", "0", "-c", "-u")), f"--pid={self.container.pid}", str(self.container.tree))
        return self.bed.call(self.bed.commands.cli, *sim, "configure", *rest)


@pytest.fixture(scope="module")
def held(whole_bed: Bed) -> Iterator[Held]:
    tree = whole_bed.rootfs()
    runtime = whole_bed.runtime("runc", cgroupview.available()[0].name)
    look = sight.arguments(nodes=["/dev/nvidia0"], make=[("/dev/mine", 195, 0)], libraries=["libcuda.so.1"])
    try:
        container = Held(whole_bed, Paused(whole_bed, runtime, Container(tree, look)))
        yield container
        result = container.container.release()
    finally:
        runtime.clean()
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/nvidia0": "ENOENT", "/dev/mine": "EPERM"}
    assert seen.libraries == {"libcuda.so.1": ""}


@pytest.fixture
def machine(whole_bed: Bed) -> Iterator[Callable[[str], Path]]:
    """Copies of simulated machines to break; there is no inventory of them."""
    made: list[Path] = []

    def copy(name: str) -> Path:
        target = whole_bed.directory("broken")
        made.append(target)
        # cp: sockets and device nodes are things that shutil does not copy.
        subprocess.run(["cp", "-a", f"{whole_bed.machine(name)}/.", str(target)], check=True)
        shutil.rmtree(target / "run/nvc", ignore_errors=True)
        return target

    yield copy
    for target in made:
        shutil.rmtree(target)


def refused(held: Held, machine: Path, words: str, *arguments: str, timeout: str = "20") -> Result:
    """Configure must fail with exactly one complaint of one or two lines, and change nothing."""
    before = held.state()
    result = held.configure(machine, *arguments, timeout=timeout)
    assert (result.code, result.out) == (1, ""), result.text
    assert result.complaints.startswith(f"nvidia-container-cli: {words}"), result.err
    assert len(result.complaints.splitlines()) <= 2, result.err
    assert before == held.state()
    return result


def remove(*names: str) -> Spoil:
    return lambda machine: [(machine / name).unlink() for name in names]


def write(name: str, data: bytes) -> Spoil:
    return lambda machine: (machine / name).write_bytes(data)


def cut(name: str, length: int) -> Spoil:
    return lambda machine: os.truncate(machine / name, length)


def another_version(machine: Path) -> None:
    (machine / NVML).rename(machine / LIBRARIES / "libnvidia-ml.so.1.1")
    (machine / LIBRARIES / "libnvidia-ml.so.1").unlink()
    (machine / LIBRARIES / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.1.1")


def foreign(name: str) -> Spoil:
    def spoil(machine: Path) -> None:
        with (machine / name).open("r+b") as file:
            file.seek(18)  # e_machine (elf.h, Elf64_Ehdr)
            file.write(FOREIGN)

    return spoil


def other_node(name: str) -> Spoil:
    def spoil(machine: Path) -> None:
        (machine / name).unlink()
        os.mknod(machine / name, 0o020666, os.makedev(1, 3))

    return spoil


NO_NVML = "initialization error: load library failed: libnvidia-ml.so.1: "
BAD_CACHE = "detection error: unsupported file format: /etc/ld.so.cache: "


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(remove(NVML), NO_NVML, id="half-a-driver-no-nvml"),
        pytest.param(remove("dev/nvidiactl"), "initialization error: nvml error: driver not loaded", id="no-module"),
        pytest.param(remove("proc/devices"), "detection error: open failed: ", id="half-a-driver-no-majors"),
        pytest.param(another_version, f"detection error: no libnvidia-ml.so.{VERSION} in", id="half-an-upgrade"),
        pytest.param(write(CACHE, b""), BAD_CACHE, id="empty-cache"),
        pytest.param(cut(CACHE, 300), BAD_CACHE, id="truncated-cache"),
        pytest.param(cut(CACHE, 47), BAD_CACHE, id="cache-cut-in-its-header"),
        pytest.param(cut(CACHE, 1 << 32), "detection error: open failed: /etc/ld.so.cache: file too", id="huge-cache"),
        pytest.param(lambda m: write(CACHE, os.urandom(65536))(m), BAD_CACHE, id="random-cache"),
        pytest.param(
            lambda m: write(CACHE, (m / CACHE).read_bytes()[:48] + os.urandom(65536))(m),
            BAD_CACHE,
            id="random-cache-with-a-good-header",
        ),
        pytest.param(foreign(NVML), NO_NVML, id="nvml-of-another-architecture"),
    ],
)
def test_broken_driver_is_named(held: Held, machine: Callable[[str], Path], spoil: Spoil, words: str) -> None:
    broken = machine("h200")
    spoil(broken)
    refused(held, broken, words)


def test_node_that_changed_since_the_inventory(held: Held, machine: Callable[[str], Path]) -> None:
    """What the kept inventory says is checked again when it is used."""
    broken = machine("h200")
    assert held.bed.call(held.bed.commands.cli, f"--sim={broken}", "info").code == 0
    assert (broken / "run/nvc/inventory.json").exists()
    other_node("dev/nvidia0")(broken)
    refused(held, broken, "mount error: invalid device node: ")


def test_no_driver_below_the_root(held: Held) -> None:
    before = held.state()
    empty = held.bed.directory("empty")
    rest = ("configure", "-d", "0", f"--pid={held.container.pid}", str(held.container.tree))
    result = held.bed.call(held.bed.commands.cli, f"--root={empty}", *rest)
    assert result.code == 1
    assert result.err.startswith(f"nvidia-container-cli: {NO_NVML}")
    assert "nvidia-container-cli: hint: is the NVIDIA driver installed" in result.err
    assert before == held.state()


RPC = "driver rpc error: "
DIED = RPC + "failed to process request: "


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param("nvmlInit hang", f"initialization error: {RPC}timed out", id="init-hangs"),
        pytest.param("nvmlInit slow 60000", f"initialization error: {RPC}timed out", id="init-is-too-slow"),
        pytest.param("nvmlInit crash", f"initialization error: {DIED}", id="init-crashes"),
        pytest.param("nvmlInit error 18", "initialization error: nvml error: driver/library version", id="mismatch"),
        pytest.param("nvmlDeviceGetUUID hang", f"detection error: {RPC}timed out", id="question-hangs"),
        pytest.param("nvmlDeviceGetUUID crash", f"detection error: {DIED}", id="question-crashes"),
        pytest.param("nvmlDeviceGetUUID error 15", "detection error: nvml error: gpu is lost", id="gpu-is-lost"),
    ],
)
def test_nvml_that_fails(held: Held, machine: Callable[[str], Path], fault: str, words: str) -> None:
    broken = machine("h200")
    place = broken / "etc/nvc-sim/machine"
    text = place.read_text()
    place.write_text(text.replace("nodes=1\n", f"nodes=1\nfault={fault}\n"))
    assert text != place.read_text()
    result = refused(held, broken, words, timeout=str(SECONDS))
    assert result.seconds < SECONDS + 40  # the limit, the start, and busy cores
    assert "hint: " in result.err


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(remove(MINORS), id="missing"),
        pytest.param(write(MINORS, b"\xff\0nonsense\n"), id="garbage"),
        pytest.param(lambda m: remove(MINORS)(m) and (m / MINORS).mkdir(), id="directory"),
    ],
)
def test_unreadable_mig_minors(held: Held, machine: Callable[[str], Path], spoil: Spoil) -> None:
    broken = machine("a100-mig-dev")
    spoil(broken)
    words = "detection error: no nvcap nodes of GPU 0 are known: /proc/driver/nvidia-caps/mig-minors"
    refused(held, broken, words, "-d", "all", "--mig-config=all")
    listed = held.bed.call(held.bed.commands.cli, f"--sim={broken}", "list", "-d", "all", "--mig-config=all")
    assert (listed.code, listed.complaints) == (0, "")  # the reference dies of SIGSEGV here (5.11 number 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param("-d 9", "device error: 9: unknown device", id="unknown-device"),
        pytest.param("-d 0,GPU-0", "device error: GPU-0: unknown device", id="one-of-two-unknown"),
        pytest.param("-d 0:0 -u", "device error: 0:0: unknown device", id="no-mig-device-there"),
        pytest.param(
            "-d 0 --cuda-compat-mode=mount --cuda-compat-mode=ldconfig",
            "container error: only one cuda-compat-mode can be specified at a time",
            id="two-compat-modes",
        ),
        pytest.param("-d 0 --mig-config=0", "mig-config error: 0: only 'all' devices", id="mig-config"),
        pytest.param("-d 0 --imex-channel=7", "mount error: stat failed: /dev/nvidia-caps-imex-channels", id="imex"),
        pytest.param("-d 0 -r cuda>=99", "requirement error: unsatisfied condition: cuda>=99", id="requirement"),
        pytest.param("-d 0 -l @/nonexistent", "", id="ldconfig-that-is-not-there"),
    ],
)
def test_wishes_that_cannot_be_met(held: Held, arguments: str, words: str) -> None:
    refused(held, held.bed.machine("h200"), words, *arguments.split())


@pytest.mark.parametrize("mig", ["mig-config", "mig-monitor"])
def test_mig_devices_exclude_mig_rights(held: Held, mig: str) -> None:
    words = f"{mig} error: all: cannot enable {mig} with specific MIG devices selected"
    refused(held, held.bed.machine("a100-mig-dev"), words, "-d", "0:0", f"--{mig}=all")


def test_what_is_optional_is_a_warning(whole_bed: Bed, machine: Callable[[str], Path]) -> None:
    """Stale and foreign libraries, a stale node: the container starts, without them, and the log names each."""
    broken = machine("h200")
    (broken / LIBRARIES / f"libnvidia-opencl.so.{VERSION}").unlink()
    foreign(f"{LIBRARIES}/libcudadebugger.so.{VERSION}")(broken)
    (broken / LIBRARIES / f"libnvidia-nvvm.so.{VERSION}").write_bytes(b"\x7fELF")
    other_node("dev/nvidia-uvm-tools")(broken)
    log = whole_bed.directory("log") / "log"
    runtime = whole_bed.runtime("runc", cgroupview.available()[0].name)
    tree = whole_bed.rootfs()
    configure = f"{whole_bed.commands.cli} --debug={log} --sim={broken} configure -d 0 -c -u --pid=$pid {tree}"
    look = sight.arguments(
        nodes=["/dev/nvidia0", "/dev/nvidia-uvm-tools"],
        libraries=["libcuda.so.1", "libnvidia-opencl.so.1", "libcudadebugger.so.1"],
    )
    result = whole_bed.run(runtime, Container(tree, look, (), {"prestart": [whole_bed.shell_hook(configure)]}))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/nvidia0": "ENXIO", "/dev/nvidia-uvm-tools": "ENOENT"}
    found = {name: path != "" for name, path in seen.libraries.items()}
    assert found == {"libcuda.so.1": True, "libnvidia-opencl.so.1": False, "libcudadebugger.so.1": False}
    warnings = [line.split("] ", 1)[1] for line in log.read_text().splitlines() if line.startswith("W")]
    for words in (
        "libnvidia-opencl.so.1: stale entry of the loader cache",
        f"libcudadebugger.so.{VERSION}: built for EM_S390",
        f"libnvidia-nvvm.so.{VERSION}: ELF",
        "/dev/nvidia-uvm-tools",
    ):
        assert any(words in line for line in warnings), (words, warnings)
