"""A simulated GPU that answers system calls: nvc-sim-manager's nodes at /dev, in namespaces of a test's own."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from nvc.share import limits, region
from nvc.share.limits import Limits, LimitsNode
from nvc.share.model import ResolvedGpu
from tests.support import cgroupview, fuse
from tests.support.isolation import ChildFailed, in_namespaces, mount_bind
from tests.support.native import CHECKOUT, build

fuse.needed()

UUID = "GPU-11111111-2222-3333-4444-555555555555"
DRIVER = "580.159.04"
MIB = 1 << 20
_KINDS = {"nvidiactl": limits.NODE_CONTROL, "nvidia-uvm": limits.NODE_UVM}
_GPU_NODE = re.compile(r"nvidia(\d+)")
_PLAIN = ("null", "zero", "full", "random", "urandom")
_PROBE = CHECKOUT / "tests/system/shim/probe.py"


def make_machine(directory: Path, machine: str = "h200") -> Path:
    """A simulated machine, of a name or a description's path (default: one H200); the folder of its libraries."""
    command = [sys.executable, "-m", "nvc", "sim", "create", str(directory), "--machine", machine]
    build()
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, timeout=60)
    return directory / "usr/lib/x86_64-linux-gnu"


def _gpu_minors(names: Iterable[str]) -> dict[str, int]:
    """Node of a GPU -> its minor."""
    return {name: int(found[1]) for name in sorted(names) if (found := _GPU_NODE.fullmatch(name))}


