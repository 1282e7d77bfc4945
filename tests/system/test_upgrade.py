"""The driver of a running node is replaced by another version: nothing stale is given, running containers go on.

Files are replaced as packages do it: new files under new names, the old ones unlinked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import leftovers, sight
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.launchers import CHECKOUT
from tests.support.runtimes import OciRuntime, execute

pytestmark = pytest.mark.system

OLD, NEW = "580.159.04", "590.44.01"
REFRESH = CHECKOUT / "packaging/systemd/cdi-refresh"
#: Waits for /go, and then uses the driver that it was given.
WAIT = "touch /waiting; while [ ! -e /go ]; do sleep 0.02; done; nvidia-smi -L; sha256sum /usr/lib/*/libcuda.so.*.*"


class Node:
    """A machine in a directory whose driver can be replaced."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.machine = bed.place / bed.name("node")
        self.install(OLD)

    def install(self, version: str) -> None:
        told = self.bed.call(self.bed.commands.nvc, "sim", "describe", "h200", "--json", check=True).out
        description = self.bed.place / f"{self.machine.name}.json"
        description.write_text(json.dumps({**json.loads(told), "driver_version": version}))
        words = ("sim", "create", str(self.machine), "--machine", str(description), "--force")
        self.bed.call(self.bed.commands.nvc, *words, check=True)

    def nvc(self, *words: str) -> str:
        return self.bed.call(self.bed.commands.nvc, f"--sim={self.machine}", *words, check=True).out

    def container(self, command: list[str]) -> Container:
        hook = replace(self.bed.hook("prestart"), args=["nvc-hook", f"--sim={self.machine}", "prestart"])
        return Container(self.bed.rootfs(), command, gpu_env("0"), {"prestart": [hook]})


@pytest.fixture
def node(bed: Bed) -> Node:
    return Node(bed)


@pytest.fixture
def refresh(bed: Bed, node: Node) -> Callable[[], Path]:
    """What nvc-cdi-refresh.service does; returns the spec."""
    output = bed.directory("cdi") / "nvidia.yaml"

    def run() -> Path:
        env = {
            "PATH": f"{bed.commands.directory}:/usr/sbin:/usr/bin:/sbin:/bin",
            "NVC_CDI_OUTPUT": str(output),
            "NVC_OPTIONS": f"--sim={node.machine}",
            **bed.env,
        }
        # The script's settings come from a file in /etc; here, from a copy that names another.
        script = REFRESH.read_text().replace("NVC_CDI_OUTPUT=/var/run/cdi/nvidia.yaml\n", "", 1)
        script = script.replace('NVC_CDI_OPTIONS=""\nNVC_OPTIONS=""\n', 'NVC_CDI_OPTIONS=""\n', 1)
        copy = output.with_name("refresh")
        script = script.replace("/usr/bin/nvc-py", str(bed.commands.nvc))
        copy.write_text(script.replace("/etc/default/nvc-cdi-refresh", "/nonexistent"))
        done = execute(["sh", str(copy)], env=env)
        assert done.code == 0, done.text
        return output

    return run


def test_no_inventory_is_stale(node: Node) -> None:
    assert OLD in node.nvc("info")
    kept = node.nvc("list", "--libraries")
    node.install(NEW)

    assert NEW in node.nvc("info")
    listed = node.nvc("list", "--libraries")
    assert OLD in kept
    assert (NEW in listed, OLD in listed) == (True, False)


def test_new_containers_get_the_new_driver(bed: Bed, node: Node, runc: OciRuntime) -> None:
    look = sight.arguments(nodes=("/dev/nvidia0",), libraries=("libcuda.so.1", "libnvidia-ml.so.1"))
    for version in (OLD, NEW):
        node.install(version)
        result = bed.run(runc, node.container(look))
        assert result.code == 0, result.text
        seen = sight.read(result.out)
        assert [path.rpartition(".so.")[2] for path in seen.libraries.values()] == [version, version]


def test_a_running_container_goes_on_with_its_driver(bed: Bed, node: Node, runc: OciRuntime) -> None:
    """Its libraries are the old files, which the kernel keeps as long as they are mounted."""
    container = node.container(["/bin/sh", "-c", WAIT])
    before = execute(["sh", "-c", f"sha256sum {node.machine}/usr/lib/*/libcuda.so.*.*"]).out.split()[0]
    bundle, name = bed.bundle(container), bed.name("c")
    created = runc.create(bundle, name)
    assert created.code == 0, created.text
    try:
        assert runc.start(name).code == 0
        assert leftovers.until(lambda: (container.rootfs / "waiting").exists(), seconds=40)
        node.install(NEW)
        node.nvc("info")
        (container.rootfs / "go").touch()
        runc.wait(name)
        out = (bundle / "output").read_text()
    finally:
        runc.clean()

    assert out.count("GPU-") == 1, out
    assert before in out.split()
    assert f"libcuda.so.{OLD}" in out


def test_no_spec_is_stale_after_the_refresh(bed: Bed, node: Node, refresh: Callable[[], Path]) -> None:
    spec = refresh()
    old = spec.read_text()
    node.install(NEW)
    stale = [f"{node.machine}/usr/lib", OLD]
    assert all(word in old for word in stale)

    assert (NEW in refresh().read_text(), OLD in refresh().read_text()) == (True, False)
    checked = bed.call(bed.commands.nvc, f"--sim={node.machine}", "cdi", "validate", str(spec))
    assert checked.code == 0, checked.text


def test_a_refresh_without_a_change_leaves_the_file(refresh: Callable[[], Path]) -> None:
    first, second = refresh().stat(), refresh().stat()

    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)
