"""nvc-runtime where engines are given a runtime: Podman's --runtime, containerd's --runc-binary."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import cgroupview, launchers, rootfs, sight
from tests.support.bed import Bed, gpu_env
from tests.support.cgroupview import CgroupView
from tests.support.engines import Podman
from tests.support.runtimes import execute, find

pytestmark = pytest.mark.system

Need = Callable[..., None]


def wrapped(bed: Bed) -> Path:
    """A command for an engine: nvc-runtime with a simulated machine and settings of its own."""
    directory = bed.directory("wrapped")
    (directory / "nvc").mkdir()
    (directory / "nvc/config.toml").write_text(
        f"[nvidia-container-runtime]\nruntimes = {json.dumps([find('runc')])}\n"
        f'debug = "{directory}/runtime.log"\nlog-level = "debug"\n'
    )
    script = directory / "runtime"
    script.write_text(
        f"#!/bin/sh\nexport XDG_CONFIG_HOME='{directory}' NVC_SIM='{bed.machine('h200')}'\n"
        f'exec {bed.commands.runtime} "$@"\n'
    )
    script.chmod(0o755)
    return script


def test_podman(bed: Bed, need: Need) -> None:
    need("podman", "conmon")
    view = cgroupview.available()[0]
    script = wrapped(bed)
    podman = Podman("runc", view, bed.directory("podman"), env=bed.env)
    podman.prepare({})
    settings = podman.place / "containers.conf"
    settings.write_text(settings.read_text().replace(json.dumps(find("runc")), json.dumps(str(script))))
    name = bed.name("podman")
    look = sight.arguments(nodes=("/dev/nvidia0",), libraries=("libcuda.so.1",))
    try:
        result = podman.run(bed.rootfs(), name, look, gpu_env("all"))
        assert result.code == 0, result.text
        seen = sight.read(result.out)
        assert seen.nodes["/dev/nvidia0"] == "ENXIO"
        assert (
            seen.libraries["libcuda.so.1"]
            == f"/usr/lib/{rootfs.multiarch()}/{Path(seen.libraries['libcuda.so.1']).name}"
        )
        assert "mode legacy: all" in (script.parent / "runtime.log").read_text()

        refused = podman.run(bed.rootfs(), name, ["/bin/true"], gpu_env("0", "bogus"))
        assert refused.code != 0
        assert "unsupported capabilities found" in refused.text
    finally:
        podman.clean(name)


_CONTAINERD = """\
version = 2
root = "{place}/root"
state = "{place}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.restart",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "{place}/c.sock"
[ttrpc]
  address = "{place}/c.sock.ttrpc"
"""


@pytest.fixture
def containerd(bed: Bed, need: Need) -> Iterator[tuple[list[str], CgroupView]]:
    """A containerd of its own; the command line of its ctr."""
    need("containerd", "ctr", "containerd-shim-runc-v2")
    place = bed.directory("containerd")
    (place / "config.toml").write_text(_CONTAINERD.format(place=place))
    with (place / "log").open("wb") as log:
        daemon = subprocess.Popen(
            ["containerd", "-c", str(place / "config.toml")], stdout=log, stderr=log, env={**bed_path(), **bed.env}
        )
    try:
        end = time.monotonic() + 20
        while not (place / "c.sock").exists() and time.monotonic() < end and daemon.poll() is None:
            time.sleep(0.05)
        assert (place / "c.sock").exists(), (place / "log").read_text()[-2000:]
        yield ["ctr", "-a", str(place / "c.sock")], cgroupview.available()[0]
    finally:
        daemon.terminate()
        daemon.wait(20)


def bed_path() -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def test_ctr(bed: Bed, containerd: tuple[list[str], CgroupView]) -> None:
    ctr, _ = containerd
    name = bed.name("ctr")
    look = sight.arguments(nodes=("/dev/nvidia0",), libraries=("libcuda.so.1",))
    options = ["run", "--rm", "--runc-binary", str(wrapped(bed)), "--cgroup", f"/{name}", "--rootfs"]
    env = [word for variable in gpu_env("0") for word in ("--env", variable)]
    try:
        result = execute([*ctr, *options, *env, str(bed.rootfs()), name, *look], env={**bed_path(), **bed.env})
        if "/cpu.weight: no such file" in result.text:  # as newer runc does always
            pytest.skip("this machine's cgroup v2 has no cpu controller")
        assert result.code == 0, result.text
        assert sight.read(result.out).nodes["/dev/nvidia0"] == "ENXIO"

        bad = [word for variable in gpu_env("99") for word in ("--env", variable)]
        refused = execute([*ctr, *options, *bad, str(bed.rootfs()), name, "/bin/true"], env={**bed_path(), **bed.env})
        assert refused.code != 0
        assert "unknown device" in refused.text
    finally:
        cgroupview.remove(name)


def test_the_toolkit_s_names_start_the_same_program() -> None:
    modules = launchers._MODULES

    assert {modules[name] for name in modules if "runtime" in name and "hook" not in name} == {"hook.runtime.__main__"}
