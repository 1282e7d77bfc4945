"""The engines of Debian 13 in a userland of their own: Docker 26 and Podman 5.4, both with CDI."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import launchers, sight, userland
from tests.support.bed import Bed, gpu_env
from tests.support.cgroupview import named
from tests.support.docker import Docker
from tests.support.podmanbox import PodmanBox, quoted
from tests.support.runtimes import Result

pytestmark = pytest.mark.engines

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
LOOK = sight.arguments(nodes=("/dev/nvidia1", "/dev/nvidiactl"), libraries=LIBRARIES)
Show = Callable[[str, str], None]


@pytest.fixture(scope="module")
def root() -> Path:
    return userland.place()


@pytest.fixture(scope="module")
def specs(bed: Bed) -> Path:
    """A directory with the CDI specification of a machine with eight GPUs."""
    directory = bed.directory("cdi")
    sim = f"--sim={bed.machine('h100x8')}"
    bed.call(bed.commands.nvc, sim, "cdi", "generate", "--output", str(directory / "nvidia.yaml"), check=True)
    return directory


@pytest.fixture(scope="module")
def docker(bed: Bed, root: Path, specs: Path) -> Iterator[Docker]:
    """dockerd 26, whose daemon.json our command has edited with --cdi."""
    engine = Docker(
        bed.token,
        bed.directory("docker26"),
        [str(bed.commands.directory)],
        {"NVC_SIM": str(bed.machine("h100x8"))},
        {"cdi-spec-dirs": [str(specs)]},
        userland.wrap(root),
    )
    engine.write_config()
    words = ("runtime", "configure", "--runtime=docker", "--cdi", f"--config={engine.config}")
    bed.call(bed.commands.nvc, *words, check=True)
    try:
        engine.start()
        engine.import_image(bed.base)
        yield engine
    finally:
        engine.stop()


def read(result: Result) -> sight.Sight:
    assert result.code == 0, result.text
    return sight.read(result.out)


def gpus(seen: sight.Sight) -> list[str]:
    return [name for name in seen.lists["/dev"] if name.startswith("nvidia") and name[6:].isdigit()]


@pytest.mark.parametrize(
    "options",
    [
        ["--device=nvidia.com/gpu=1"],
        ['--gpus=driver=cdi,"device=nvidia.com/gpu=1"'],
        ["--gpus=device=1"],
        ["--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=1"],
    ],
    ids=["cdi", "gpus-cdi", "gpus", "runtime"],
)
def test_docker(docker: Docker, show: Show, options: list[str]) -> None:
    seen = read(docker.run(options, LOOK))

    assert gpus(seen) == ["nvidia1"]
    assert set(seen.nodes.values()) == {"ENXIO"}
    assert all(seen.libraries.values())
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    said = docker.run(options, ["nvidia-smi", "-L"])
    assert said.out.count("GPU-") == 1, said.text
    show(f"docker run {quoted(options)} IMAGE nvidia-smi -L   # Docker 26", said.text)


def test_docker_says_what_cannot_be_given(docker: Docker) -> None:
    result = docker.run(["--gpus=all", "-e", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"], ["/bin/true"])

    assert result.code != 0
    assert "requirement error: unsatisfied condition: cuda>=99.0" in result.err


@pytest.fixture
def podman(bed: Bed, root: Path) -> Iterator[PodmanBox]:
    view = named("hybrid") or named("v2")
    assert view is not None
    env = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
    box = PodmanBox(bed.token, "runc", view, bed.directory("podman"), env, wrap=userland.wrap(root))
    box.prepare()
    yield box
    box.clean()


@pytest.mark.parametrize("option", ["--gpus=all", "--device=nvidia.com/gpu=all"])
def test_podman_with_cdi(bed: Bed, podman: PodmanBox, specs: Path, show: Show, option: str) -> None:
    copy = f"cp {specs}/nvidia.yaml /etc/cdi/"

    seen = read(podman.script(copy, podman.run_words([option], bed.rootfs(), LOOK)))

    assert len(gpus(seen)) == 8
    assert set(seen.nodes.values()) == {"ENXIO"}
    assert all(seen.libraries.values())
    said = podman.script(copy, podman.run_words([option], bed.rootfs(), ["nvidia-smi", "-L"]))
    assert len(re.findall("GPU-", said.out)) == 8, said.text
    show(f"podman run {option} IMAGE nvidia-smi -L   # Podman 5.4", said.text)


def test_podman_with_the_hook(bed: Bed, podman: PodmanBox) -> None:
    sim = f"--sim={bed.machine('h100x8')}"
    hook = launchers.with_options(bed.directory("bin"), "nvc-hook", bed.commands.hook, sim)
    words = [bed.commands.nvc, "runtime", "configure", "--runtime=podman", f"--hook-path={hook}"]
    variables = [word for variable in gpu_env("1") for word in ("--env", variable)]

    result = podman.script(f"{quoted(words)} >/dev/null 2>&1", podman.run_words(variables, bed.rootfs(), LOOK))

    seen = read(result)
    assert (gpus(seen), set(seen.nodes.values())) == (["nvidia1"], {"ENXIO"})
