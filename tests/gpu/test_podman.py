"""Podman on a real GPU: with a CDI spec that nvc-py made there, and with our hook (docs/user/engines/podman.md).

Podman has an /etc of its own, so the machine's /etc/cdi and /etc/containers stay as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import carried, cgroupview, launchers, sight
from tests.support.bed import Bed, gpu_env
from tests.support.gpuhost import PROGRAM, smi, view, with_program
from tests.support.podmanbox import PodmanBox, quoted
from tests.support.runtimes import Result

pytestmark = [pytest.mark.gpu, pytest.mark.system]

SPEC = "/etc/cdi/nvidia.yaml"
HOOKS = "/etc/containers/oci/hooks.d"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
LOOK = sight.arguments(nodes=NODES, libraries=LIBRARIES)
#: What Podman, its runtimes and CDI could leave outside the bed.
PLACES = (
    *("/etc/cdi", "/etc/containers", "/etc/cni", "/run/cdi", "/run/containers", "/run/libpod", "/run/netns"),
    *("/run/crun", "/run/runc", "/var/lib/containers", "/var/lib/cni"),
)


@pytest.fixture(scope="module")
def podman(whole_bed: Bed) -> Path:
    """The program; unpacking it takes a second."""
    return carried.unpack("podman", whole_bed.directory("podman"))


@pytest.fixture(params=["crun", "runc"])
def box(request: pytest.FixtureRequest, bed: Bed, podman: Path, need: Callable[..., None]) -> Iterator[PodmanBox]:
    """Podman over either runtime; afterwards the machine is as it was."""
    if carried.missing(request.param):
        need(*carried.missing(request.param))
    seen = cgroupview.named(view())
    assert seen is not None
    before = _listing()
    preload = bed.preload(request.param, seen.name)
    made = carried.launchers(bed.directory("engine"), podman, request.param, env=bed.env, preload=preload)
    env = {"PATH": f"{made.bin}:{os.environ['PATH']}:/usr/sbin:/sbin"}
    box = PodmanBox(bed.token, str(made.runtime), seen, bed.directory("box"), env, engine=made.settings)
    box.prepare()
    yield box
    left = box.script("", "podman ps --all --quiet")
    box.clean()
    assert (left.code, left.out) == (0, ""), left.text
    assert _listing() == before


def _listing() -> dict[str, list[str]]:
    return {place: sorted(os.listdir(place)) for place in PLACES if os.path.isdir(place)}


def generate(bed: Bed) -> str:
    return quoted([bed.commands.nvc, "cdi", "generate", f"--output={SPEC}"])


def with_device(bed: Bed, box: PodmanBox, device: str, tree: Path, command: Sequence[str]) -> Result:
    return box.script(generate(bed), box.run_words([f"--device={device}"], tree, command))


def with_hook(
    bed: Bed, box: PodmanBox, env: Sequence[str], tree: Path, command: Sequence[str], hook: Path | None = None
) -> Result:
    """hook: starts ours; None: ours."""
    path = f"--hook-path={hook or bed.commands.hook}"
    configure = [bed.commands.nvc, "runtime", "configure", "--runtime=podman", path]
    options = [word for variable in env for word in ("--env", variable)]
    run = box.run_words(options, tree, command, general=[f"--hooks-dir={HOOKS}"])
    return box.script(f"{quoted(configure)} >/dev/null 2>&1 && test -e {HOOKS}/nvc.json", run)


def uuid() -> str:
    return smi("--query-gpu=uuid", "--format=csv,noheader").split()[0]


def none_of_it(result: Result) -> None:
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes == dict.fromkeys(NODES, "ENOENT")
    assert seen.libraries == dict.fromkeys(LIBRARIES, "")
    assert "ModifyDeviceFiles: 0" not in seen.texts[sight.PARAMS]


def all_of_it(result: Result) -> None:
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes == dict.fromkeys(NODES, "ok")
    assert all(seen.libraries.values())
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]


def test_the_generated_spec_is_valid(bed: Bed, box: PodmanBox) -> None:
    words = [quoted([bed.commands.nvc, "cdi", *verb]) for verb in (["validate"], ["validate", SPEC], ["list"])]

    result = box.script(generate(bed), " && ".join(words))

    assert result.code == 0, result.text
    assert {"nvidia.com/gpu=all", "nvidia.com/gpu=0", f"nvidia.com/gpu={uuid()}"} <= set(result.out.split())


def test_the_spec_is_the_same_each_time(bed: Bed, box: PodmanBox) -> None:
    again = [bed.commands.nvc, "--no-cache", "cdi", "generate", "--output=/etc/cdi/again.yaml"]

    result = box.script(generate(bed), f"{quoted(again)} && cmp {SPEC} /etc/cdi/again.yaml")

    assert result.code == 0, result.text


@pytest.mark.parametrize("device", ["all", "0", "UUID"])
def test_nvidia_smi_with_a_cdi_device(bed: Bed, box: PodmanBox, device: str) -> None:
    name = f"nvidia.com/gpu={uuid() if device == 'UUID' else device}"

    result = with_device(bed, box, name, bed.rootfs(), ["nvidia-smi", "-L"])

    assert result.code == 0, result.text
    assert result.out == smi("-L").splitlines(keepends=True)[0]


@pytest.mark.parametrize("device", ["all", "0"])
def test_cuda_with_a_cdi_device(bed: Bed, box: PodmanBox, vectoradd: Path, device: str) -> None:
    result = with_device(bed, box, f"nvidia.com/gpu={device}", with_program(bed, vectoradd), [PROGRAM])

    assert result.code == 0, result.text
    assert result.out.endswith(" ok\n")


def test_cdi_device_opens_its_nodes(bed: Bed, box: PodmanBox) -> None:
    all_of_it(with_device(bed, box, "nvidia.com/gpu=0", bed.rootfs(), LOOK))


def test_without_a_device_there_is_none_of_it(bed: Bed, box: PodmanBox, vectoradd: Path) -> None:
    none_of_it(box.script(generate(bed), box.run_words([], bed.rootfs(), LOOK)))

    result = box.script(generate(bed), box.run_words([], with_program(bed, vectoradd), [PROGRAM]))
    assert (result.code, result.out) == (1, ""), result.text


def test_unknown_device_is_refused(bed: Bed, box: PodmanBox) -> None:
    result = with_device(bed, box, "nvidia.com/gpu=77", bed.rootfs(), ["/bin/true"])

    assert result.code == 126, result.text
    assert "unresolvable CDI devices nvidia.com/gpu=77" in result.err


def test_nvidia_smi_with_the_hook(bed: Bed, box: PodmanBox) -> None:
    result = with_hook(bed, box, gpu_env("all"), bed.rootfs(), ["nvidia-smi", "-L"])

    assert result.code == 0, result.text
    assert result.out == smi("-L")


def test_cuda_with_the_hook(bed: Bed, box: PodmanBox, vectoradd: Path) -> None:
    result = with_hook(bed, box, gpu_env("0", "compute"), with_program(bed, vectoradd), [PROGRAM])

    assert result.code == 0, result.text
    assert result.out.endswith(" ok\n")


def test_hook_opens_nodes_for_containers_that_ask(bed: Bed, box: PodmanBox) -> None:
    all_of_it(with_hook(bed, box, gpu_env("0"), bed.rootfs(), LOOK))
    none_of_it(with_hook(bed, box, (), bed.rootfs(), LOOK))


def test_what_the_hook_refuses_is_said(bed: Bed, box: PodmanBox) -> None:
    env = (*gpu_env("0"), "NVIDIA_REQUIRE_CUDA=cuda>=99.0")
    # Of crun's hooks Podman shows no words.
    place = bed.directory("words")
    log = place / "hook.log"
    hook = launchers.with_options(place, "nvc-hook", bed.commands.hook, f"--debug={log}")

    result = with_hook(bed, box, env, bed.rootfs(), ["/bin/true"], hook)

    assert result.code == 126, result.text
    assert "unsatisfied condition: cuda>=99.0" in (log.read_text() if log.exists() else result.err)


def test_doctor_finds_nothing_wrong_with_the_generated_spec(bed: Bed, box: PodmanBox) -> None:
    doctor = quoted([bed.commands.nvc, "doctor", "--json", "--only=cdi"])

    result = box.script(generate(bed), doctor)

    found = json.loads(result.out)["findings"]
    assert [row for row in found if row["level"] in ("warning", "error")] == []
    assert "ok" in [row["level"] for row in found if row["check"] == "cdi-there"]
    # Made for another driver: the version in every path is wrong.
    version = smi("--query-gpu=driver_version", "--format=csv,noheader").split()[0]
    stale = box.script(f"{generate(bed)} && sed -i 's/{version}/470.57.02/g' {SPEC}", doctor)
    found = json.loads(stale.out)["findings"]
    assert {"cdi-paths", "cdi-driver"} <= {row["check"] for row in found if row["level"] in ("warning", "error")}
