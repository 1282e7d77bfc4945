"""containerd 1.7, 2.1 and CRI-O 1.34 as kubelet uses them, through the Container Runtime Interface: handler and CDI."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import cri, launchers, sight, userland
from tests.support.bed import Bed
from tests.support.crio import Crio

pytestmark = pytest.mark.engines

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
SMI = ["nvidia-smi", "-L"]
CUDA_99 = {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_REQUIRE_CUDA": "cuda>=99.0"}
Show = Callable[[str, str], None]


@pytest.fixture(scope="module", params=[*userland.SUITES, "crio"])
def kubelet(request: pytest.FixtureRequest, bed: Bed) -> Iterator[cri.Client]:
    """A client of an engine on a machine with eight GPUs, whose configuration our own command has edited."""
    if find_spec("grpc") is None:
        why = "no grpcio in this environment: tools/bootstrap '' engines installs it"
        (pytest.fail if "engines" in os.environ.get("NVC_MUST_RUN", "").split(",") else pytest.skip)(why)
    specs = bed.directory("cdi")
    generate = (f"--sim={bed.machine('h100x8')}", "cdi", "generate", "--output", str(specs / "nvidia.yaml"))
    bed.call(bed.commands.nvc, *generate, check=True)
    engine = crio_engine(bed, specs) if request.param == "crio" else containerd_engine(bed, specs, request.param)
    try:
        engine.start()
        engine.import_image(bed.base)
        client = engine.client()
        yield client
        client.close()
    finally:
        engine.stop()


def containerd_engine(bed: Bed, specs: Path, suite: str) -> cri.CriContainerd:
    env, wrap = {"NVC_SIM": str(bed.machine("h100x8"))}, userland.wrap(userland.place(suite))
    engine = cri.CriContainerd(bed.token, bed.directory("cri"), env, specs=specs, wrap=wrap)
    engine.write_config()
    words = ("runtime", "configure", "--runtime=containerd", "--cdi", f"--config={engine.config}")
    bed.call(bed.commands.nvc, *words, check=True)
    return engine


def crio_engine(bed: Bed, specs: Path) -> Crio:
    """CRI-O starts its runtimes without its own environment, and passes annotations on, which nvc-runtime reads too."""
    engine = Crio(bed.token, bed.directory("crio"), {}, userland.wrap(userland.place("sid")), specs)
    engine.write_config()
    etc = bed.directory("etc") / "nvc"
    etc.mkdir()
    (etc / "config.toml").write_text(f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{specs}"]\n')
    where = (f"NVC_SIM={bed.machine('h100x8')}", f"XDG_CONFIG_HOME={etc.parent}")
    runtime = launchers.with_options(bed.directory("bin"), "nvc-runtime", "/usr/bin/env", *where, bed.commands.runtime)
    files = (f"--config={engine.config}", f"--drop-in-config={engine.drop_ins}/99-nvidia.toml")
    words = ("runtime", "configure", "--runtime=crio", f"--runtime-path={runtime}", *files)
    bed.call(bed.commands.nvc, *words, check=True)
    return engine


@pytest.fixture(scope="module")
def uuids(bed: Bed) -> list[str]:
    """The GPUs of the machine, in its order."""
    return _uuids(bed.call(bed.commands.nvc, f"--sim={bed.machine('h100x8')}", "info", "--csv", check=True).out)


def _uuids(text: str) -> list[str]:
    return re.findall(r"GPU-[0-9a-f-]{36}", text)


def look(node: int, other: int) -> list[str]:
    """Look at one GPU that must be there; make the node of another, which must not open."""
    return sight.arguments(
        nodes=[f"/dev/nvidia{node}", "/dev/nvidiactl"], make=[("/dev/other", 195, other)], libraries=LIBRARIES
    )


def see(kubelet: cri.Client, command: Sequence[str], **options: Any) -> sight.Sight:
    result = kubelet.run(command, **options)
    assert result.code == 0, result.text
    return sight.read(result.out)


def gpus(seen: sight.Sight) -> list[str]:
    return [name for name in seen.lists["/dev"] if name.startswith("nvidia") and name[6:].isdigit()]


def test_messages_are_the_wire_format() -> None:
    """The bytes are those of protobuf's own description of its encoding."""
    message = {1: 150, 2: "testing", 3: {1: 150}, 4: ["", "é"]}
    wire = bytes.fromhex("089601 120774657374696e67 1a03089601 2200 2202c3a9")

    assert cri.encode(message) == wire
    assert cri.decode(wire) == {1: [150], 2: [b"testing"], 3: [b"\x08\x96\x01"], 4: [b"", "é".encode()]}
    for broken in (wire[:-1], b"\x08\x96", b"\x0d\0\0\0\0"):
        with pytest.raises(ValueError, match=r"within a field|wire type 5"):
            cri.decode(broken)


