"""A driver that does not come back from the stop of a container's channels: the container ends (a simulated GPU)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.agent_tenants import RunningAgent
from tests.support.guarded import build_launcher
from tests.support.native import build
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build("cuda_burn")
    return directory


def manager_of(gpu: SimGpu) -> int:
    """The process that answers the driver's calls."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                command = Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
            if b"nvc-sim-manager" in command and str(gpu.text).encode() in command:
                return int(entry)
    raise AssertionError("no manager")


def test_a_container_whose_channels_are_not_stopped_is_ended(machine: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
            tenant = agent.tenant(memory=2 * GIB, cap=300)
            command = [str(build() / "cuda_burn"), "60", "500000"]
            with Spoken(tenant.wrap(command), environment(gpu), seconds=60) as burn:
                assert burn.line() == "started=1"

                def is_stopped_at_times() -> bool:
                    known = tenant.status()
                    return known is not None and known["gpus"][0]["frozen_ns"] > 0

                assert leftovers.until(is_stopped_at_times, seconds=30), agent.log.read_text()
                manager = manager_of(gpu)
                os.kill(manager, signal.SIGSTOP)
                try:
                    begin = time.monotonic()
                    assert leftovers.until(lambda: b'"supervisor-died"' in agent.log.read_bytes(), seconds=20)
                    took = time.monotonic() - begin
                    assert tenant.holder.wait(10) == -signal.SIGKILL
                finally:
                    os.kill(manager, signal.SIGCONT)
                assert took > 0.3
                assert leftovers.until(lambda: b'"edge-late"' in agent.log.read_bytes(), seconds=30)
                burn.kill()

    with_gpu(machine, inside)
