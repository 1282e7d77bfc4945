"""Utilisation and power in ``nvc-py top``: what a driver reports, what it does not, and in time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.status import AgentStatus, StatusGpu
from nvc.agent.view import collect, gauged
from nvc.base.errors import InitializationError
from nvc.cli.main import main
from nvc.cli.top import gauges as top_gauges
from nvc.cli.top import text
from nvc.cli.top.gauges import Gauges
from nvc.driver.facts import NvmlLoad, NvmlLoads
from nvc.sim import MACHINE_FILE
from nvc.sim.create import create
from nvc.sim.description import load
from tests.support.agent_status import GIB, UUIDS, saying, status, tenant
from tests.support.fake_agent import FakeAgent
from tests.support.native import build

Top = Callable[..., tuple[int, str, str]]


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Path]:
    build()
    return lambda name: Path(create(str(tmp_path / name), name).root)


@pytest.fixture
def top(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Top:
    """``top`` on a machine, with an agent that knows its GPUs."""

    def run(root: Path, *words: str) -> tuple[int, str, str]:
        gpus = tuple(StatusGpu(gpu.uuid, gpu.minor, 80 * GIB, "weighted") for gpu in load(root.name).gpus)
        socket = str(tmp_path / "control")
        with FakeAgent(socket, status=saying(AgentStatus("1.2", "weighted", gpus, ()))):
            code = main(
                ["--sim", str(root), "top", "--agent", socket, "--store", str(tmp_path / "none"), *words], "nvc-py"
            )
        return code, *capfd.readouterr()

    return run


def test_each_gpu_has_its_utilisation_and_power(machine: Callable[[str], Path], top: Top) -> None:
    root = machine("h100x8")
    code, out, _ = top(root, "--once")
    lines = [line for line in out.splitlines() if line.startswith("GPU ")]
    assert (code, len(lines)) == (0, 8)
    assert all("  util   0%  power  70/700W  policy weighted" in line for line in lines), (
        "the simulated NVML's, at rest"
    )
    seen = json.loads(top(root, "--json")[1])["gpus"][0]
    assert (seen["utilization"], seen["power"], seen["power_limit"]) == (0.0, 70.0, 700.0)


def test_a_gpu_under_mig_has_no_utilisation_and_power_all_the_same(machine: Callable[[str], Path], top: Top) -> None:
    root = machine("a100-mig-dev")
    is_mig = {gpu.uuid: gpu.mig_enabled for gpu in load("a100-mig-dev").gpus}
    found = {gpu["uuid"]: (gpu["utilization"], gpu["power"]) for gpu in json.loads(top(root, "--json")[1])["gpus"]}
    assert found == {uuid: (None if mig else 0.0, 40.0) for uuid, mig in is_mig.items()}
    assert {True, False} == set(is_mig.values())
    assert "  util    -  power  40/400W" in top(root, "--once")[1]


def test_what_the_driver_does_not_report_is_a_dash(machine: Callable[[str], Path], top: Top) -> None:
    root = machine("h200")
    description = root / MACHINE_FILE.lstrip("/")
    whole = description.read_text()
    for fault, expected in (
        ("nvmlDeviceGetPowerUsage error 3", "util   0%  power        -"),
        ("nvmlDeviceGetEnforcedPowerLimit error 13", "util   0%  power      70W"),
        ("nvmlInit error 9", "util    -  power        -"),
    ):
        description.write_text(whole.replace("\nnodes=", f"\nfault={fault}\nnodes="))
        code, out, _ = top(root, "--once")
        assert (code, expected in out) == (0, True), (fault, out)


def test_a_driver_that_hangs_is_not_waited_for(machine: Callable[[str], Path], top: Top) -> None:
    root = machine("h200")
    description = root / MACHINE_FILE.lstrip("/")
    description.write_text(description.read_text().replace("\nnodes=", "\nfault=nvmlInit hang\nnodes="))
    began = time.monotonic()
    code, out, _ = top(root, "--once")
    # ONCE_S for the answer; then the service is ended (rpc.client: EXIT_TIMEOUT_S), with the picture on the screen.
    assert time.monotonic() - began < top_gauges.ONCE_S + 3
    assert (code, "util    -  power        -" in out) == (0, True)


class Pending:
    def __init__(self, ready: bool) -> None:
        self.ready = ready

    def is_ready(self, seconds: float = 0.0) -> bool:
        return self.ready


class Driver:
    """In the place of ``nvc.driver.service.DriverClient``."""

    def __init__(self) -> None:
        self.questions = 0
        self.closed = False
        self.pending = Pending(True)
        self.failure: Exception | None = None

    def begin_load(self) -> Any:
        self.questions += 1
        return self.pending

    def load(self, pending: Any) -> NvmlLoads:
        if self.failure is not None:
            raise self.failure
        return NvmlLoads((NvmlLoad(UUIDS[0], self.questions, 70_000, 700_000),))

    def close(self, *, wait: bool = True) -> None:
        self.closed = True


def test_one_service_answers_every_look(tmp_path: Path) -> None:
    driver, started = Driver(), list[Driver]()

    def start() -> Any:
        started.append(driver)
        return driver

    gauges = Gauges(start)
    seen = []
    for _ in range(3):
        gauges.ask()
        seen.append(gauges.read()[UUIDS[0]].utilization)
    assert (seen, len(started), driver.questions) == ([1, 2, 3], 1, 3)
    driver.pending = Pending(False)
    gauges.ask()
    assert gauges.read()[UUIDS[0]].utilization == 3, "the last answer, while there is none"
    gauges.ask()
    assert driver.questions == 4, "an unanswered question is not put again"
    driver.pending.ready = True
    assert gauges.read()[UUIDS[0]].utilization == 4
    gauges.close()
    assert driver.closed


def test_a_service_that_fails_is_not_started_again() -> None:
    driver, started = Driver(), list[Driver]()
    driver.failure = InitializationError("nvml error: driver not loaded")

    def start() -> Any:
        started.append(driver)
        return driver

    gauges = Gauges(start)
    for _ in range(3):
        gauges.ask()
        assert gauges.read() == {}
    assert (len(started), driver.closed, gauges.is_settled) == (1, True, True)


@pytest.mark.parametrize("columns", range(20, 160, 4))
def test_a_gpus_line_fits_its_window(columns: int) -> None:
    seen = gauged(collect(status(tenant()), (), 0.0), {UUIDS[0]: NvmlLoad(UUIDS[0], 43, 312_400, 700_000)})
    line = next(line.plain for line in text.picture(seen, columns) if line.plain.startswith("GPU 0"))
    assert len(line) <= max(columns, 51)
    assert ("  util  43%" in line) == (columns >= 64 or 100 > columns >= 60), line
    if columns >= 132:
        assert line.endswith("  util  43%  power 312/700W  limits 12%  policy weighted")


def test_the_service_is_gone_when_top_has_ended(machine: Callable[[str], Path], top: Top) -> None:
    top(machine("h200"), "--once")
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert "nvc:[driver]" not in [Path(f"/proc/{pid}/comm").read_text().strip() for pid in children]
