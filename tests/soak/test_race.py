"""Every way to give a container a GPU, beside a process that exchanges what it works on with traps.

NVC_SOAK_SECONDS: seconds of each way (4 when not set). `make soak` prints the counts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base import budgets
from nvc.base.errors import NvcError
from nvc.base.log import Log
from nvc.cdi import hooks
from nvc.container import service
from nvc.container.apply import apply
from nvc.container.messages import ApplyRequest, ContainerConfig, InspectRequest
from tests.nvc.cdi.conftest import enter
from tests.support import injection, leftovers
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.injection import container, isolated, locate, mountinfo, operations
from tests.support.isolation import in_namespaces
from tests.support.racer import NAMES, Canary, Racer
from tests.support.runtimes import OciRuntime
from tests.support.wrapped import Wrapped

pytestmark = [pytest.mark.root, pytest.mark.timeout(3600)]
SECONDS = float(os.environ.get("NVC_SOAK_SECONDS", "4"))
LOG = Log.none()


class Counts:
    """Runs, those that gave the container all, and exchanges beside them; printed, and kept where a file is named."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = self.runs = 0
        self._end = time.monotonic() + SECONDS

    def until(self) -> bool:
        self.runs += 1
        return time.monotonic() < self._end

    def close(self, racer: Racer) -> None:
        line = {"what": self.what, "runs": self.runs, "done": self.done, "exchanges": racer.count, "seconds": SECONDS}
        print(json.dumps(line))
        if path := os.environ.get("NVC_SOAK_COUNTS"):
            with open(path, "a") as file:
                file.write(json.dumps(line) + "\n")
        assert self.runs > 1
        assert racer.count > 1000 * SECONDS


def soaked(body: Callable[[], None]) -> None:
    in_namespaces(body, timeout=int(SECONDS) + 60)


def foreign_roots(pid: int | str, before: list[str], *allowed: Path) -> list[str]:
    """Mounts that were made of files of others than the driver's: each shows which directory it is of."""
    new = [line for line in mountinfo(pid) if line not in before]
    return [
        line
        for line in new
        if line.split(" ")[0] != "/" and not line.split(" ")[0].startswith(tuple(map(str, allowed)))
    ]


def test_configure(driver_root: Path, rootfs: Path, tmp_path: Path) -> None:
    """With the container service, a new container each time."""
    canary, counts = Canary(tmp_path / "host"), Counts("configure")

    def run() -> None:
        host = mountinfo()
        # Not what the container's own mounts are on, which is the engine's to make.
        racer = Racer(rootfs, canary.place, tuple(name for name in NAMES if name not in ("dev", "proc")))
        with racer.running():
            while counts.until():
                with container(rootfs) as pid:
                    before, start = mountinfo(pid), time.monotonic()
                    try:
                        client = service.start(deadline=budgets.TIMEOUT_S, log=LOG)
                        try:
                            config = ContainerConfig(pid, str(rootfs))
                            found = client.inspect(InspectRequest(config, True, False, False))
                            located = locate(pid, rootfs)
                            located.container = found.container
                            plan = operations(located)
                            client.apply(ApplyRequest(str(driver_root), plan), deadline=budgets.CONTAINER.wall)
                            counts.done += 1
                        finally:
                            client.close()
                    except NvcError:
                        assert mountinfo(pid) == before
                    assert time.monotonic() - start < budgets.START_S
                    assert foreign_roots(pid, before, driver_root) == []
        assert mountinfo() == host
        counts.close(racer)
        # Both outcomes: a bed in which none comes to its end would hold little.
        assert 0 < counts.done < counts.runs

    soaked(run)
    canary.check()


