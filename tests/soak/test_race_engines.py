"""Containers of real engines beside the racer: runc, crun, LXC, and rootless Podman.

What an engine does wrong in a root whose names are exchanged counts here too, so the racer leaves it the names that it
mounts on itself.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.base import budgets
from tests.support import cgroupview, launchers, leftovers, users
from tests.support import rootfs as trees
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.engines import Lxc
from tests.support.podmanbox import PodmanBox
from tests.support.racer import Canary
from tests.support.runtimes import OciRuntime, Result
from tests.support.soaked import RACED, SECONDS, Rounds
from tests.support.users import User
from tests.support.wrapped import Wrapped

pytestmark = [pytest.mark.root, pytest.mark.system, pytest.mark.timeout(int(SECONDS) + 600)]
#: Where one of these is no directory, no engine starts.
NAMES = tuple(name for name in RACED if name not in ("etc", "usr", "lib", "lib64", "usr/lib", "run"))


#: A start that succeeds has given the GPU.
LOOK = ["/bin/sh", "-c", "test -c /dev/nvidia0"]


def again(bed: Bed, *, owner: int = 0) -> Callable[[], Path]:
    """Roots, one after the other at one path."""
    place = bed.directory("rootfs")

    def make() -> Path:
        shutil.rmtree(place)
        place.mkdir()
        place.chmod(0o755)
        trees.copy(bed.base, place)
        if owner:
            trees.shift_owner(place, owner)
        return place

    return make


def started(rounds: Rounds, make: Callable[[], Path], start: Callable[[Path], Result]) -> None:
    """Rounds of an engine that starts a container, with a look at its time."""
    for tree in rounds.beside(make):
        begin = time.monotonic()
        result = start(tree)
        assert time.monotonic() - begin < budgets.START_S
        rounds.done += result.code == 0
        if result.code != 0:
            rounds.failed(result.text)


def configuration(bed: Bed, mode: str) -> str:
    """Of nvc-runtime; mode cdi needs a specification, which the others do without."""
    text = f'mode = "{mode}"'
    if mode == "cdi":
        specs = bed.directory("cdi")
        command = (bed.commands.nvc, "--sim", str(bed.machine("h200")), "cdi", "generate", f"--output={specs}/n.yaml")
        bed.call(*command, check=True)
        text += f'\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{specs}"]'
    return text


@pytest.fixture
def canary(bed: Bed) -> Iterator[Canary]:
    made = Canary(bed.directory("host"))
    yield made
    made.check()


def runtime(bed: Bed, name: str) -> OciRuntime:
    """As this machine is; crun refuses hybrid ones."""
    views = [view.name for view in cgroupview.available() if name != "crun" or view.name != "hybrid"]
    return bed.runtime(name, views[0])


class Said:
    """crun passes nothing on of what a hook says: its debug log has it."""

    def __init__(self, bed: Bed) -> None:
        self._file = bed.directory("said") / "log"
        self.option = f"--debug={self._file}"
        self.setting = f'\n[nvidia-container-cli]\ndebug = "{self._file}"'

    def added(self, result: Result) -> Result:
        text = self._file.read_text() if self._file.exists() else ""
        self._file.unlink(missing_ok=True)
        return Result(result.code, result.out, text + result.err, result.seconds)


@pytest.mark.parametrize("name", ["runc", "crun"])
@pytest.mark.parametrize("share", ["", "mem=1Gi"], ids=["hook", "hook with a share"])
def test_hooks(bed: Bed, canary: Canary, need: Callable[..., None], name: str, share: str) -> None:
    need(name)
    engine = runtime(bed, name)
    said = Said(bed)
    annotations = {"nvc.share": share} if share else {}

    def start(tree: Path) -> Result:
        hooks = {"prestart": [bed.hook("prestart", said.option)]}
        return said.added(bed.run(engine, Container(tree, LOOK, gpu_env("0"), hooks, annotations=annotations)))

    way = "nvc-hook with a share" if share else "nvc-hook"
    started(Rounds(f"{way}, {engine}", canary, 250, NAMES), again(bed), start)
    assert leftovers.everything(bed.token) == []


@pytest.mark.parametrize(
    ("name", "mode"), [("runc", "legacy"), ("crun", "legacy"), ("runc", "cdi"), ("crun", "jit-cdi")]
)
def test_the_runtime(bed: Bed, canary: Canary, need: Callable[..., None], name: str, mode: str) -> None:
    need(name)
    said = Said(bed)
    wrapped = Wrapped(bed, runtime(bed, name), configuration(bed, mode) + said.setting)

    def start(tree: Path) -> Result:
        return said.added(wrapped.run(Container(tree, LOOK, gpu_env("0"))))

    started(Rounds(f"nvc-runtime {mode}, {wrapped.runtime}", canary, 500, NAMES), again(bed), start)
    assert leftovers.everything(bed.token) == []


def test_lxc(bed: Bed, canary: Canary, need: Callable[..., None]) -> None:
    """LXC's own hook with our nvidia-container-cli, in a user namespace."""
    need("lxc-execute", "newuidmap")
    directory = bed.directory("bin")
    launchers.with_options(directory, "nvidia-container-cli", bed.commands.cli, f"--sim={bed.machine('h200')}")
    path = f"{directory}:{os.environ['PATH']}:/usr/sbin:/sbin"
    settings = [("lxc.environment", word) for word in (f"{leftovers.VARIABLE}={bed.token}", *gpu_env("0"))]
    settings.append(("lxc.hook.mount", "/usr/share/lxc/hooks/nvidia"))
    make = again(bed, owner=Lxc.offset)
    lxc = Lxc(bed.name("lxc"), make(), bed.directory("lxc"), path, level="DEBUG", env=bed.env)
    lxc.prepare(settings)

    def start(tree: Path) -> Result:
        lxc.log.unlink(missing_ok=True)
        result = lxc.execute(LOOK)
        return Result(result.code, result.out, result.err + lxc.log.read_text(), result.seconds)

    started(Rounds("LXC", canary, 250, NAMES), make, start)


@pytest.fixture
def user(bed: Bed) -> Iterator[User]:
    with users.ordinary(bed.token, bed.directory("user")) as found:
        yield found


def test_rootless_podman(bed: Bed, canary: Canary, need: Callable[..., None], user: User) -> None:
    """With a specification of root's: Podman makes the mounts, our hooks the rest, as the user.

    runc: of a hook that fails under crun, Podman shows the exit code alone.
    """
    need("podman", "conmon", "runc")
    machine = bed.machine("h100x8")
    view = cgroupview.available()[0]
    box = PodmanBox(bed.token, "runc", view, bed.directory("podman"), {}, user, nodes=machine / "dev")
    box.prepare()
    generate = f"{bed.commands.nvc} --sim={machine} cdi generate --output /etc/cdi/nvidia.yaml 2>/dev/null"
    try:
        started(
            Rounds("rootless Podman with CDI", canary, 250, NAMES),
            again(bed, owner=user.uid),
            lambda tree: box.script(generate, box.run_words(["--device=nvidia.com/gpu=0"], tree, LOOK)),
        )
    finally:
        box.clean()
