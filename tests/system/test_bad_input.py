"""Bad input, end to end: the runtime shows our words, the container does not start, and it is as it was."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import rootfs, sight
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.paused import Paused
from tests.support.runtimes import OciRuntime, Result

pytestmark = pytest.mark.system

#: What the container would print, had it started.
STARTED = "the container has started"


def _refused(bed: Bed, runtime: OciRuntime, tree: Path, env: tuple[str, ...], *, machine: str = "h200") -> Result:
    """Run a container that must not start; assert that its tree is untouched."""
    before = rootfs.fingerprint(tree)
    hooks = {"prestart": [bed.hook("prestart", machine=machine)]}
    result = bed.run(runtime, Container(tree, ["/bin/echo", STARTED], env, hooks))
    assert result.code != 0
    assert STARTED not in result.out
    assert "Traceback" not in result.text
    assert before == rootfs.fingerprint(tree)
    return result


@pytest.mark.parametrize(
    ("env", "words"),
    [
        pytest.param(gpu_env("9"), "device error: 9: unknown device", id="index"),
        pytest.param(gpu_env("GPU-00000000"), "device error: GPU-00000000: unknown device", id="uuid"),
        pytest.param(gpu_env("0:0"), "device error: 0:0: unknown device", id="mig-device-of-a-whole-gpu"),
        pytest.param(gpu_env("0", "compute,nonsense"), "nonsense", id="capability"),
        pytest.param((*gpu_env("0"), "NVIDIA_REQUIRE_CUDA=cuda>=99.0"), "requirement error", id="requirement"),
        pytest.param((*gpu_env("0"), "NVIDIA_REQUIRE_X=cuda>>1"), "requirement error", id="broken-requirement"),
        pytest.param((*gpu_env("0"), "NVIDIA_IMEX_CHANNELS=99"), "channel99", id="imex-channel"),
        pytest.param((*gpu_env("0"), "NVIDIA_MIG_CONFIG_DEVICES=all"), "mig-config error", id="mig-config-rights"),
    ],
)
def test_wrong_request_is_refused(bed: Bed, runc: OciRuntime, env: tuple[str, ...], words: str) -> None:
    result = _refused(bed, runc, bed.rootfs(), env)
    assert words in result.text


def test_crun_loses_stderr_so_the_log_has_the_words(bed: Bed, ask: Callable[[str, str], OciRuntime]) -> None:
    log = bed.directory("log") / "hook.log"
    tree = bed.rootfs()
    hooks = {"prestart": [bed.hook("prestart", f"--debug={log}")]}
    result = bed.run(ask("crun", "v2"), Container(tree, ["/bin/echo", STARTED], gpu_env("9"), hooks))
    assert (result.code != 0, STARTED in result.out) == (True, False)
    assert "device error: 9: unknown device" in log.read_text()


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia/version"), reason="this machine has a driver")
def test_no_driver_is_said(bed: Bed, runc: OciRuntime) -> None:
    result = _refused(bed, runc, bed.rootfs(), gpu_env("all"), machine="")
    assert "driver" in result.text
    assert "error" in result.text


def _mounted(bed: Bed, *options: str) -> Iterator[Path]:
    target = bed.directory("mount")
    subprocess.run(["mount", *options, str(target)], check=True)
    # Runtimes want a private parent mount for pivot_root.
    subprocess.run(["mount", "--make-private", str(target)], check=True)
    try:
        yield target
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


@pytest.fixture
def readonly_tree(bed: Bed) -> Iterator[Path]:
    """A root file system on a read-only mount."""
    source = bed.rootfs()
    for target in _mounted(bed, "--bind", str(source)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)
        yield target


@pytest.fixture
def small_tree(bed: Bed) -> Iterator[Path]:
    """A root file system on a tmpfs of 12 MB."""
    for target in _mounted(bed, "-t", "tmpfs", "-o", "size=12m,mode=755", bed.token):
        yield rootfs.copy(bed.base, target)


def test_readonly_root_file_system(bed: Bed, runc: OciRuntime, readonly_tree: Path) -> None:
    result = _refused(bed, runc, readonly_tree, gpu_env("0"))
    assert "mount error" in result.text
    assert "read-only file system" in result.text.lower()


def test_no_inode_left(bed: Bed, runc: OciRuntime, small_tree: Path) -> None:
    used = os.statvfs(small_tree)
    inodes = used.f_files - used.f_ffree + 3
    subprocess.run(["mount", "-o", f"remount,nr_inodes={inodes}", str(small_tree)], check=True)
    result = _refused(bed, runc, small_tree, gpu_env("0"))
    assert "mount error" in result.text
    assert "no space left on device" in result.text.lower()


def test_no_block_left(bed: Bed, runc: OciRuntime, small_tree: Path) -> None:
    """Mount points cost no block of a tmpfs, so everything goes well until the loader cache is written."""
    with pytest.raises(OSError, match="No space left"), (small_tree / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    result = _refused(bed, runc, small_tree, gpu_env("0"))
    assert "error" in result.text
    assert "ldcache error" in result.text or "no space left on device" in result.text.lower()


def test_readonly_setting_of_the_runtime_is_no_obstacle(bed: Bed, runtime: OciRuntime) -> None:
    """``root.readonly`` is applied by the runtime after the hooks: such containers get their GPU."""
    look = sight.arguments(nodes=["/dev/nvidia0"], libraries=["libcuda.so.1"])
    hooks = {"prestart": [bed.hook("prestart")]}
    result = bed.run(runtime, Container(bed.rootfs(), look, gpu_env("0"), hooks, readonly=True))
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert (seen.nodes["/dev/nvidia0"], seen.libraries["libcuda.so.1"] != "") == ("ENXIO", True)


def _configure(bed: Bed, pid: str, tree: Path) -> Result:
    sim = f"--sim={bed.machine('h200')}"
    return bed.call(bed.commands.cli, sim, "configure", "-d", "0", "-c", "-u", f"--pid={pid}", str(tree))


def test_pid_that_is_gone(bed: Bed) -> None:
    tree = bed.rootfs()
    before = rootfs.fingerprint(tree)
    process = subprocess.Popen(["true"])
    process.wait()
    result = _configure(bed, str(process.pid), tree)
    assert (result.code, result.out) == (1, "")
    assert result.complaints.startswith("nvidia-container-cli: container error: ")
    assert str(process.pid) in result.err
    assert before == rootfs.fingerprint(tree)


def test_container_that_has_stopped(bed: Bed, runc: OciRuntime) -> None:
    tree = bed.rootfs()
    name = bed.name("c")
    assert runc.create(bed.bundle(Container(tree, ["/bin/true"])), name).code == 0
    pid = runc.pid(name)
    assert runc.start(name).code == 0
    runc.wait(name)
    before = rootfs.fingerprint(tree)
    result = _configure(bed, str(pid), tree)
    assert result.code == 1
    assert "container error: " in result.err
    assert before == rootfs.fingerprint(tree)


def test_caller_in_another_user_namespace(bed: Bed, runc: OciRuntime) -> None:
    """Root of a user namespace of its own has no say over a container of the host's root."""
    tree = bed.rootfs()
    before = rootfs.fingerprint(tree)
    held = Paused(bed, runc, Container(tree, ["/bin/cat", sight.MOUNTINFO]))
    command = ["configure", "-d", "0", f"--pid={held.pid}", str(tree)]
    result = bed.call("unshare", "-Ur", bed.commands.cli, f"--sim={bed.machine('h200')}", *command)
    container = held.release()
    assert result.code == 1
    assert result.complaints.startswith("nvidia-container-cli: ")
    assert "permission" in result.err or "not permitted" in result.err
    assert "Traceback" not in result.err
    assert before == rootfs.fingerprint(tree)
    assert (container.code, "nvidia" in container.out) == (0, False)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        pytest.param("/", "input error: invalid rootfs directory", id="root"),
        pytest.param("rootfs", "input error: invalid rootfs directory", id="relative"),
        pytest.param("/nonexistent/rootfs", "container error: ", id="missing"),
        pytest.param("/etc/passwd", "container error: ", id="file"),
    ],
)
def test_rootfs_that_is_none(bed: Bed, tree: str, words: str) -> None:
    result = _configure(bed, str(os.getpid()), Path(tree))
    assert (result.code, result.out) == (1, "")
    assert f"nvidia-container-cli: {words}" in result.err
