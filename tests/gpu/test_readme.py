"""README's quick start with Podman on a real GPU, as far as a machine without systemd's agent and a registry goes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import carried, cgroupview, native, readme
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.gpuhost import view
from tests.support.native import CHECKOUT
from tests.support.podmanbox import PodmanBox, quoted
from tests.support.runtimes import CARRY

pytestmark = [pytest.mark.gpu, pytest.mark.system]


@pytest.fixture
def agent(bed: Bed) -> Iterator[RunningAgent]:
    native.build("nvc-monitor", "nvc-supervisor", "nvc-prober")
    with RunningAgent(bed, "") as running:
        yield running


@pytest.fixture
def box(bed: Bed, need: Callable[..., None]) -> Iterator[PodmanBox]:
    if carried.missing("runc"):
        need(*carried.missing("runc"))
    seen = cgroupview.named(view())
    assert seen is not None
    podman = carried.unpack("podman", bed.directory("podman"))
    made = carried.launchers(
        bed.directory("engine"), podman, "runc", env=bed.env, preload=bed.preload("runc", seen.name)
    )
    env = {"PATH": f"{made.bin}:{bed.commands.directory}:{os.environ['PATH']}:/usr/sbin:/sbin"}
    box = PodmanBox(bed.token, str(made.runtime), seen, bed.directory("box"), env, engine=made.settings)
    box.prepare()
    yield box
    box.clean()


def test_podman(bed: Bed, agent: RunningAgent, box: PodmanBox) -> None:
    configure, _, run = readme.block("nvc-py runtime configure --runtime=podman")  # the agent is the fixture
    needed = f"--name={box.name} --pids-limit=-1 --network=none --cgroup-parent=/{box.name}-parent"
    run = run.replace("podman run", f"podman run {needed}").replace("IMAGE", f"--rootfs {bed.rootfs()}")
    settings = f"mkdir -p /etc/nvc && printf '%s' {quoted([agent.settings])} >/etc/nvc/config.toml"
    begun = time.monotonic()

    result = box.script("", f"set -e; {settings}; {configure} >&2; {run}")

    print(f"configured, and a container with a share ran: {time.monotonic() - begun:.1f} s")
    assert (result.code, result.out) == (0, readme.shown()), f"{result.text}\n{agent.log.read_text()}"
    assert len(agent.of("tenant")) == 1


def test_the_demo() -> None:
    """``make demo`` after what it installs: whole GPUs and a share in containers of this machine's own."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "tools.demo"]
    environment = {**os.environ, "NVC_CARRY": str(CARRY)}  # tests see no NVC_ variable
    result = subprocess.run(
        command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    print(f"{result.stdout}\nthe demo: {time.monotonic() - begun:.1f} s")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SIMULATED" not in result.stdout
