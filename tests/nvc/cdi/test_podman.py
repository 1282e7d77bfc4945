"""Podman 4.3, which takes CDI up to 0.5.0 only, with a spec that we made for a simulated machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nvc.share import store
from tests.support import leftovers, sight
from tests.support.bed import Bed, gpu_env
from tests.support.cgroupview import named
from tests.support.engines import Podman, late
from tests.support.fixtures import bed, need, whole_bed
from tests.support.runtimes import Result, execute

__all__ = ["bed", "need", "whole_bed"]
pytestmark = pytest.mark.system
LIBRARIES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
COMMON = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")
#: /etc with a directory cdi of its own, in this mount namespace only; $1 is a scratch directory with the spec in it.
OWN_ETC = (
    'mount -t tmpfs tmpfs "$1/over" && mkdir "$1/over/up" "$1/over/work" && '
    'mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/over/up,workdir=$1/over/work" /etc && '
    'mkdir -p /etc/cdi && cp "$1"/nvidia.* /etc/cdi/ && shift && exec "$@"'
)


class CdiPodman:
    """Podman whose /etc/cdi holds one spec."""

    def __init__(self, bed: Bed, runtime: str, view: str, *options: str, machine: str = "h200") -> None:
        seen = named(view)
        if seen is None:
            pytest.skip(f"this machine cannot show cgroup {view}")
        self.bed = bed
        self.podman = Podman(runtime, seen, bed.directory("podman"), bed.preload(runtime, view), bed.env)
        self.podman.prepare({})
        self.specs = bed.directory("cdi")
        (self.specs / "over").mkdir()
        output = str(self.specs / "nvidia.yaml")
        sim = f"--sim={bed.machine(machine)}"
        self.made = bed.call(bed.commands.nvc, sim, "cdi", "generate", "-o", output, *options, check=True)
        self.name = bed.name("podman")

    def run(self, devices: Sequence[str], command: Sequence[str], *options: str, rootfs: Path | None = None) -> Result:
        words = [word for device in devices for word in ("--device", device)]
        name = f"--name={self.name}"
        argv = ["podman", "run", "--rm", name, f"--cgroup-parent=/{self.name}-parent", "--log-driver=none"]
        argv += ["--network=none", "--pids-limit=-1", *words, *options]
        argv += ["--rootfs", str(rootfs or self.bed.rootfs()), *late(command)]
        wrapped = ["unshare", "-m", "--propagation", "private", "sh", "-c", OWN_ETC, "etc", str(self.specs)]
        return execute([*wrapped, *self.podman.view.wrap(argv)], env=self.podman._env())


@pytest.fixture
def podman(bed: Bed, need: Callable[..., None]) -> Iterator[Callable[..., CdiPodman]]:
    made: list[CdiPodman] = []

    def make(runtime: str, view: str, *options: str, machine: str = "h200") -> CdiPodman:
        need("podman", "conmon", runtime)
        made.append(CdiPodman(bed, runtime, view, *options, machine=machine))
        return made[-1]

    yield make
    for one in made:
        # conmon of a container that failed to start is in its cgroup a moment longer.
        end = time.monotonic() + 30
        one.podman.clean(one.name)
        while leftovers.everything(one.name, seconds=0) and time.monotonic() < end:
            time.sleep(0.05)
            one.podman.clean(one.name)


def look(*nodes: str) -> list[str]:
    return sight.arguments(nodes=nodes, libraries=LIBRARIES)


@pytest.mark.parametrize(
    ("runtime", "view", "device"),
    [
        pytest.param("runc", "hybrid", "nvidia.com/gpu=0", id="runc-hybrid-index"),
        pytest.param("runc", "v2", "nvidia.com/gpu=all", id="runc-v2-all"),
        pytest.param("crun", "v1", "nvidia.com/gpu=0", id="crun-v1-index"),
        pytest.param("crun", "v2", "nvidia.com/gpu=all", id="crun-v2-all"),
    ],
)
def test_a_gpu_by_name(podman: Callable[..., CdiPodman], runtime: str, view: str, device: str) -> None:
    result = podman(runtime, view).run([device], look("/dev/nvidia0", *COMMON))
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    # A node that could be opened but has no driver behind it, as on every simulated machine.
    assert seen.nodes == dict.fromkeys(("/dev/nvidia0", *COMMON), "ENXIO")
    assert all(seen.libraries.values()), seen.libraries
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    library = next(point for point in seen.mounts if "libcuda.so" in point)
    assert {"ro", "nosuid", "nodev"} <= seen.mounts[library]


def test_nvidia_smi_names_the_gpu(podman: Callable[..., CdiPodman]) -> None:
    result = podman("runc", "hybrid").run(["nvidia.com/gpu=0"], ["nvidia-smi", "-L"])
    assert result.code == 0, result.text
    assert result.out.startswith("GPU 0: NVIDIA H200")


def test_a_mig_device_comes_with_its_capabilities_and_no_others(podman: Callable[..., CdiPodman]) -> None:
    one = podman("runc", "hybrid", machine="a100-mig-dev")
    spec = one.specs / "nvidia.yaml"
    listed = one.bed.call(one.bed.commands.nvc, "cdi", "list", "--spec-dir", str(spec.parent), check=True).out.split()
    name = next(name for name in listed if "=0:" in name)
    result = one.run([name], sight.arguments(lists=["/dev/nvidia-caps", "/dev"]))
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert len(seen.lists["/dev/nvidia-caps"]) == 2
    # The machine's GPU 0 has the minor number 2.
    assert [node for node in seen.lists["/dev"] if node.startswith("nvidia") and node[6:].isdigit()] == ["nvidia2"]


def test_capabilities_decide_what_is_mounted(podman: Callable[..., CdiPodman]) -> None:
    result = podman("runc", "hybrid", "--capabilities=utility").run(["nvidia.com/gpu=0"], look("/dev/nvidia0"))
    assert result.code == 0, result.text
    found = sight.read(result.out).libraries
    assert found["libnvidia-ml.so.1"]
    assert not found["libcuda.so.1"]


def test_a_read_only_container_works(podman: Callable[..., CdiPodman]) -> None:
    result = podman("runc", "hybrid").run(["nvidia.com/gpu=0"], look("/dev/nvidia0"), "--read-only")
    assert result.code == 0, result.text
    assert all(sight.read(result.out).libraries.values())


def test_a_second_start_finds_what_the_first_left(podman: Callable[..., CdiPodman], bed: Bed) -> None:
    one, rootfs = podman("runc", "hybrid"), bed.rootfs()
    for _ in range(2):
        result = one.run(["nvidia.com/gpu=0"], look("/dev/nvidia0"), rootfs=rootfs)
        assert result.code == 0, result.text
        assert all(sight.read(result.out).libraries.values())
    assert len(list((rootfs / "etc/ld.so.conf.d").glob("*nvc*"))) <= 2


def test_hostile_variables_do_not_reach_the_hooks(podman: Callable[..., CdiPodman], bed: Bed) -> None:
    rootfs = bed.rootfs()
    (rootfs / "poc.so").write_text("not a library: ld.so would complain on stderr")
    hostile = ("--env=LD_PRELOAD=/proc/self/cwd/poc.so", "--env=PYTHONPATH=/", "--env=NVIDIA_VISIBLE_DEVICES=all")
    result = podman("runc", "hybrid").run(["nvidia.com/gpu=0"], ["/bin/busybox", "env"], *hostile, rootfs=rootfs)
    assert result.code == 0, result.text
    assert "poc.so" not in result.err
    # A legacy hook that is registered for every container must not act too.
    assert "NVIDIA_VISIBLE_DEVICES=void" in result.out


def test_a_failing_hook_says_why(podman: Callable[..., CdiPodman], bed: Bed) -> None:
    rootfs = bed.rootfs()
    (rootfs / "etc/ld.so.conf.d/00-nvcr-nvc.conf").mkdir(mode=0o700)
    result = podman("runc", "hybrid").run(["nvidia.com/gpu=0"], ["/bin/true"], rootfs=rootfs)
    assert result.code != 0
    assert "nvc-cdi-hook: mount error: " in result.text
    assert "00-nvcr-nvc.conf" in result.text


def test_a_hook_of_the_environment_variables_and_cdi_do_not_clash(podman: Callable[..., CdiPodman], bed: Bed) -> None:
    one = podman("runc", "hybrid")
    data = {"version": "1.0.0", "hook": bed.hook("prestart").as_data(), "when": {"always": True}}
    (one.podman.place / "hooks.d/nvc.json").write_text(json.dumps({**data, "stages": ["prestart"]}))
    asked = [word for variable in gpu_env("all") for word in ("--env", variable)]
    result = one.run(["nvidia.com/gpu=0"], look("/dev/nvidia0"), *asked)
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert len([line for line in seen.texts[sight.MOUNTINFO].splitlines() if " /dev/nvidia0 " in line]) == 0


#: The container's share as it sees it; gnutrue has a loader.
SHARE = (
    "cat /etc/ld.so.preload; head -c 4 /run/nvc-share/limits; head -c 4 /run/nvc-share/region; echo; "
    "/usr/bin/gnutrue && echo runs; (echo x >>/run/nvc-share/limits) 2>/dev/null && echo written; true"
)
SEEN = "/usr/lib/nvc/$PLATFORM/libnvc-shim.so\n/usr/lib/nvc/$PLATFORM/libnvc-shim-managed.so\nNVCLNVCR\nruns\n"


@pytest.mark.parametrize(("runtime", "view"), [("runc", "hybrid"), ("crun", "v2")])
def test_an_annotation_gives_a_share_of_the_device(
    podman: Callable[..., CdiPodman], forgotten: None, runtime: str, view: str
) -> None:
    one = podman(runtime, view, "--share")
    asked = one.run(["nvidia.com/gpu=0"], ["sh", "-c", SHARE], "--annotation=nvc.share=mem=2Gi,cap=50%")
    assert (asked.code, asked.out) == (0, SEEN), asked.text
    silent = one.run(["nvidia.com/gpu=0"], ["sh", "-c", "ls /usr/lib/nvc /etc/ld.so.preload 2>/dev/null; true"])
    assert (silent.code, silent.out) == (0, ""), silent.text


def test_a_spec_has_a_share_for_containers_that_request_none(podman: Callable[..., CdiPodman], forgotten: None) -> None:
    one = podman("runc", "hybrid", "--share=mem=25%")
    result = one.run(["nvidia.com/gpu=0"], ["sh", "-c", SHARE])
    assert (result.code, result.out) == (0, SEEN), result.text


@pytest.mark.parametrize(
    "attack", ["--annotation=nvc.share=mem=100%", "--annotation=nvc.share=off", "--env=NVC_SHARE=off"]
)
def test_no_container_gets_more_than_the_cdi_specification_says(
    podman: Callable[..., CdiPodman], forgotten: None, attack: str
) -> None:
    """They are the administrator's, or those of a driver for Kubernetes' claims; the annotation is the tenant's."""
    one = podman("runc", "hybrid", "--share=mem=25%")
    # limits.GPUS + 16: the memory of the first GPU, little-endian.
    memory = ["sh", "-c", "dd if=/run/nvc-share/limits bs=1 skip=208 count=8 2>/dev/null | hexdump -e '8/1 \"%02x\"'"]
    result = one.run(["nvidia.com/gpu=0"], memory, attack)
    assert result.code == 0, result.text
    assert int.from_bytes(bytes.fromhex(result.out.strip()), "little") == 143771 // 4 << 20, result.text


@pytest.fixture
def forgotten(bed: Bed) -> Iterator[None]:
    """No share of the test's is left."""
    yield
    for entry in store.entries()[0]:
        with entry:
            if not entry.is_alive():
                store.remove(entry.record.key)
