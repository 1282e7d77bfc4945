"""Podman 4.3 as docs/user/engines/podman.md configures it, for root and for an ordinary user."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import launchers, sight, users
from tests.support.bed import Bed, gpu_env
from tests.support.cgroupview import named
from tests.support.podmanbox import PodmanBox, quoted
from tests.support.runtimes import Result
from tests.support.users import User

pytestmark = pytest.mark.engines

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-encode.so.1")
Show = Callable[[str, str], None]
Make = Callable[..., PodmanBox]
PAIRS = [("runc", "hybrid"), ("crun", "v1"), ("crun", "v2")]


@pytest.fixture(scope="module")
def user(bed: Bed) -> Iterator[User]:
    """An ordinary user; the name is short enough for useradd."""
    with users.ordinary(bed.token, bed.directory("user")) as found:
        yield found


@pytest.fixture
def make(bed: Bed, need: Callable[..., None]) -> Iterator[Make]:
    made: list[PodmanBox] = []

    def get(runtime: str, view: str, user: User | None = None, machine: str = "h100x8") -> PodmanBox:
        need("podman", "conmon", runtime)
        seen = named(view)
        if seen is None:
            pytest.skip(f"this machine cannot show cgroup {view}")
        sim = {"NVC_SIM": str(bed.machine(machine))}
        nodes = bed.machine(machine) / "dev" if user else None
        place, preload = bed.directory("podman"), bed.preload(runtime, view)
        box = PodmanBox(bed.token, runtime, seen, place, sim, user, preload=preload, nodes=nodes)
        box.prepare()
        made.append(box)
        return box

    yield get
    for box in made:
        box.clean()


def configure(bed: Bed, *options: str) -> str:
    """The command of the page. The programs it names are ours on a simulated machine: Podman passes no NVC_SIM on."""
    machine, directory = bed.machine("h100x8"), bed.directory("bin")
    hook = launchers.with_options(directory, "nvc-hook", bed.commands.hook, f"--sim={machine}")
    runtime = launchers.with_options(
        directory, "nvc-runtime", "/usr/bin/env", f"NVC_SIM={machine}", bed.commands.runtime
    )
    paths = [f"--hook-path={hook}", f"--runtime-path={runtime}"]
    return quoted([bed.commands.nvc, "runtime", "configure", "--runtime=podman", *paths, *options]) + " >/dev/null 2>&1"


def generate(bed: Bed, machine: str = "h100x8") -> str:
    sim = f"--sim={bed.machine(machine)}"
    return quoted([bed.commands.nvc, sim, "cdi", "generate", "--output", "/etc/cdi/nvidia.yaml"]) + " 2>/dev/null"


def env(*variables: str) -> list[str]:
    return [word for variable in variables for word in ("--env", variable)]


def tree(bed: Bed, user: User | None) -> Path:
    """A root file system that belongs to the user."""
    return bed.rootfs(owner=user.uid) if user else bed.rootfs()


def read(result: Result) -> sight.Sight:
    assert result.code == 0, result.text
    return sight.read(result.out)


def gpus(seen: sight.Sight) -> list[str]:
    return [name for name in seen.lists["/dev"] if name.startswith("nvidia") and name[6:].isdigit()]


LOOK = sight.arguments(nodes=("/dev/nvidia2", "/dev/nvidiactl"), libraries=LIBRARIES)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("account", ["root", "user"])
def test_the_hook(bed: Bed, make: Make, user: User, show: Show, account: str, pair: tuple[str, str]) -> None:
    owner = user if account == "user" else None
    box = make(*pair, owner)
    options = env(*gpu_env("2", "compute,utility"))

    seen = read(box.script(configure(bed), box.run_words(options, tree(bed, owner), LOOK)))

    assert set(seen.nodes.values()) == {"ENXIO"}
    assert gpus(seen) == ["nvidia2"]
    assert [name for name, path in seen.libraries.items() if path] == ["libcuda.so.1", "libnvidia-ml.so.1"]
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    said = box.script(configure(bed), box.run_words(options, tree(bed, owner), ["nvidia-smi", "-L"]))
    assert len(re.findall("GPU-", said.out)) == 1, said.text
    show(f"podman run -e NVIDIA_VISIBLE_DEVICES=2 IMAGE nvidia-smi -L   # {account}, {pair[0]}", said.text)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("account", ["root", "user"])
def test_cdi(bed: Bed, make: Make, user: User, show: Show, account: str, pair: tuple[str, str]) -> None:
    owner = user if account == "user" else None
    box = make(*pair, owner)

    seen = read(box.script(generate(bed), box.run_words(["--device=nvidia.com/gpu=2"], tree(bed, owner), LOOK)))

    assert set(seen.nodes.values()) == {"ENXIO"}
    assert gpus(seen) == ["nvidia2"]
    assert all(seen.libraries[name] for name in LIBRARIES[:2])
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    words = box.run_words(["--device=nvidia.com/gpu=2"], tree(bed, owner), ["nvidia-smi", "-L"])
    said = box.script(generate(bed), words)
    assert len(re.findall("GPU-", said.out)) == 1, said.text
    show(f"podman run --device nvidia.com/gpu=2 IMAGE nvidia-smi -L   # {account}, {pair[0]}", said.text)


@pytest.mark.parametrize("account", ["root", "user"])
def test_the_runtime(bed: Bed, make: Make, user: User, show: Show, account: str) -> None:
    owner = user if account == "user" else None
    box = make("runc", "hybrid", owner)
    setup = configure(bed, "--config-mode=config-file")
    options = ["--runtime=nvidia", *env(*gpu_env("2", "utility"))]

    seen = read(box.script(setup, box.run_words(options, tree(bed, owner), LOOK)))

    assert (gpus(seen), seen.nodes["/dev/nvidia2"]) == (["nvidia2"], "ENXIO")
    assert [name for name, path in seen.libraries.items() if path] == ["libnvidia-ml.so.1"]


@pytest.mark.parametrize("account", ["root", "user"])
def test_what_cannot_be_given_is_said(bed: Bed, make: Make, user: User, show: Show, account: str) -> None:
    owner = user if account == "user" else None
    box = make("runc", "hybrid", owner)
    options = env(*gpu_env("0"), "NVIDIA_REQUIRE_CUDA=cuda>=99.0")

    result = box.script(configure(bed), box.run_words(options, tree(bed, owner), ["/bin/true"]))

    assert result.code == 126, result.text
    assert "requirement error: unsatisfied condition: cuda>=99.0" in result.text
    show(f"podman run {' '.join(options)} IMAGE true   # {account}", result.err)


@pytest.mark.parametrize("pair", PAIRS[::2], ids="-".join)
def test_a_missing_file_is_no_missing_command(bed: Bed, make: Make, pair: tuple[str, str]) -> None:
    """Podman looks for the kernel's words in what a runtime says: exit code 127, and the hint was gone."""
    box = make(*pair)
    machine = bed.machine(bed.new_machine("h200"))
    for library in machine.rglob("libnvidia-ml.so*"):
        library.unlink()
    hook = launchers.with_options(bed.directory("bin"), "nvc-hook", bed.commands.hook, f"--sim={machine}")
    words = [bed.commands.nvc, "runtime", "configure", "--runtime=podman", f"--hook-path={hook}"]

    result = box.script(
        f"{quoted(words)} >/dev/null 2>&1", box.run_words(env(*gpu_env("0")), tree(bed, None), ["/bin/true"])
    )

    assert result.code == 126, result.text
    assert "not found" not in result.text
    if pair[0] == "runc":  # crun shows nothing of a hook
        assert "libnvidia-ml.so.1: cannot open shared object file: does not exist" in result.text
        assert "hint: " in result.text


def test_after_remove_nothing_is_given(bed: Bed, make: Make) -> None:
    box = make("runc", "hybrid")
    setup = f"{configure(bed)} && {configure(bed, '--remove')} && find /etc/containers -type f >&2"

    result = box.script(setup, box.run_words(env(*gpu_env("all")), tree(bed, None), LOOK))

    assert gpus(read(result)) == []
    assert sorted(result.err.split()) == ["/etc/containers/containers.conf", "/etc/containers/policy.json"]
