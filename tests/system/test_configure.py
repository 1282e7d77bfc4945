"""The command line as engines call it: a shell hook starts nvidia-container-cli with the argument lists of clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import rootfs, sight
from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.paused import Paused
from tests.support.runtimes import OciRuntime

pytestmark = pytest.mark.system

LOADED = "--load-kmods"
EVERYTHING = "--compute --compat32 --graphics --utility --video --display"
DOCKER = "configure --cuda-compat-mode=ldconfig --ldconfig=@/sbin/ldconfig"


@pytest.mark.parametrize(
    ("options", "arguments", "libraries", "binary"),
    [
        pytest.param(LOADED, f"configure --device=0 {EVERYTHING}", True, True, id="ctr --gpus 0"),
        pytest.param(LOADED, f"{DOCKER} --device=all --compute --utility", True, True, id="docker --gpus all"),
        pytest.param(LOADED, f"{DOCKER} --device=all --compute --require=cuda>=12.0", True, False, id="docker runtime"),
        pytest.param("", "configure -d 0 -u", False, True, id="short options"),
        pytest.param("", "configure --device=0", False, False, id="device alone"),
    ],
)
def test_argument_lists_of_engines(
    bed: Bed, runc: OciRuntime, options: str, arguments: str, libraries: bool, binary: bool
) -> None:
    tree = bed.rootfs()
    words = " ".join(f"'{word}'" for word in arguments.split())
    script = f"exec {bed.commands.cli} --sim={bed.machine('h200')} {options} {words} --pid=$pid {tree}"
    look = sight.arguments(nodes=["/dev/nvidia0", "/dev/nvidiactl"], libraries=["libcuda.so.1"], lists=["/usr/bin"])
    result = bed.run(runc, Container(tree, look, (), {"prestart": [bed.shell_hook(script)]}))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/nvidia0": "ENXIO", "/dev/nvidiactl": "ENXIO"}
    assert (seen.libraries["libcuda.so.1"] != "", "nvidia-smi" in seen.lists["/usr/bin"]) == (libraries, binary)
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]


def test_configure_twice_is_configure_once(bed: Bed, runc: OciRuntime) -> None:
    tree = bed.rootfs()
    once = f"{bed.commands.nvc} --sim={bed.machine('h200')} configure -d 0 -c -u --pid=$pid {tree}"
    look = sight.arguments(nodes=["/dev/nvidia0"], libraries=["libcuda.so.1"])
    hooks = {"prestart": [bed.shell_hook(f"{once} && {once}")]}
    result = bed.run(runc, Container(tree, look, (), hooks))
    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/nvidia0": "ENXIO"}
    points = [line.split()[4] for line in seen.texts[sight.MOUNTINFO].splitlines()]
    assert sorted(set(points)) == sorted(points)


@pytest.mark.parametrize("pair", [("runc", "v1"), ("runc", "v2"), ("crun", "v1"), ("crun", "v2")], ids="-".join)
def test_created_container_is_configured_by_hand(
    bed: Bed, ask: Callable[[str, str], OciRuntime], pair: tuple[str, str]
) -> None:
    """After ``create`` the runtime has pivoted: ROOTFS is a path of the host's, and "/" in the container."""
    runtime, name, tree = ask(*pair), bed.name("c"), bed.rootfs()
    look = sight.arguments(nodes=["/dev/nvidia0"], make=[("/dev/not-mine", 195, 77)], libraries=["libcuda.so.1"])
    directory = bed.bundle(Container(tree, look))
    made = runtime.create(directory, name)
    assert made.code == 0, made.text
    sim = f"--sim={bed.machine('h200')}"
    pid = f"--pid={runtime.pid(name)}"
    # Under v2 the runtime sees another cgroup mount than this process: the cgroup is found where this process sees it.
    result = runtime.wrapped(bed.commands.nvc, sim, "configure", "-d", "0", "-c", "-u", pid, str(tree))
    assert (result.code, result.complaints) == (0, "")
    assert runtime.start(name).code == 0
    runtime.wait(name)
    seen = sight.read((directory / "output").read_text())
    assert seen.nodes == {"/dev/nvidia0": "ENXIO", "/dev/not-mine": "EPERM"}
    assert seen.libraries["libcuda.so.1"] != ""
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]


def test_dry_run_says_the_plan_and_touches_nothing(bed: Bed, runc: OciRuntime) -> None:
    tree = bed.rootfs()
    before = rootfs.fingerprint(tree)
    held = Paused(bed, runc, Container(tree, ["/bin/true"]))
    sim = f"--sim={bed.machine('h200')}"
    arguments = ["--dry-run", "-d", "0", "-c", "-u", f"--pid={held.pid}", str(tree)]
    answer = bed.call(bed.commands.nvc, sim, "configure", *arguments)
    assert held.release().code == 0
    assert (answer.code, answer.complaints) == (0, "")
    assert "/dev/nvidia0" in answer.out
    assert "libcuda.so" in answer.out
    assert before == rootfs.fingerprint(tree)


def test_standalone_configure_in_a_mount_namespace(bed: Bed, need: Callable[..., None]) -> None:
    """The reference's one end-to-end test: no pid, no runtime, a root directory in a mount namespace.

    Source: libnvidia-container.md 9.1.
    """
    need("unshare", "chroot")
    tree = bed.rootfs()
    configure = f"{bed.commands.cli} --sim={bed.machine('h200')} configure --ldconfig=@/sbin/ldconfig --no-cgroups"
    script = (
        f"mount --bind {tree} {tree} && mount --make-private {tree} && mount -t proc proc {tree}/proc && "
        f"mount -t sysfs sysfs {tree}/sys && {configure} --utility --device 0 {tree} && "
        f"exec chroot {tree} nvidia-smi -L"
    )
    result = bed.call("unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-c", script)
    assert (result.code, result.complaints) == (0, "")
    assert result.out.count("GPU-") == 1
