"""Xid events under a real agent on a simulated machine, whose kernel's log is a pipe: whose they are."""

from __future__ import annotations

import json
import os
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
#: Of the agent's one GPU, which does not know any here. syslog.h: LOG_KERN and LOG_USER with LOG_WARNING.
BUS, KERNEL, USER = "0000:3b:00", 4, 1 << 3 | 4
#: Seconds from an error to its program's end; libcuda takes longer to give back what a context has.
ENDS_AFTER_S = 0.02


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build("cuda_burn", "nvc-prober")
    return directory


def inside(gpu: SimGpu) -> None:
    os.mkfifo("/dev/kmsg")
    with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
        log = os.open("/dev/kmsg", os.O_WRONLY)

        def driver(number: int, process: str = "", priority: int = KERNEL) -> None:
            """As NVIDIA's driver writes it."""
            text = f"NVRM: Xid (PCI:{BUS}): {number}{process}, Ch 00000008"
            os.write(log, f"{priority},1,1,-;{text}\n".encode())

        tenant = agent.tenant(memory=4 * GIB)
        command = [str(build() / "cuda_burn"), "1000", "500000"]
        with Spoken(tenant.wrap(command), environment(gpu), seconds=60) as program:
            assert program.line() == "started=1"
            pid = named(agent, tenant.name)
            driver(79, ", pid=1, name=other")
            driver(31, f", pid={pid}, name=cuda_burn")
            driver(31, f", pid={pid}, name=cuda_burn")
            driver(13, f", pid={pid}, name=cuda_burn", USER)
            assert leftovers.until(lambda: len(told(agent)) >= 3, seconds=20), agent.log.read_text()
            status = tenant.status()
            assert status is not None
            assert status["gpus"][0]["xids"] == {"31": 2}
        found = [(one["xid"], one["container"], one["gpu"]) for one in told(agent)]
        assert found == [(79, "", f"0000{BUS}.0"), (31, tenant.name, UUID), (31, tenant.name, UUID)]
        assert (told(agent)[1]["program"], told(agent)[1]["message"]) == ("cuda_burn", "Ch 00000008")

        # A process that ends by its error takes its container along.
        short = agent.tenant(memory=4 * GIB)
        with Spoken(short.wrap(command), environment(gpu), seconds=60) as program:
            assert program.line() == "started=1"
            pid = named(agent, short.name)
            driver(31, f", pid={pid}, name=cuda_burn")
            time.sleep(ENDS_AFTER_S)
            program.process.kill()
        assert leftovers.until(lambda: len(told(agent)) >= 4, seconds=20), agent.log.read_text()
        assert told(agent)[3]["container"] == short.name
        os.close(log)


def named(agent: RunningAgent, name: str) -> int:
    """A process of the tenant, by the status."""

    def find() -> list[int]:
        tenants = [one for one in agent.status()["tenants"] if one["container"] == name]
        return [process["pid"] for one in tenants for process in one["processes"]]

    assert leftovers.until(lambda: bool(find()), seconds=20)
    return find()[0]


def told(agent: RunningAgent) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in agent.log.read_text().splitlines()]
    return [line for line in lines if line["event"] == "xid"]


def test_an_xid_is_told_with_the_container_whose_process_it_is_of(machine: Path) -> None:
    with_gpu(machine, inside)
