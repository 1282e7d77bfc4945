"""Docker Engine 20.10: --gpus through the hook that dockerd finds in its PATH, and --runtime nvidia."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from tests.support import sight
from tests.support.bed import Bed
from tests.support.docker import Docker
from tests.support.runtimes import Result

pytestmark = pytest.mark.engines

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-encode.so.1")
ASK = ["-e", "NVIDIA_VISIBLE_DEVICES=all"]
Show = Callable[[str, str], None]


def look(*nodes: str, make: Sequence[tuple[str, int, int]] = ()) -> list[str]:
    return sight.arguments(nodes=nodes, make=make, libraries=LIBRARIES)


def gpus(seen: sight.Sight) -> list[str]:
    """The GPUs' nodes in a container's /dev."""
    return [name for name in seen.lists["/dev"] if name.startswith("nvidia") and name[6:].isdigit()]


def read(result: Result) -> sight.Sight:
    assert result.code == 0, result.text
    return sight.read(result.out)


def test_configure_keeps_the_other_keys(docker: Docker) -> None:
    data = json.loads(docker.config.read_text())
    assert data["bridge"] == "none"
    assert data["runtimes"]["nvidia"]["path"].endswith("/nvc-runtime")


def test_gpus_all(docker: Docker, show: Show) -> None:
    seen = read(docker.run(["--gpus=all"], look("/dev/nvidia0", "/dev/nvidia7", "/dev/nvidia-uvm")))

    assert set(seen.nodes.values()) == {"ENXIO"}  # the device cgroup lets them through; no driver is behind them
    assert len(gpus(seen)) == 8
    assert [name for name, path in seen.libraries.items() if path] == ["libcuda.so.1", "libnvidia-ml.so.1"]
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    command = ["nvidia-smi", "-L"]
    show("docker run --gpus all IMAGE nvidia-smi -L", docker.run(["--gpus=all"], command).text)


def test_gpus_one_device_and_capabilities(docker: Docker, show: Show) -> None:
    request = '"device=3","capabilities=compute,utility"'
    others = [("/dev/other", 195, 4)]

    seen = read(docker.run([f"--gpus={request}"], look("/dev/nvidia3", make=others)))

    assert seen.nodes == {"/dev/nvidia3": "ENXIO", "/dev/other": "EPERM"}
    assert gpus(seen) == ["nvidia3"]
    assert [name for name, path in seen.libraries.items() if path] == ["libcuda.so.1", "libnvidia-ml.so.1"]
    said = docker.run([f"--gpus={request}"], ["nvidia-smi", "-L"])
    assert said.code == 0, said.text
    assert said.out.count("GPU-") == 1
    show(f"docker run --gpus '{request}' IMAGE nvidia-smi -L", said.text)


def test_gpus_by_number(docker: Docker) -> None:
    assert gpus(read(docker.run(["--gpus=2"], look()))) == ["nvidia0", "nvidia1"]


def test_runtime_nvidia(docker: Docker, show: Show) -> None:
    options = ["--runtime=nvidia", *ASK, "-e", "NVIDIA_DRIVER_CAPABILITIES=all"]

    seen = read(docker.run(options, look("/dev/nvidia0")))

    assert seen.nodes["/dev/nvidia0"] == "ENXIO"
    assert (len(gpus(seen)), all(seen.libraries.values())) == (8, True)
    said = docker.run(["--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=5"], ["nvidia-smi", "-L"])
    show("docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=5 IMAGE nvidia-smi -L", said.text)
    assert said.out.count("GPU-") == 1


@pytest.mark.parametrize("options", [[], ["--runtime=nvidia"]], ids=["runc", "nvidia"])
def test_a_container_that_does_not_ask(docker: Docker, options: list[str]) -> None:
    seen = read(docker.run(options, look(make=[("/dev/other", 195, 0)])))

    assert (gpus(seen), seen.nodes) == ([], {"/dev/other": "EPERM"})
    assert not any(seen.libraries.values())


@pytest.mark.parametrize(
    "options",
    [["--gpus=all"], ["--runtime=nvidia", *ASK]],
    ids=["gpus", "runtime"],
)
@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("NVIDIA_REQUIRE_CUDA=cuda>=99.0", "requirement error: unsatisfied condition: cuda>=99.0"),
        ("NVIDIA_DRIVER_CAPABILITIES=bogus", "unsupported capabilities"),
    ],
    ids=["require", "capabilities"],
)
def test_what_cannot_be_given_is_said(
    docker: Docker, show: Show, options: list[str], variable: str, words: str
) -> None:
    result = docker.run([*options, "-e", variable], ["/bin/true"])

    assert result.code in (125, 127, 128), result.text
    assert words in result.err
    assert "Traceback" not in result.text
    show(f"docker run {' '.join(options)} -e '{variable}' IMAGE true", result.err)


def test_both_ways_at_once_give_the_same(docker: Docker) -> None:
    seen = read(docker.run(["--runtime=nvidia", "--gpus=device=1"], look("/dev/nvidia1")))

    assert (gpus(seen), seen.nodes["/dev/nvidia1"]) == (["nvidia1"], "ENXIO")


def test_a_second_start_and_a_restart(bed: Bed, docker: Docker) -> None:
    name = bed.name("twice")
    made = docker.call("create", "--name", name, "--network=none", "--gpus=device=0", "probe:1", "nvidia-smi", "-L")
    assert made.code == 0, made.text
    try:
        outputs = [docker.call("start", "--attach", name) for _ in range(2)]
        assert [(each.code, each.out.count("GPU-")) for each in outputs] == [(0, 1)] * 2, outputs
    finally:
        docker.call("rm", "--force", name)
