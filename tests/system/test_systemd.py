"""`systemctl daemon-reload` while a container with a GPU runs, whose cgroup a real systemd manages.

systemd writes the device rules of a scope anew from what the runtime told it when it made the scope. A rule that only a
hook added is lost then ("Failed to initialize NVML: Unknown Error", the most frequent complaint about such hooks).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import leftovers, runtimes, sight
from tests.support.bed import Bed, device_nodes, gpu_env
from tests.support.bundle import Container, Hook
from tests.support.native import CHECKOUT
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
    # systemd writes cgroups' rules after it has answered; 257 (Debian 13) when a property of the scope changes, too.
    if not leftovers.until(lambda: started.nodes() == DENIED, seconds=5):
        changed = systemd.run("systemctl", "set-property", "--runtime", f"nvct-{started.name}.scope", "TasksMax=100")
        assert changed.code == 0, changed.text
    assert leftovers.until(lambda: started.nodes() == DENIED, seconds=30)


def test_without_mig_instances_no_program_is_started(bed: Bed) -> None:
    """The refresh of the CDI specification started one each minute on every node."""
    if not Path(SYSTEMD).exists():
        pytest.skip("systemd is not installed")
    with Systemd(bed, {}) as running:

        def sh(text: str) -> str:
            return running.run("sh", "-c", text).out

        # Its jobs would be this machine's: sysinit.target emptied /tmp.
        assert running.run("systemctl", "cat", "sysinit.target").code != 0
        started = "/bin/sh -c 'date >>/run/started' sh"
        for kind, changes in (
            ("timer", {"minutely": "*:*:*", "AccuracySec=10s": "AccuracySec=10ms"}),
            ("service", {"/proc/driver/nvidia/capabilities": "/run/caps", "/bin/systemctl": started}),
        ):
            text = (CHECKOUT / f"packaging/systemd/nvc-cdi-refresh-mig.{kind}").read_text()
            # The machine's units are not there.
            for old, new in {**changes, "[Unit]\n": "[Unit]\nDefaultDependencies=no\n"}.items():
                assert text.count(old) == 1
                text = text.replace(old, new)
            (bed.place / kind).write_text(text)
            sh(f"cp {bed.place}/{kind} /run/systemd/system/nvc-cdi-refresh-mig.{kind}")
        sh("systemctl daemon-reload; systemctl start nvc-cdi-refresh-mig.timer; mkdir -p /run/caps/gpu0/mig")
        show = "systemctl show -p ConditionTimestamp -p ConditionResult nvc-cdi-refresh-mig.service"
        assert leftovers.until(lambda: "ConditionResult=no" in sh(show), seconds=20), sh(show)
        assert sh("cat /run/started") == ""

        sh("mkdir /run/caps/gpu0/mig/gi1")
        assert leftovers.until(lambda: sh("cat /run/started") != "", seconds=20), sh(show)
        # The instances went: once more, for a specification that has them.
        sh("systemctl stop nvc-cdi-refresh-mig.timer; rmdir /run/caps/gpu0/mig/gi1; rm -f /run/started; mkdir /run/nvc")
        sh("systemctl start nvc-cdi-refresh-mig.service")
        assert sh("cat /run/started") == ""
        sh("touch /run/nvc/cdi-mig; systemctl start nvc-cdi-refresh-mig.service")
        assert sh("cat /run/started") != ""