def test_hooks_of_cdi_specifications(rootfs: Path, tmp_path: Path) -> None:
    """All of them, in the container's namespace."""
    canary, counts = Canary(tmp_path / "host"), Counts("CDI hooks")

    def run() -> None:
        racer = Racer(rootfs, canary.place, tuple(name for name in NAMES if name not in ("dev", "proc")))
        target = enter(rootfs).replace(timeout=2.0)
        before = mountinfo()
        steps: tuple[Callable[[], object], ...] = (
            lambda: hooks.create_symlinks(target, [("/usr/lib64/libx.so", "libx.so.1"), ("/run/l", "x")], LOG),
            lambda: hooks.enable_cuda_compat(target, "535.104", "", "/usr/local/cuda/compat", LOG),
            lambda: hooks.chmod(target, 0o755, ["/run", "/usr/lib64"], LOG),
            lambda: hooks.update_ldcache(target, ["/usr/lib64"], "", LOG),
        )
        with racer.running():
            while counts.until():
                try:
                    steps[counts.runs % len(steps)]()
                    counts.done += 1
                except NvcError:
                    pass
                assert mountinfo() == before
        counts.close(racer)

    soaked(run)
    canary.check()


def configuration(bed: Bed, mode: str) -> str:
    """Of nvc-runtime; mode cdi needs a specification, which the others do without."""
    text = f'mode = "{mode}"'
    if mode == "cdi":
        specs = bed.directory("cdi")
        command = (bed.commands.nvc, "--sim", str(bed.machine("h200")), "cdi", "generate", f"--output={specs}/n.yaml")
        bed.call(*command, check=True)
        text += f'\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{specs}"]'
    return text


WAYS = ("hook", "hook with a share", "nvc-runtime legacy", "nvc-runtime cdi", "nvc-runtime jit-cdi")


@pytest.mark.system
@pytest.mark.parametrize("way", WAYS)
def test_real_containers(bed: Bed, runc: OciRuntime, way: str) -> None:
    """runc, which makes mounts of its own in the root: what it does wrong counts here too."""
    tree = bed.rootfs()
    canary, counts = Canary(bed.directory("host")), Counts(way)
    # runc itself, not ours, mounts on /dev and /proc, and does not start where they are no directories.
    names = tuple(name for name in NAMES if name not in ("dev", "proc", "etc", "usr", "lib", "lib64", "usr/lib", "run"))
    racer = Racer(tree, canary.place, names)
    annotations = {"nvc.share": "mem=1Gi"} if "share" in way else {}
    wrapped = Wrapped(bed, runc, configuration(bed, way.split()[1])) if "runtime" in way else None
    with racer.running():
        while counts.until():
            image = Container(tree, ["/bin/true"], gpu_env("0"), annotations=annotations)
            start = time.monotonic()
            if wrapped is not None:
                result = wrapped.run(image)
            else:
                hooked = Container(
                    tree, ["/bin/true"], gpu_env("0"), {"prestart": [bed.hook("prestart")]}, annotations=annotations
                )
                result = bed.run(runc, hooked)
            counts.done += result.code == 0
            assert "Traceback" not in result.text
            assert "internal error" not in result.text
            assert time.monotonic() - start < budgets.START_S
    assert leftovers.everything(bed.token) == []
    counts.close(racer)
    canary.check()


def test_the_racer_and_the_canary_notice(tmp_path: Path) -> None:
    """Without our care: a program that checks a path and uses it by name is caught at once."""
    tree = tmp_path / "root"
    tree.mkdir()
    canary = Canary(tmp_path / "host")
    racer = Racer(tree, canary.place, ("usr/lib64",))
    with racer.running(), pytest.raises(AssertionError):
        for index in range(20_000):
            if not os.path.islink(tree / "usr/lib64"):
                try:
                    (tree / f"usr/lib64/{index}").touch()
                except OSError:
                    pass
            if index % 500 == 0:
                canary.check()


@isolated
def test_after_a_race_everything_works(driver_root: Path, rootfs: Path, tmp_path: Path) -> None:
    """Names are put back, and the next configure gives all."""
    canary = tmp_path / "host"
    canary.mkdir()
    racer = Racer(rootfs, canary, tuple(name for name in NAMES if name not in ("dev", "proc")))
    with racer.running(), container(rootfs) as pid:
        for _ in range(20):
            try:
                apply(locate(pid, rootfs), str(driver_root), operations(locate(pid, rootfs)), LOG)
            except NvcError:
                pass
    clean = injection.make_rootfs(tmp_path / "clean")
    with container(clean) as pid:
        located = locate(pid, clean)
        assert apply(located, str(driver_root), operations(located), LOG) > 0
    assert list(canary.iterdir()) == []
