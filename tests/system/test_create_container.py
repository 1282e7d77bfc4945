"""createContainer hooks, which are in the container's own namespaces and device cgroup before they know anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.driver.places import cache_path
from nvc.sim import host
from tests.support import rootfs, sight
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container, Hook
from tests.support.isolation import pid_namespace
from tests.support.runtimes import OciRuntime

pytestmark = pytest.mark.system

STAGE = "createContainer"


def forget(machine: Path) -> None:
    """Remove the machine's inventory, so that NVML has to be asked."""
    Path(cache_path(host(str(machine)))).unlink(missing_ok=True)


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("namespaces", [(), ("cgroup",)], ids=["hosts-cgroups", "private-cgroups"])
def test_one_gpu_of_eight(bed: Bed, runtime: OciRuntime, namespaces: tuple[str, ...], warm: bool) -> None:
    machine = bed.machine("h100x8")
    forget(machine)
    if warm:
        bed.call(bed.commands.nvc, f"--sim={machine}", "list", check=True)
    others = [(f"/dev/other{minor}", 195, minor) for minor in range(8) if minor != 2]
    look = sight.arguments(nodes=["/dev/nvidia2", "/dev/nvidiactl"], make=others)
    hooks = {STAGE: [bed.hook(STAGE, machine="h100x8")]}

    result = bed.run(runtime, Container(bed.rootfs(), look, gpu_env("2"), hooks, namespaces=namespaces))

    assert (result.code, result.complaints) == (0, "")
    # What a cold start opened for NVML is closed again: the seven others are denied in either case.
    assert sight.read(result.out).nodes == {
        "/dev/nvidia2": "ENXIO",
        "/dev/nvidiactl": "ENXIO",
        **{path: "EPERM" for path, _, _ in others},
    }


def test_in_the_pid_namespace_of_another_container(bed: Bed, runtime: OciRuntime) -> None:
    """A pod's, or ``--pid=container:``. runc tells hooks the number there, which /proc has for another process."""
    with pid_namespace() as other:
        hooks = {STAGE: [bed.hook(STAGE)]}
        joined = {"pid": f"/proc/{other}/ns/pid"}
        look = sight.arguments(nodes=["/dev/nvidia0"])

        result = bed.run(runtime, Container(bed.rootfs(), look, gpu_env("0"), hooks, joined=joined))

    assert (result.code, result.complaints) == (0, "")
    assert sight.read(result.out).nodes == {"/dev/nvidia0": "ENXIO"}


def test_an_inventory_made_where_nvml_works_has_the_gpus_of_others(bed: Bed, runtime: OciRuntime) -> None:
    """An engine that applies CDI gives the control node and one GPU: NVML starts, and sees that one."""
    machine = bed.machine("h100x8")
    forget(machine)
    rules = [{"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rw"} for minor in (255, 2)]
    words = ["nvc-cdi-hook", "share", f"--sim={machine}", "--share=mem=10Gi"]
    hooks = {STAGE: [Hook(str(bed.commands.directory / "nvc-cdi-hook"), words, bed.hook(STAGE).env)]}

    result = bed.run(runtime, Container(bed.rootfs(), ["/bin/true"], hooks=hooks, devices=rules))

    assert (result.code, result.complaints) == (0, "")
    facts = json.loads(Path(cache_path(host(str(machine)))).read_bytes())["facts"]
    assert [gpu["minor"] for gpu in facts[1]] == list(range(8))


@pytest.mark.parametrize("view", ["v1", "v2"])
def test_a_remapped_container_is_told_the_way_out(bed: Bed, ask: Callable[[str, str], OciRuntime], view: str) -> None:
    offset = 100000
    tree = bed.rootfs(owner=offset)
    before = rootfs.fingerprint(tree)
    container = Container(tree, ["/bin/true"], gpu_env("0"), {STAGE: [bed.hook(STAGE)]}, id_offset=offset)

    result = bed.run(ask("runc", view), container)

    assert result.code != 0
    assert "denies the driver's nodes to this createContainer hook" in result.text
    assert "hint: use a prestart or createRuntime hook" in result.text
    assert before == rootfs.fingerprint(tree)
