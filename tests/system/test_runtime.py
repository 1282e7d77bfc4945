"""nvc-runtime in front of runc and crun: the container that an engine would start through it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import rootfs, sight
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.launchers import CHECKOUT
from tests.support.runtimes import OciRuntime
from tests.support.wrapped import Wrapped

pytestmark = pytest.mark.system

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


def with_keys(**changes: object) -> Callable[[Path], None]:
    """Change top-level keys of a bundle's config.json."""

    def edit(bundle: Path) -> None:
        file = bundle / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return edit


def test_a_container_that_asks_gets_its_gpu(bed: Bed, runtime: OciRuntime) -> None:
    look = sight.arguments(nodes=("/dev/nvidia0",), make=[("/dev/other", 195, 77)], libraries=LIBRARIES)

    result = Wrapped(bed, runtime).run(Container(bed.rootfs(), look, gpu_env("all")))

    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert (seen.nodes["/dev/nvidia0"], seen.nodes["/dev/other"]) == ("ENXIO", "EPERM")
    assert all(seen.libraries[name] for name in LIBRARIES)
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]


def test_one_that_does_not_gets_nothing(bed: Bed, runc: OciRuntime) -> None:
    result = Wrapped(bed, runc).run(Container(bed.rootfs(), sight.arguments(libraries=LIBRARIES)))

    assert result.code == 0, result.text
    assert sight.read(result.out).libraries == dict.fromkeys(LIBRARIES, "")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        pytest.param(gpu_env("0", "compute", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"), "unsatisfied condition", id="require"),
        pytest.param(gpu_env("17"), "unknown device", id="device"),
        pytest.param(gpu_env("0", "bogus"), "unsupported capabilities", id="capabilities"),
        pytest.param(gpu_env("0", "compute", "NVIDIA_MIG_CONFIG_DEVICES=all"), "unprivileged container", id="MIG"),
        pytest.param(gpu_env(",".join(f"GPU-{n:08d}" for n in range(9000))), "unknown device", id="long list"),
        pytest.param(gpu_env("0\n1"), "unknown device", id="newline"),
    ],
)
def test_what_cannot_be_given_is_said(bed: Bed, runc: OciRuntime, env: Sequence[str], words: str) -> None:
    result = Wrapped(bed, runc).run(Container(bed.rootfs(), ["/bin/true"], env))

    assert result.code != 0
    assert words in result.text
    assert "Traceback" not in result.text


def test_preload_of_the_image_is_not_ours(bed: Bed, runc: OciRuntime) -> None:
    tree = bed.rootfs()
    env = gpu_env("0", "utility", "LD_PRELOAD=/proc/self/cwd/evil.so", "PYTHONPATH=/proc/self/cwd")
    (tree / "evil.so").write_text("not a library")

    result = Wrapped(bed, runc).run(Container(tree, ["/bin/true"], env))

    assert result.code == 0, result.text
    # The loader of a process that believed the variable says so on stderr; the container's own may.
    assert result.err.count("evil.so") <= 1
    assert "nvc-" not in "".join(line for line in result.complaints.splitlines() if "evil" in line)


def cdi_directory(bed: Bed, machine: Path, *, kind: str = "nvidia.com/gpu") -> Path:
    """A directory with the CDI specification of a machine, whose files are on this host below the machine's."""
    directory = bed.directory("cdi")
    library = next(machine.glob(f"usr/lib/{rootfs.multiarch()}/libnvidia-ml.so.*.*"))
    encoder = next(machine.glob(f"usr/lib/{rootfs.multiarch()}/libnvidia-encode.so.*.*"))
    paths = {str(library): "/opt/ml.so", str(encoder): "/opt/encode.so"}
    spec = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [
            {
                "name": name,
                "containerEdits": {
                    "deviceNodes": [{"path": f"/dev/nvidia{name}", "hostPath": f"{machine}/dev/nvidia{name}"}]
                },
            }
            for name in "01"
        ],
        "containerEdits": {
            "env": ["FROM_CDI=yes", "NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [
                {"hostPath": host, "containerPath": path, "options": ["ro", "nosuid", "nodev", "bind"]}
                for host, path in paths.items()
            ],
        },
    }
    (directory / "nvidia.json").write_text(json.dumps(spec))
    return directory


