"""What people and Prometheus see of a program behind a real guard, on a simulated GPU: the same everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import leftovers
from tests.support.agent_tenants import RunningAgent
from tests.support.guarded import build_launcher
from tests.support.loopback import free_address
from tests.support.native import CHECKOUT, build
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build("cuda_churn")
    return directory


def nvc(agent: RunningAgent, *words: str) -> str:
    """What the command prints."""
    return subprocess.run(
        [sys.executable, "-m", "nvc", *words],
        cwd=CHECKOUT,
        env={**agent.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def read(address: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Every sample: name -> labels' values without the GPU's, in the labels' order -> value."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in families:
        for sample in family.samples:
            labels = tuple(value for name, value in sorted(sample.labels.items()) if name != "gpu")
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def see(gpu: SimGpu) -> None:
    address = free_address()
    config = f'[agent]\nmetrics = "{address}"\n'
    launcher = build_launcher(gpu.work)
    with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, launcher, environment(gpu), config=config) as agent:
        control = f"--agent={agent.directory}/control"
        following = Spoken(
            [sys.executable, "-m", "nvc", "share", "events", "--follow", "--json", "--kind=denial", control],
            {**agent.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            seconds=60,
        )
        tenant = agent.tenant(memory=2 * GIB, weight=30)
        program = Spoken(tenant.wrap([str(build() / "cuda_churn"), "1000"]), environment(gpu), seconds=60)
        try:
            program.line()
            assert leftovers.until(lambda: denied(tenant.status()) > 0, seconds=40), "it never reached its limit"
            seen = json.loads(nvc(agent, "top", "--json", control, f"--store={agent.store}"))
            # A reader that is quick sees the context's own timeslice refused first.
            while (told := json.loads(following.line()))["reason"] != "over-quota":
                continue
            metrics = read(address)
            table = nvc(agent, "top", "--once", control, f"--store={agent.store}")
        finally:
            program.kill()
            following.kill()
        [share] = next(one for one in seen["gpus"] if one["uuid"] == UUID)["shares"]
        assert (tenant.name, "guard", 2 * GIB, 30) == tuple(
            share[name] for name in ("container", "enforcer", "limit", "weight")
        )
        assert 0 < share["memory"] <= 2 * GIB
        assert share["denials"]["over-quota"] >= 1
        assert ["cuda_churn"] == [process["name"] for process in share["processes"]]
        assert (tenant.name, "over-quota", share["processes"][0]["pid"]) == (
            told["container"],
            told["reason"],
            told["pid"],
        )
        assert 2 * GIB == metrics["nvc_share_limit_bytes"][tenant.name,]
        assert 0 < metrics["nvc_share_memory_bytes"][tenant.name,] <= 2 * GIB
        assert metrics["nvc_guard_denials_total"][tenant.name, "over-quota"] >= share["denials"]["over-quota"]
        assert metrics["nvc_guard_notifications_total"][tenant.name,] > 10
        assert 0 < metrics["nvc_guard_handling_seconds_total"][tenant.name,] < 100
        assert any(line.startswith(tenant.name) and "guard" in line for line in table.splitlines())
        # It ends: so do its line, its series and its memory.
        assert leftovers.until(lambda: tenant.status() is None, seconds=40)
        assert tenant.name not in nvc(agent, "top", "--once", control, "--store=/nowhere")
        assert (tenant.name,) not in read(address).get("nvc_share_memory_bytes", {})


def denied(status: dict[str, object] | None) -> int:
    denials = status["denials"] if status is not None else {}
    assert isinstance(denials, dict)
    return int(denials.get("over-quota", 0))


def test_top_events_and_metrics_tell_the_same(machine: Path) -> None:
    with_gpu(machine, see)
