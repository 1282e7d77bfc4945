"""The node balance finds memory that got past the guard, and names the container: a guard with holes, simulated."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.attacks import SOURCES
from tests.support.guarded import build_launcher
from tests.support.leftovers import wait_until
from tests.support.manager import ioctl, request
from tests.support.native import build
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.support.tenants import build_static
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB, MIB = 1 << 30, 1 << 20
#: An agent whose supervisors are leaky-supervisor (native/test/leaky_supervisor.c).
LEAKY = """
from nvc.guard import programs
programs.SUPERVISOR = "leaky-supervisor"
import runpy, sys
sys.argv[0] = "nvc"
runpy.run_module("nvc", run_name="__main__", alter_sys=True)
"""
#: Hole -> programs of tests/system/attacks that go through it, with the last thing that each says before it holds.
HOLES: dict[str, tuple[str, tuple[tuple[str, ...], ...], str]] = {
    "phantom device": ("retained", (("phantom",),), "kept="),
    "raced allocation": ("raced", (("class-race", "4000"),), "given="),
    "batch": ("retained", (("uvm-batch",),) * 3, "freed="),
    "granularity": ("granularity", (("batch", "4096", "small"),), "bad="),
    "context buffers": ("context", (("contexts", "64"),), "made="),
    "page tables": ("", (("uvm-tables", "256"),), "places="),
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    build("leaky-supervisor", "nvc-prober")
    return directory


class LeakyAgent(RunningAgent):
    program = ("-c", LEAKY)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [one for one in found if one["event"] == name]


@contextmanager
def leaky(gpu: SimGpu, hole: str, config: str = "") -> Iterator[LeakyAgent]:
    """With an agent, on a driver that counts all memory."""
    file = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
    ioctl(file, request(0xE8, 8, kind="S"), ctypes.create_string_buffer(struct.pack("=II", 1, 0), 8))
    os.close(file)
    given = {**environment(gpu), "NVC_TEST_HOLE": hole}
    with LeakyAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), given, config=config) as agent:
        yield agent


class Late(AssertionError):
    """It was not named in time."""


def started(gpu: SimGpu, tenant: AgentTenant, machine: Path, *words: str) -> Spoken:
    return Spoken(tenant.wrap([str(machine / "attack"), *words]), environment(gpu), seconds=60)


@contextmanager
def victim(gpu: SimGpu, agent: LeakyAgent, machine: Path) -> Iterator[AgentTenant]:
    """A container that holds 2 GiB of 4, and is balanced."""
    tenant = agent.tenant(memory=4 * GIB)
    with started(gpu, tenant, machine, "victim") as program:
        assert program.line() == "memory=0"
        time.sleep(1.6)
        assert agent.events("unaccounted") == []
        yield tenant


@pytest.mark.parametrize("name", HOLES)
def test_what_gets_through_a_hole_is_found_and_named_within_two_seconds(machine: Path, name: str) -> None:
    hole, attacks, last = HOLES[name]

    def inside(gpu: SimGpu) -> None:
        with leaky(gpu, hole) as agent, victim(gpu, agent, machine):
            attacker = agent.tenant(memory=10 * GIB)
            programs = [started(gpu, attacker, machine, *words) for words in attacks]
            try:
                for program in programs:
                    while not program.line().startswith(last):
                        continue
                begun = time.time()
                if not leftovers.until(lambda: agent.events("unaccounted") != [], seconds=15):
                    raise Late("it is not found")  # or a race was lost every time
                found = agent.events("unaccounted")[0]
                leftovers.until(lambda: any(one["container"] for one in agent.events("unaccounted")), seconds=5)
                named = [one for one in agent.events("unaccounted") if one["container"]]
                print(name, found, named)
                assert {one["container"] for one in named} <= {attacker.name}
                assert found["bytes"] > found["bound"] >= 64 * MIB
                if name == "raced allocation" and named:
                    assert named[0]["certain"], "the driver reports it for its processes"
                if not named or named[0]["time"] - begun > 2.0:
                    raise Late(f"{named}, from {begun} on")
            finally:
                for program in programs:
                    program.kill()

    with_gpu(machine, inside, again=Late)


def over(agent: LeakyAgent) -> dict[str, Any]:
    found: list[dict[str, Any]] = wait_until(lambda: agent.events("unaccounted"), "it is found", seconds=20)
    return found[-1]


def test_a_container_of_which_it_is_certain_is_paused_where_the_node_says_so(machine: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with leaky(gpu, "retained", '[agent]\nunaccounted = "freeze"\n') as agent:
            alone = agent.tenant(memory=10 * GIB)
            with started(gpu, alone, machine, "phantom"):
                assert over(agent)["certain"] is True
                wait_until(lambda: (status := alone.status()) and status["paused"], "it is paused", seconds=10)
            (told,) = wait_until(lambda: agent.events("pause"))
            assert told["container"] == alone.name

    with_gpu(machine, inside)


def test_a_container_that_is_merely_likely_is_not_paused_and_its_neighbour_never(machine: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with leaky(gpu, "retained", '[agent]\nunaccounted = "freeze"\n') as agent, victim(gpu, agent, machine) as other:
            attacker = agent.tenant(memory=10 * GIB)
            with started(gpu, attacker, machine, "phantom"):
                found = over(agent)
                assert (found["container"], found["certain"]) == (attacker.name, False)
                time.sleep(5.0)
                assert [(status := one.status()) and status["paused"] for one in (attacker, other)] == [False, False]

    with_gpu(machine, inside)


def test_a_gpu_that_is_not_balanced_takes_no_container_where_the_node_says_so(machine: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with leaky(gpu, "retained", '[agent]\nunaccounted = "stop-admission"\n') as agent:
            attacker, later = agent.tenant(memory=10 * GIB), agent.tenant(memory=GIB)
            with started(gpu, attacker, machine, "phantom"):
                over(agent)
                with started(gpu, later, machine, "victim") as program:
                    assert leftovers.until(lambda: program.process.poll() is not None, seconds=20), "it is ended"
                (told,) = wait_until(lambda: agent.events("refused"))
                assert "are in use that no container is charged for" in told["message"]
            wait_until(lambda: attacker.status() is None, "the attacker is gone", seconds=30)
            time.sleep(2.0)
            with started(gpu, agent.tenant(memory=4 * GIB), machine, "victim") as program:
                assert program.line() == "memory=0", "others are admitted again"

    with_gpu(machine, inside)


def test_a_guard_without_holes_is_balanced(machine: Path) -> None:
    """What its rules charge is what the driver takes: phantoms, batches, small pieces, contexts of groups."""

    def inside(gpu: SimGpu) -> None:
        with leaky(gpu, "") as agent, victim(gpu, agent, machine):
            attacker = agent.tenant(memory=10 * GIB)
            words = [("phantom",), ("uvm-batch",), ("batch", "4096", "small"), ("contexts", "64"), ("churn", "0")]
            for one in words:
                with started(gpu, attacker, machine, *one):
                    time.sleep(2.0)
            assert agent.events("unaccounted") == []

    with_gpu(machine, inside)


def test_no_program_that_is_installed_has_a_hole(machine: Path) -> None:
    place = build("nvc-monitor", "nvc-supervisor", "nvc-prober")
    assert b"NVC_TEST_HOLE" in (place / "leaky-supervisor").read_bytes()
    assert not [
        name for name in ("monitor", "supervisor", "prober") if b"NVC_TEST" in (place / f"nvc-{name}").read_bytes()
    ]
