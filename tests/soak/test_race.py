"""Every way to give a container a GPU, beside a process that exchanges what it works on with traps.

See ``tests.support.soaked`` for the counts; tests/soak/test_race_engines.py has containers of real engines.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base import budgets
from nvc.base.errors import NvcError
from nvc.base.log import Log
from nvc.cdi import hooks
from nvc.cdi.hooks import HookTarget
from nvc.container import service
from nvc.container.apply import apply
from nvc.container.messages import ApplyRequest, ContainerConfig, InspectRequest
from tests.nvc.cdi.conftest import enter
from tests.support import injection
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container, write
from tests.support.injection import container, isolated, locate, mountinfo, operations
from tests.support.isolation import in_namespaces
from tests.support.racer import NAMES, Canary, Racer
from tests.support.soaked import SECONDS, Rounds
from tests.support.warm import WarmBed

pytestmark = [pytest.mark.root, pytest.mark.timeout(3600)]
LOG = Log.none()


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


def fresh(place: Path) -> Callable[[], Path]:
    """Roots, one after the other at one path."""

    def make() -> Path:
        if place.exists():
            shutil.rmtree(place)
        return injection.make_rootfs(place)

    return make


def test_configure(driver_root: Path, tmp_path: Path) -> None:
    """With the container service, a new container each time."""
    canary = Canary(tmp_path / "host")

    def run() -> None:
        host = mountinfo()
        rounds = Rounds("configure", canary, goal=20_000)
        for rootfs in rounds.beside(fresh(tmp_path / "rootfs")):
            with container(rootfs) as pid:
                before, start = mountinfo(pid), time.monotonic()
                try:
                    configure(pid, rootfs, driver_root)
                    rounds.done += 1
                except NvcError as error:
                    rounds.failed(error)
                    assert mountinfo(pid) == before
                assert time.monotonic() - start < budgets.START_S
                assert foreign_roots(pid, before, driver_root) == []
        assert mountinfo() == host
        # Both outcomes: a bed in which none comes to its end would hold little, nor one that meets no trap.
        assert 0 < rounds.done < rounds.begun + (rounds.begun < 500)

    soaked(run)
    canary.check()


def configure(pid: int, rootfs: Path, driver_root: Path) -> None:
    client = service.start(deadline=budgets.TIMEOUT_S, log=LOG)
    try:
        found = client.inspect(InspectRequest(ContainerConfig(pid, str(rootfs)), True, False, False))
        located = locate(pid, rootfs)
        located.container = found.container
        client.apply(ApplyRequest(str(driver_root), operations(located)), deadline=budgets.CONTAINER.wall)
    finally:
        client.close()


def test_hooks_of_cdi_specifications(rootfs: Path, tmp_path: Path) -> None:
    """All of them, in the container's namespace, a step a round."""
    canary = Canary(tmp_path / "host")

    def run() -> None:
        rounds = Rounds("hooks of CDI specifications", canary, goal=5_000)
        target = HookTarget(str(rootfs), timeout=2.0)
        steps: tuple[Callable[[], object], ...] = (
            lambda: hooks.create_symlinks(target, [("/usr/lib64/libx.so", "libx.so.1"), ("/run/l", "x")], LOG),
            lambda: hooks.enable_cuda_compat(target, "535.104", "", "/usr/local/cuda/compat", LOG),
            lambda: hooks.chmod(target, 0o755, ["/run", "/usr/lib64"], LOG),
            lambda: hooks.update_ldcache(target, ["/usr/lib64"], "", LOG),
        )
        before: list[str] = []
        # One root: this process is in the container, with a hook's rights, and has no other any more.
        for _ in rounds.beside(lambda: rootfs, renewed=rounds.goal):
            if not before:
                enter(rootfs)
                before = mountinfo()
            try:
                steps[rounds.begun % len(steps)]()
                rounds.done += 1
            except NvcError as error:
                rounds.failed(error)
            assert mountinfo() == before

    soaked(run)
    canary.check()


@pytest.mark.system
@pytest.mark.parametrize("program", ["nvc-hook", "nvc-hook through the pre-fork server"])
def test_the_hook(bed: Bed, tmp_path: Path, program: str) -> None:
    """What an engine starts, without the engine; by itself, and as the agent's idle worker does it."""
    canary = Canary(tmp_path / "host")
    warm = WarmBed(bed.directory("warm"))
    config = tmp_path / "config.toml"
    config.write_text("[nvidia-container-cli]\nno-cgroups = true\n")
    machine = bed.machine("h200")
    start = warm.commands.hook if "server" in program else warm.python("nvc-hook")
    command = (start, f"--sim={machine}", f"--config={config}", "prestart")

    def run() -> None:
        rounds = Rounds(program, canary, goal=2_500)
        with warm:
            if "server" in program:
                warm.start()
            for rootfs in rounds.beside(fresh(tmp_path / "rootfs")):
                bundle = write(tmp_path / "bundle", Container(rootfs, ["/bin/true"], gpu_env("0")))
                with container(rootfs) as pid:
                    before = mountinfo(pid)
                    state = {"ociVersion": "1.0", "id": "c", "status": "created", "pid": pid, "bundle": str(bundle)}
                    begin = time.monotonic()
                    done = subprocess.run(
                        command, input=json.dumps(state), env=bed.env, capture_output=True, text=True, check=False
                    )
                    assert time.monotonic() - begin < budgets.START_S
                    assert foreign_roots(pid, before, machine) == []
                    rounds.done += done.returncode == 0
                    if done.returncode != 0:
                        rounds.failed(done.stderr)
                        assert mountinfo(pid) == before
            assert "server" not in program or warm.served() > 0

    soaked(run)
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
