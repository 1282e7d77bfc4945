"""Energy on a simulated GPU: its counter by NVML, read by the agent's process, divided among tenants that compute."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.agent.energy_counters import EnergyCounters
from nvc.base.errors import AgentError
from nvc.model import Host
from tests.support import leftovers
from tests.support.agent_tenants import RunningAgent
from tests.support.guarded import build_launcher
from tests.support.native import build
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.system.test_computed import GIB, KERNEL
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

#: Of the simulated H200 at rest and while it computes (native/sim/nvml_power.c); and for how long a program computes.
REST_W, WATTS, SECONDS = 70, 700, 8


@pytest.fixture(scope="module")
def machine() -> Iterator[Path]:
    """Where the process that reads, of a user without rights, finds the libraries."""
    build("cuda_burn", "nvc-prober")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        make_machine(Path(place))
        yield Path(place)


def readers() -> list[int]:
    """Those below this process: other tests have some, too."""
    found, parents = [], {}
    for place in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            status, pid = place.read_text(), int(place.parent.name)
            parents[pid] = int(re.findall(r"^PPid:\t(\d+)$", status, re.MULTILINE)[0])
            if status.startswith("Name:\tnvc:[energy]\n") and "\nState:\tZ" not in status:
                found.append(pid)

    def is_below(pid: int) -> bool:
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return [pid for pid in found if is_below(pid)]


def energies(agent: RunningAgent) -> dict[str, float | None]:
    return {one["container"]: one["gpus"][0]["energy"] for one in agent.status()["tenants"]}


def counter() -> float:
    """The GPU's own, in joules."""

    async def read() -> dict[str, int]:
        counters = EnergyCounters(Host())
        try:
            return await counters.read()
        finally:
            await counters.end()

    return asyncio.run(read())[UUID] / 1000


def usage(agent: RunningAgent) -> dict[str, float | None]:
    command = [sys.executable, "-m", "nvc", "share", "usage", f"--agent={agent.directory}/control", "--json"]
    given = {**agent.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, cwd=agent.installed, env=given, capture_output=True, text=True, timeout=60, check=True
    )
    return {one["container"]: one["energy_joules"] for one in json.loads(done.stdout)}


def test_a_tenant_has_the_energy_of_its_computed_time(machine: Path) -> None:
    """The GPU is idle for the rest of the time, and that is no tenant's. A killed agent counts nothing twice."""

    def inside(gpu: SimGpu) -> None:
        os.environ.update(environment(gpu))
        before = counter()
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu)) as agent:
            busy, idle = agent.tenant(memory=4 * GIB), agent.tenant(memory=4 * GIB)
            command = [str(build() / "cuda_burn"), str(SECONDS), str(KERNEL)]
            with Spoken(idle.wrap(["/bin/sleep", "60"]), environment(gpu), seconds=60):
                with Spoken(busy.wrap(command), environment(gpu), seconds=60) as program:
                    assert program.line() == "started=1"
                    assert leftovers.until(lambda: (energies(agent).get(busy.name) or 0) > 0, seconds=30)
                    (reader,) = readers()
                    status = Path(f"/proc/{reader}/status").read_text()
                    assert re.search(r"^CapEff:\s+0+$", status, re.M)
                    assert re.search(r"^Uid:\s+65534\s", status, re.M)
                    done = dict([program.line().split("=") for _ in range(3)])
                written = usage(agent)
                assert written[idle.name] == 0.0
                own = written[busy.name]
                assert own is not None
                part = float(done["per_second"]) * KERNEL / 1e9
                least = REST_W + (WATTS - REST_W) * part  # on average, if it computed evenly
                assert 0.6 * SECONDS * part * least < own < 1.1 * SECONDS * part * WATTS
                assert own < counter() - before
                agent.kill()
                assert leftovers.until(lambda: energies(agent).get(idle.name) is not None, seconds=30)
                assert usage(agent) == written
            assert leftovers.until(lambda: not readers(), seconds=30), "nothing is read without containers"

    with_gpu(machine, inside)


def test_what_reads_says_what_is_wrong(tmp_path: Path) -> None:

    async def read(host: Host) -> dict[str, int]:
        counters = EnergyCounters(host)
        try:
            return await counters.read()
        finally:
            await counters.end()

    tmp_path.chmod(0o755)
    with pytest.raises(AgentError, match=r"energy is not read: load library failed: .*no such file"):
        asyncio.run(read(Host(root=str(tmp_path))))
    assert not readers()
