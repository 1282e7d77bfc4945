"""containerd 1.6: ctr's own --gpus, which calls nvidia-container-cli, and nvc-runtime in place of runc."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import launchers, sight
from tests.support.bed import Bed
from tests.support.containerd import Containerd
from tests.support.runtimes import Result, execute

pytestmark = pytest.mark.engines

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-encode.so.1")
Show = Callable[[str, str], None]


@pytest.fixture(scope="module")
def containerd(bed: Bed) -> Iterator[Containerd]:
    """containerd on a machine with eight GPUs, whose config.toml our own command has edited."""
    engine = Containerd(bed.token, bed.directory("containerd"), {"NVC_SIM": str(bed.machine("h100x8"))})
    engine.write_config()
    configure(bed, engine.config)
    try:
        engine.start()
        engine.import_image(bed.base)
        yield engine
    finally:
        engine.stop()


def configure(bed: Bed, config: Path, *options: str) -> Result:
    words = ("runtime", "configure", "--runtime=containerd", f"--config={config}", *options)
    return bed.call(bed.commands.nvc, *words, check=True)


@pytest.fixture(scope="module")
def cli(bed: Bed) -> str:
    """A directory with an nvidia-container-cli that looks at the simulated machine, for the head of ctr's PATH."""
    directory = bed.directory("bin")
    launchers.with_options(directory, "nvidia-container-cli", bed.commands.cli, f"--sim={bed.machine('h100x8')}")
    return str(directory)


def look(*nodes: str, make: Sequence[tuple[str, int, int]] = ()) -> list[str]:
    return sight.arguments(nodes=nodes, make=make, libraries=LIBRARIES)


def read(result: Result) -> sight.Sight:
    assert result.code == 0, result.text
    return sight.read(result.out)


def gpus(seen: sight.Sight) -> list[str]:
    return [name for name in seen.lists["/dev"] if name.startswith("nvidia") and name[6:].isdigit()]


def test_ctr_gpus(bed: Bed, containerd: Containerd, cli: str, show: Show) -> None:
    seen = read(containerd.run(["--gpus=3"], bed.name("ctr"), look("/dev/nvidia3", "/dev/nvidia-uvm"), path=cli))

    assert seen.nodes == {"/dev/nvidia3": "ENXIO", "/dev/nvidia-uvm": "ENXIO"}
    assert gpus(seen) == ["nvidia3"]
    assert all(seen.libraries.values())  # ctr asks for every capability
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    said = containerd.run(["--gpus=3"], bed.name("ctr"), ["nvidia-smi", "-L"], path=cli)
    show("ctr run --rm --gpus 3 IMAGE NAME nvidia-smi -L", said.text)
    assert said.out.count("GPU-") == 1


def test_ctr_gpus_that_are_not_there(bed: Bed, containerd: Containerd, cli: str, show: Show) -> None:
    result = containerd.run(["--gpus=9"], bed.name("ctr"), ["/bin/true"], path=cli)

    assert result.code != 0
    assert "device error: 9: unknown device" in result.text
    show("ctr run --rm --gpus 9 IMAGE NAME true", result.text)


@pytest.mark.parametrize("snapshot", ["overlayfs", "native"])
def test_nvc_runtime_in_place_of_runc(bed: Bed, containerd: Containerd, show: Show, snapshot: str) -> None:
    options = [f"--runc-binary={bed.commands.runtime}", f"--snapshotter={snapshot}"]
    env = ["NVIDIA_VISIBLE_DEVICES=1,6", "NVIDIA_DRIVER_CAPABILITIES=utility"]
    name = bed.name("ctr")

    seen = read(containerd.run(options, name, look("/dev/nvidia6", make=[("/dev/other", 195, 2)]), env=env))

    assert seen.nodes == {"/dev/nvidia6": "ENXIO", "/dev/other": "EPERM"}
    assert gpus(seen) == ["nvidia1", "nvidia6"]
    assert [name for name, path in seen.libraries.items() if path] == ["libnvidia-ml.so.1"]
    said = containerd.run(options, bed.name("ctr"), ["nvidia-smi", "-L"], env=env)
    show(f"ctr run --rm --runc-binary nvc-runtime --env {env[0]} IMAGE NAME nvidia-smi -L", said.text)
    assert said.out.count("GPU-") == 2


def test_nvc_runtime_for_a_container_that_does_not_ask(bed: Bed, containerd: Containerd) -> None:
    seen = read(containerd.run([f"--runc-binary={bed.commands.runtime}"], bed.name("ctr"), look()))

    assert gpus(seen) == []
    assert not any(seen.libraries.values())


def test_what_cannot_be_given_is_said(bed: Bed, containerd: Containerd, show: Show) -> None:
    options = [f"--runc-binary={bed.commands.runtime}"]
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"]

    result = containerd.run(options, bed.name("ctr"), ["/bin/true"], env=env)

    assert result.code != 0
    assert "requirement error: unsatisfied condition: cuda>=99.0" in result.text
    show(f"ctr run --rm --runc-binary nvc-runtime --env '{env[1]}' IMAGE NAME true", result.text)


def dump(config: Path) -> dict[str, Any]:
    """The whole configuration as containerd reads it, without what is empty; fails when containerd refuses it."""
    result = execute(["containerd", "--config", str(config), "config", "dump"])
    assert result.code == 0, result.text
    found = filled(tomllib.loads(result.out))
    assert isinstance(found, dict)
    return found


def filled(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {key: inner for key, raw in value.items() if (inner := filled(raw)) not in ("", 0, {}, [])}


def test_containerd_reads_the_configuration_we_wrote(bed: Bed, show: Show) -> None:
    engine = Containerd(bed.token, bed.directory("cri"), {})
    engine.write_config(cri=True)
    before = dump(engine.config)

    written = configure(bed, engine.config, "--set-as-default")
    after = dump(engine.config)

    show("nvc-py runtime configure --runtime=containerd --set-as-default", written.out)
    settings = after["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    nvidia = settings["runtimes"].pop("nvidia")
    assert nvidia["options"] == {"BinaryName": bed.commands.runtime}
    # Nothing else changes: not the built-in runtime either, which a file that names another one would take away.
    assert settings.pop("default_runtime_name") == "nvidia"
    assert before["plugins"]["io.containerd.grpc.v1.cri"]["containerd"].pop("default_runtime_name") == "runc"
    assert after == before

    configure(bed, engine.config, "--remove")
    before["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["default_runtime_name"] = "runc"
    assert dump(engine.config) == before


def test_containerd_serves_cri_with_the_configuration_we_wrote(bed: Bed) -> None:
    engine = Containerd(bed.token, bed.directory("cri"), {})
    engine.write_config(cri=True)
    configure(bed, engine.config)
    try:
        engine.start()
        plugins = engine.call("plugins", "ls").out.splitlines()
        assert [line.split()[-1] for line in plugins if line.split()[:2] == ["io.containerd.grpc.v1", "cri"]] == ["ok"]
    finally:
        engine.stop()