def test_the_handler_gives_gpu_0_and_no_other(kubelet: cri.Client, uuids: list[str], show: Show) -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": "0", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}

    seen = see(kubelet, look(0, 1), handler="nvidia", env=env)

    assert gpus(seen) == ["nvidia0"]
    assert seen.nodes == {"/dev/nvidia0": "ENXIO", "/dev/nvidiactl": "ENXIO", "/dev/other": "EPERM"}
    assert all(seen.libraries.values())
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    said = kubelet.run(SMI, handler="nvidia", env=env)
    assert _uuids(said.out) == uuids[:1], said.text
    show("CRI: handler nvidia, NVIDIA_VISIBLE_DEVICES=0: nvidia-smi -L   # containerd 1.7", said.text)


@pytest.mark.parametrize(
    ("handler", "env"),
    [("nvidia", {}), ("runc", {"NVIDIA_VISIBLE_DEVICES": "all"})],
    ids=["unasked", "other-handler"],
)
def test_nothing_is_given(kubelet: cri.Client, handler: str, env: dict[str, str]) -> None:
    seen = see(kubelet, sight.arguments(make=[("/dev/other", 195, 0)]), handler=handler, env=env)

    assert (gpus(seen), seen.nodes) == ([], {"/dev/other": "EPERM"})


def test_what_cannot_be_given_is_said(kubelet: cri.Client, show: Show) -> None:
    with pytest.raises(cri.CriError, match=r"requirement error: unsatisfied condition: cuda>=99\.0") as error:
        kubelet.run(["/bin/true"], handler="nvidia", env=CUDA_99)

    show("CRI: handler nvidia, NVIDIA_REQUIRE_CUDA='cuda>=99.0': true   # containerd 1.7", str(error.value))


@pytest.mark.parametrize("handler", ["", "nvidia"], ids=["runc", "nvidia"])
@pytest.mark.parametrize("way", ["CDI_devices", "annotation"])
def test_cdi(kubelet: cri.Client, uuids: list[str], show: Show, way: str, handler: str) -> None:
    names = ["nvidia.com/gpu=1", "nvidia.com/gpu=6"]
    # The CDI specification's annotation: cdi.k8s.io/ and any name, with the devices as a list.
    annotations = {"cdi.k8s.io/test": ",".join(names)}
    options: dict[str, Any] = {"devices": names} if way == "CDI_devices" else {"annotations": annotations}

    seen = see(kubelet, look(6, 0), handler=handler, **options)

    assert gpus(seen) == ["nvidia1", "nvidia6"]
    assert seen.nodes == {"/dev/nvidia6": "ENXIO", "/dev/nvidiactl": "ENXIO", "/dev/other": "EPERM"}
    assert all(seen.libraries.values())
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    said = kubelet.run(SMI, handler=handler, **options)
    assert _uuids(said.out) == [uuids[1], uuids[6]], said.text
    show(f"CRI: {way} {','.join(names)}, handler {handler or 'runc'}: nvidia-smi -L   # containerd 1.7", said.text)


def test_cdi_with_a_device_that_is_not_there(kubelet: cri.Client) -> None:
    with pytest.raises(cri.CriError, match=r"unresolvable CDI devices nvidia\.com/gpu=9"):
        kubelet.run(["/bin/true"], devices=["nvidia.com/gpu=9"])