LOOK = ["/bin/sh", "-c", "echo $FROM_CDI; ls /opt; ls /dev | grep nvidia[0-9]; cat /dev/nvidia1; true"]


def cdi_config(directory: Path, mode: str = "auto") -> str:
    return f'mode = "{mode}"\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{directory}"]'


@pytest.mark.parametrize("pair", [("runc", "v1"), ("runc", "v2"), ("crun", "v2")], ids="-".join)
@pytest.mark.parametrize(
    ("mode", "value"), [("auto", "nvidia.com/gpu=1"), ("cdi", "1"), ("cdi", "nvidia.com/gpu=1")], ids=str
)
def test_cdi_devices(
    bed: Bed, ask: Callable[[str, str], OciRuntime], pair: tuple[str, str], mode: str, value: str
) -> None:
    machine = bed.machine("h100x8")
    wrapped = Wrapped(bed, ask(*pair), cdi_config(cdi_directory(bed, machine), mode), "h100x8")

    result = wrapped.run(Container(bed.rootfs(), LOOK, (f"NVIDIA_VISIBLE_DEVICES={value}",)))

    assert result.code == 0, result.text
    assert result.out.split() == ["yes", "encode.so", "ml.so", "nvidia1"]
    # The device cgroup lets it through; there is no driver behind it.
    assert "No such device or address" in result.err


def test_cdi_devices_by_annotation(bed: Bed, runc: OciRuntime) -> None:
    machine = bed.machine("h100x8")
    wrapped = Wrapped(bed, runc, cdi_config(cdi_directory(bed, machine)), "h100x8")
    annotations = with_keys(annotations={"cdi.k8s.io/pod": "nvidia.com/gpu=1,nvidia.com/gpu=0", "other": "a=b"})

    result = wrapped.run(Container(bed.rootfs(), LOOK), edit=annotations)

    assert result.out.split() == ["yes", "encode.so", "ml.so", "nvidia0", "nvidia1"], result.text


def test_cdi_honours_capabilities_and_requirements(bed: Bed, runc: OciRuntime) -> None:
    machine = bed.machine("h100x8")
    config = cdi_config(cdi_directory(bed, machine))
    ask = ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1",)
    tool = Container(bed.rootfs(), LOOK, (*ask, "NVIDIA_DRIVER_CAPABILITIES=utility"))

    assert Wrapped(bed, runc, config, "h100x8").run(tool).out.split() == ["yes", "ml.so", "nvidia1"]
    for requirement in ("cuda>=99.0", "arch>=99"):
        strict = replace(tool, env=(*ask, f"NVIDIA_REQUIRE_X={requirement}"))
        refused = Wrapped(bed, runc, config, "h100x8").run(strict)
        assert refused.code == 1
        assert "requirement error: unsatisfied condition" in refused.err


def test_what_no_specification_holds_comes_from_the_hook(bed: Bed, runc: OciRuntime) -> None:
    machine = bed.machine("h100x8")
    config = cdi_config(cdi_directory(bed, machine))
    look = sight.arguments(nodes=("/dev/nvidia1",), libraries=LIBRARIES)
    env = ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1", "NVIDIA_DRIVER_CAPABILITIES=utility,compute,compat32")

    result = Wrapped(bed, runc, config, "h100x8").run(Container(bed.rootfs(), look, env))

    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes["/dev/nvidia1"] == "ENXIO"
    assert all(seen.libraries[name] for name in LIBRARIES)
    assert [name for name in seen.lists["/dev"] if name[6:].isdigit()] == ["nvidia1"]


def test_automatic_names_need_no_specification(bed: Bed, runc: OciRuntime) -> None:
    look = sight.arguments(nodes=("/dev/nvidia3",))
    container = Container(bed.rootfs(), look, ("NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=3",))

    for mode in ("auto", "cdi", "jit-cdi"):
        result = Wrapped(bed, runc, f'mode = "{mode}"', "h100x8").run(container)
        assert result.code == 0, result.text
        assert sight.read(result.out).nodes == {"/dev/nvidia3": "ENXIO"}


def test_installed_names_are_the_toolkit_s() -> None:
    names = (CHECKOUT / "tools/install").read_text()

    for name in ("nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"):
        assert f"\n{name} hook.runtime.__main__\n" in names
