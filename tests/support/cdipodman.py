"""Podman with CDI specs of its own, for tests that start containers by CDI names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nvc.share import store
from tests.support import leftovers
from tests.support.bed import Bed
from tests.support.cgroupview import named
from tests.support.engines import Podman, late
from tests.support.runtimes import Result, execute

#: A container's command that prints the memory of its first GPU: limits.GPUS + 16, little-endian.
MEMORY = ["sh", "-c", "dd if=/run/nvc-share/limits bs=1 skip=208 count=8 2>/dev/null | hexdump -e '8/1 \"%02x\"'"]
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
        argv += ["--network=none", "--pids-limit=0", *words, *options]
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


@pytest.fixture
def forgotten(bed: Bed) -> Iterator[None]:
    """No share of the test's is left."""
    yield
    for entry in store.entries()[0]:
        with entry:
            if not entry.is_alive():
                store.remove(entry.record.key)
