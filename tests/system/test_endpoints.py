"""The host's /etc in every container, by a link of a local user's: each way to a container, with a real runtime."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime, Result
from tests.support.wrapped import Wrapped

pytestmark = pytest.mark.system
MALLORY = 12345
PIPES = "/tmp/nvidia-mps"
#: What the container tries: /etc, and the pipe directory, are the image's or the host's.
LOOK = ["/bin/sh", "-c", f"echo mine > /etc/owned; ls {PIPES}; grep -c ' {PIPES} ' /proc/self/mountinfo; true"]


def attack(machine: Path, target: str) -> None:
    """``target``: of the link, below the driver root; "" for a pipe directory of the attacker's own."""
    place = machine / PIPES[1:]
    shutil.rmtree(place)
    if target:
        place.symlink_to(target)
    else:
        place.mkdir()
        os.mknod(place / "control", 0o140666)
        os.chown(place / "control", MALLORY, MALLORY)
    os.chown(place, MALLORY, MALLORY, follow_symlinks=False)


def by_hook(bed: Bed, runtime: OciRuntime, machine: str) -> Result:
    hooks = {"prestart": [bed.hook("prestart", machine=machine)]}
    return bed.run(runtime, Container(bed.rootfs(), LOOK, gpu_env("0"), hooks))


def by_configure(bed: Bed, runtime: OciRuntime, machine: str) -> Result:
    tree = bed.rootfs()
    script = f"exec {bed.commands.nvc} --sim={bed.machine(machine)} configure -d 0 -c -u --pid=$pid {tree}"
    return bed.run(runtime, Container(tree, LOOK, (), {"prestart": [bed.shell_hook(script)]}))


def by_runtime(bed: Bed, runtime: OciRuntime, machine: str) -> Result:
    return Wrapped(bed, runtime, "", machine).run(Container(bed.rootfs(), LOOK, gpu_env("0")))


def by_generated_spec(bed: Bed, runtime: OciRuntime, machine: str) -> Result:
    """Made after the attack."""
    directory = bed.directory("cdi")
    sim = f"--sim={bed.machine(machine)}"
    # The hooks that a spec names are another matter.
    made = bed.call(bed.commands.nvc, sim, "cdi", "generate", "--disable-hook=all", "-o", f"{directory}/nvidia.yaml")
    assert made.code == 0, made.text
    assert "tmp/nvidia-mps" not in (directory / "nvidia.yaml").read_text()
    assert f"warning: skipping ipc path {PIPES}" in made.err or f"warning: {PIPES} is left out" in made.err
    return with_spec(bed, runtime, machine, directory)


def by_older_spec(bed: Bed, runtime: OciRuntime, machine: str) -> Result:
    """Made before it, or by a program that looks less."""
    directory, root = bed.directory("cdi"), bed.machine(machine)
    paths = {f"{root}{PIPES}": PIPES, f"{root}/etc/nv": "/opt/nv"}
    (root / "etc/nv").touch()
    mounts = [{"hostPath": host, "containerPath": path, "options": ["rbind"]} for host, path in paths.items()]
    device = {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [device], "containerEdits": {"mounts": mounts}}
    (directory / "nvidia.json").write_text(json.dumps(spec))
    return with_spec(bed, runtime, machine, directory)


def with_spec(bed: Bed, runtime: OciRuntime, machine: str, directory: Path) -> Result:
    config = f'mode = "cdi"\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{directory}"]'
    return Wrapped(bed, runtime, config, machine).run(Container(bed.rootfs(), LOOK, ("NVIDIA_VISIBLE_DEVICES=0",)))


WAYS = [by_hook, by_configure, by_runtime, by_generated_spec, by_older_spec]


@pytest.mark.parametrize("way", WAYS)
def test_a_users_path_is_not_given(bed: Bed, runc: OciRuntime, way: Callable[[Bed, OciRuntime, str], Result]) -> None:
    name = bed.new_machine("h100x8")
    machine = bed.machine(name)
    for target in ("/etc", f"{machine}/etc", ""):
        attack(machine, target)

        result = way(bed, runc, name)

        assert result.code == 0, result.text
        assert result.out.split() == ["0"]
        assert not (machine / "etc/owned").exists()
        place = machine / PIPES[1:]
        place.unlink() if place.is_symlink() else shutil.rmtree(place)
        place.mkdir()


@pytest.mark.parametrize("way", [by_hook, by_configure, by_runtime])
def test_roots_server_is_given(bed: Bed, runc: OciRuntime, way: Callable[[Bed, OciRuntime, str], Result]) -> None:
    result = way(bed, runc, "h100x8")

    assert result.code == 0, result.text
    assert result.out.split() == ["control", "1"]
