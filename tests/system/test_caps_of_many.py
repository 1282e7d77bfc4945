"""Caps of more tenants than a GPU had room for: each is kept by its supervisor, and one too many is refused."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.agent.status import TenantGpu, ask
from nvc.base.errors import NvcError
from nvc.share.protocol import Client
from tests.support import leftovers
from tests.support.agent_tenants import RunningAgent
from tests.support.attacks import SOURCES
from tests.support.guarded import build_launcher
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.support.tenants import build_static
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

TENANTS = 65
#: A driver that takes 650 edges a second: those of 65 tenants at a period of 200 ms, which is the longest one here.
SLOW_DRIVER = """
import runpy
from nvc.agent import scheduled, scheduler
from nvc.guard import scheduling
scheduled.EDGES = scheduler.EDGES = scheduling.EDGES = 650
scheduled.MOST_PERIOD_US = scheduler.MOST_PERIOD_US = scheduling.MOST_PERIOD_US = 200_000
runpy.run_module("nvc", run_name="__main__")
"""
SECONDS, LOOKS = 4.0, 60


class SlowDriver(RunningAgent):
    program = ("-c", SLOW_DRIVER)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    return directory


def every(seconds: float, count: int) -> Iterator[int]:
    """Numbers, at irregular times: what is looked at is regular."""
    for number in range(count):
        time.sleep(random.uniform(0, 2 * seconds))
        yield number


def gpus(client: Client) -> dict[str, TenantGpu]:
    return {one.container: one.gpus[0] for one in ask(client).tenants}


def test_each_of_65_caps_is_kept_and_the_next_one_is_refused(machine: Path) -> None:
    """The 65th ended the caps of all."""

    def inside(gpu: SimGpu) -> None:
        agent = SlowDriver(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu))
        with agent, contextlib.ExitStack() as stack:

            def start(cap: int) -> Spoken:
                command = agent.tenant(cap=cap).wrap([str(machine / "attack"), "batch", "1"])
                return stack.enter_context(Spoken(command, environment(gpu), seconds=60))

            programs = [start(100) for _ in range(TENANTS)]
            assert [program.line() for program in programs] == ["bad=0"] * TENANTS
            client = stack.enter_context(Client(f"{agent.directory}/control", 60.0))
            assert leftovers.until(lambda: all(one.cap_in_force for one in gpus(client).values()), seconds=30)
            time.sleep(0.5)
            looks = [gpus(client) for _ in every(SECONDS / LOOKS, LOOKS)]
            on = [sum(not look[name].frozen for look in looks) / len(looks) for name in looks[0]]
            assert len(on) == TENANTS
            print("on:", min(on), max(on), sum(on) / len(on))
            # The plans are exact; 650 edges a second of a simulated driver beside other tests are not.
            assert 0.07 < sum(on) / len(on) < 0.14
            assert max(on) < 0.4, "of so few looks, and a pause of the machine lengthens what is on"
            assert not any(one.frozen_ns for one in looks[-1].values()), "they have no groups"

            refused = start(100)
            refused.process.wait(30)
            events = [json.loads(line) for line in agent.log.read_text().splitlines() if '"refused"' in line]
            assert f"its cap cannot be kept: {TENANTS} containers with a cap are there" in events[-1]["message"]
            assert "a weight has no such limit" in events[-1]["hint"]

            free = start(1000)
            assert free.line() == "bad=0"
            name = agent.tenants[-1].name
            with pytest.raises(NvcError, match="its cap cannot be kept"):
                client.call("set", container=name, spec="cap=10%")
            assert gpus(client)[name].cap == 0, "nothing was written"
            client.call("set", container=agent.tenants[0].name, spec="cap=5%")
            with pytest.raises(NvcError, match="policy fair cannot be kept"):
                client.call("policy", policy="fair")
            caps = [one.cap_in_force for one in gpus(client).values() if one.cap]
            assert caps == [True] * TENANTS

    with_gpu(machine, inside)
