"""`systemctl daemon-reload` while a container with a GPU runs, whose cgroup a real systemd manages.

systemd writes the device rules of a scope anew from what the runtime told it when it made the scope. A rule that only a
hook added is lost then ("Failed to initialize NVML: Unknown Error", the most frequent complaint about such hooks).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import runtimes, sight
from tests.support.bed import Bed, device_nodes, gpu_env
from tests.support.bundle import Container, Hook
from tests.support.systemd import SYSTEMD, Systemd
from tests.support.wrapped import Wrapped

pytestmark = pytest.mark.system

NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
MACHINE = "h200"


@dataclass
class Started:
    """A container that runs in a scope of ``systemd``."""

    systemd: Systemd
    runtime: list[str]
    name: str

    def nodes(self) -> dict[str, str]:
        """What a new process of the container may open."""
        look = sight.arguments(nodes=NODES, texts=(), lists=())
        result = self.systemd.run(*self.runtime, "exec", self.name, *look)
        assert result.code == 0, result.text
        return sight.read(result.out).nodes


@pytest.fixture
def systemd(bed: Bed) -> Iterator[Systemd]:
    if not Path(SYSTEMD).exists():
        pytest.skip("systemd is not installed")
    machine = bed.machine(MACHINE)
    # As udev makes them for other devices: runc leaves out of a scope's rules what has none (its debug log says so).
    links = {f"{major}:{minor}": f"{machine}{path}" for path, (major, minor) in device_nodes(machine).items()}
    with Systemd(bed, links) as running:
        yield running


def start(bed: Bed, systemd: Systemd, program: list[str], hooks: dict[str, list[Hook]]) -> Started:
    name = bed.name("c")
    container = Container(bed.rootfs(), ["/bin/sleep", "60"], gpu_env("0"), hooks, cgroup=f"system.slice:nvct:{name}")
    bundle = bed.bundle(container)
    state = bed.directory("state")
    command = [*program, "--root", str(state), "--systemd-cgroup"]
    # The runtime has no terminal and keeps none of our pipes open.
    words = " ".join([*command, "run", "--detach", "--bundle", str(bundle), name])
    result = systemd.run("sh", "-c", f"{words} </dev/null >{state}/out 2>&1")
    assert result.code == 0, (Path(state) / "out").read_text()
    return Started(systemd, [runtimes.find("runc") or "runc", "--root", str(state), "--systemd-cgroup"], name)


def reload(systemd: Systemd) -> None:
    result = systemd.run("systemctl", "daemon-reload")
    assert result.code == 0, result.text


ALLOWED, DENIED = dict.fromkeys(NODES, "ENXIO"), dict.fromkeys(NODES, "EPERM")


def test_a_container_of_nvc_runtime_keeps_its_gpu(bed: Bed, systemd: Systemd) -> None:
    if not runtimes.find("runc"):
        pytest.skip("runc is not installed")
    runc = bed.runtime("runc", "v2")
    wrapped = Wrapped(bed, runc, machine=MACHINE)
    program = ["env", f"XDG_CONFIG_HOME={wrapped.directory}", f"NVC_SIM={wrapped.machine}", bed.commands.runtime]
    started = start(bed, systemd, program, {})
    assert started.nodes() == ALLOWED
    reload(systemd)
    assert started.nodes() == ALLOWED


def test_one_that_only_a_hook_gave_it_to_loses_it(bed: Bed, systemd: Systemd) -> None:
    """The reason for the rules in config.json, and for the page's advice to use CDI with hooks alone."""
    if not runtimes.find("runc"):
        pytest.skip("runc is not installed")
    started = start(bed, systemd, [runtimes.find("runc") or ""], {"prestart": [bed.hook("prestart", machine=MACHINE)]})
    assert started.nodes() == ALLOWED
    reload(systemd)
    assert started.nodes() == DENIED