class Probe:
    """tests/system/shim/probe.py, or a program like it, in a process; attributes are its commands."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def begin(self, name: str, *words: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, (name, *words))).encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the probe ended with {self.process.wait()}"
        return json.loads(line)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*words: object) -> Any:
            self.begin(name, *words)
            return self.end()

        return call

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class SimGpu:
    """What a test in with_gpu gets. work: an empty directory; limits_path, region_path: of the share.

    text: the machine's description, of a driver with the version ``driver``.
    """

    def __init__(self, machine: Path, work: Path, driver: str = DRIVER) -> None:
        self.machine, self.work, self.driver = machine, work, driver
        self.text = work.with_name("machine")
        text = (machine / "etc/nvc-sim/machine").read_text()
        self.text.write_text(re.sub("^driver=.*$", f"driver={driver}", text, flags=re.M))
        self.limits_path, self.region_path = work / "limits", work / "region"
        self.log = work / "log"
        self.probes: list[Probe] = []
        self.gpus: tuple[ResolvedGpu, ...] = (ResolvedGpu(uuid=UUID, minor=0),)

    def nodes(self) -> tuple[LimitsNode, ...]:
        gpus = _gpu_minors(os.listdir("/dev"))
        kinds = [(name, kind, 0) for name, kind in _KINDS.items()]
        kinds += [(name, limits.NODE_GPU, minor) for name, minor in gpus.items()]
        found = [(kind, minor, os.stat(f"/dev/{name}")) for name, kind, minor in kinds]
        return tuple(LimitsNode(kind, minor, at.st_dev, at.st_ino) for kind, minor, at in found)

    def share(
        self,
        *,
        paused: bool = False,
        driver: str = "",
        uuid: str = UUID,
        gpus: tuple[ResolvedGpu, ...] = (),
        **share: Any,
    ) -> None:
        """Write the limits, or change them in place. share: memory (bytes), cap (1/1000), weight, priority.

        gpus: of several GPUs, instead of uuid and share. driver: another version than the one that answers.
        """
        self.gpus = gpus or (ResolvedGpu(uuid=uuid, minor=0, **share),)
        wish = Limits(self.gpus, self.nodes(), driver or self.driver, "test", paused=paused)
        if not self.limits_path.exists():
            self.limits_path.write_bytes(limits.encode(wish))
            with self.region_path.open("wb") as file:
                file.write(region.header_bytes())
                file.truncate(4096 * 8193)
            return
        descriptor = os.open(self.limits_path, os.O_RDWR)
        limits.write(descriptor, wish)
        os.close(descriptor)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a program with the share, without a library."""
        shim = {"NVC_SHIM_LIMITS": str(self.limits_path), "NVC_SHIM_REGION": str(self.region_path)}
        return {"PATH": "/usr/bin:/bin", "NVC_SHIM_LOG": str(self.log), "NVC_SIM_MACHINE": str(self.text), **shim}

    def probe(self, *, preload: bool = True, program: Path = _PROBE, **environment: str) -> Probe:
        loader = {"LD_PRELOAD": str(build() / "libnvc-shim.so")} if preload else {}
        every = {**self.environment, **loader, **environment}
        libraries = [str(next(self.machine.rglob(name))) for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
        self.probes.append(Probe([sys.executable, "-I", "-S", str(program), *libraries], every))
        return self.probes[-1]

    def started(self, **share: Any) -> Probe:
        """A probe with a context, under a share."""
        self.share(**share)
        probe = self.probe()
        assert probe.init() == 0
        return probe

    def region(self) -> region.Region:
        descriptor = os.open(self.region_path, os.O_RDONLY)
        try:
            return region.read(descriptor, len(self.gpus))
        finally:
            os.close(descriptor)


def with_gpu(
    machine: Path,
    function: Callable[[SimGpu], None],
    *,
    driver: str = DRIVER,
    seconds: int = 100,
    again: type[AssertionError] | None = None,
) -> None:
    """Run ``function`` in namespaces of its own, with the nodes at /dev and a pid 1 that ends everything.

    driver: the version that the manager, libcuda and NVML are of. seconds: after which it is ended. again: raised where
    a deadline was missed; it is called three times at most, as a busy machine does not keep every one.
    """
    build()
    for left in (2, 1, 0):
        try:
            _with_gpu(machine, function, driver, seconds)
            return
        except ChildFailed as error:
            if not left or again is None or not re.search(rf"^(\S+\.)?{again.__name__}(:|$)", str(error), re.M):
                raise


def _with_gpu(machine: Path, function: Callable[[SimGpu], None], driver: str, seconds: int) -> None:
    # A file system of our own over the one for temporary files, but not over the machine, which may lie there.
    with tempfile.TemporaryDirectory() as place:
        try:
            in_namespaces(_inside, str(machine), place, function, driver, pid=True, timeout=seconds)
        finally:
            for tree in cgroupview.directories(
                os.path.basename(place)
            ):  # of an agent that was killed with its namespace
                cgroupview.remove_tree(tree)


def _inside(machine: str, place: str, function: Callable[[SimGpu], None], driver: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"tmpfs", place.encode(), b"tmpfs", 0, None) == 0
    try:
        _serve(Path(machine), Path(place), function, libc, driver)
    finally:
        libc.umount2(b"/dev", 2)
        libc.umount2(f"{place}/nodes".encode(), 2)
        libc.umount2(place.encode(), 2)


def _serve(machine: Path, place: Path, function: Callable[[SimGpu], None], libc: ctypes.CDLL, driver: str) -> None:
    nodes, work, dev = place / "nodes", place / "work", place / "dev"
    for directory in (nodes, work, dev):
        directory.mkdir()
    ready, told = os.pipe()
    command = [build() / "nvc-sim-manager", "--die-with-parent", "--ready-fd", str(told)]
    gpu = SimGpu(machine, work, driver)
    manager = subprocess.Popen([*command, gpu.text, nodes], pass_fds=(told,), stdout=subprocess.DEVNULL)
    os.close(told)
    try:
        assert os.read(ready, 1) == b"\0", "the simulated manager did not start"
        for name in (*_PLAIN, *_KINDS, *_gpu_minors(os.listdir(nodes))):
            (dev / name).touch()
            mount_bind(f"/dev/{name}" if name in _PLAIN else str(nodes / name), str(dev / name))
        assert libc.mount(str(dev).encode(), b"/dev", None, 0x5000, None) == 0
        function(gpu)
    finally:
        for probe in gpu.probes:
            probe.kill()
        manager.terminate()
        manager.wait(30)
