"""Tenants with supervisors of their own on the simulated driver, for ``make bench-scale``: started, counted, ended."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nvc.agent import status
from nvc.agent.status import StatusTenant
from nvc.base.errors import NvcError
from nvc.share.protocol import Client
from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.guarded import build_launcher
from tests.support.simgpu import DRIVER, UUID, SimGpu
from tests.support.spoken import Spoken
from tools.measuring import Failed

GIB, MIB = 1 << 30, 1 << 20
#: Seconds of a program's answer: hundreds start and end beside it.
PATIENCE = 120.0
#: What the log says of every container.
USUAL = ("register", "listener", "monitor", "tenant", "gone")
#: An agent that writes down how long its loop had no turn: seconds, of them those on a processor, and those for which
#: it waited for one.
OBSERVED = """
import asyncio, os, runpy, time
from nvc.agent.agent import Agent

async def observe():
    with open(os.environ["NVC_BENCH_TURNS"], "a") as file, open("/proc/thread-self/schedstat", "rb", 0) as waits:
        def waited():
            waits.seek(0)
            return int(waits.read().split()[1]) / 1e9
        while True:
            begun, used, others = time.monotonic(), time.thread_time(), waited()
            await asyncio.sleep(0.005)
            took, used, others = time.monotonic() - begun - 0.005, time.thread_time() - used, waited() - others
            if took > 0.005:
                print(f"{begun} {took} {used} {others}", file=file, flush=True)

flush = Agent._flush
async def both(self, systemd):
    self.observing = asyncio.ensure_future(observe())
    await flush(self, systemd)
Agent._flush = both
runpy.run_module("nvc", run_name="__main__")
"""


class ObservedAgent(RunningAgent):
    program = ("-c", OBSERVED)

    def again(self, program: tuple[str, ...]) -> float:
        """SIGKILL, and another agent in its place; seconds until that is ready. Raises Failed."""
        self.program = program
        self.process.kill()
        self.process.wait()
        begun = time.monotonic()
        self.process = self._start()
        while time.monotonic() - begun < PATIENCE:
            with contextlib.suppress(NvcError), Client(f"{self.directory}/control", 60.0) as client:
                client.call("status", after=status.NO_TENANT)
                return time.monotonic() - begun
            time.sleep(0.005)
        raise Failed("no agent answers")


class Node:
    """An agent and its tenants, whose programs hold a piece of memory and wait."""

    def __init__(self, gpu: SimGpu, attack: Path) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))
        libraries = str(next(gpu.machine.rglob("libcuda.so.1")).parent)
        self.turns = gpu.work / "turns"
        self.turns.touch()
        self.environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": libraries}
        told = {**self.environment, "NVC_BENCH_TURNS": str(self.turns)}
        self.attack = attack
        self.agent = ObservedAgent(gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), told)
        self.programs: dict[str, Spoken] = {}

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs.values():
            program.kill()
        self.agent.__exit__(None, None, None)

    def begin(self, *words: str, **share: int) -> tuple[AgentTenant, Spoken]:
        """A container that starts: its share, and its program."""
        tenant = self.agent.tenant(**share)
        made = Spoken(tenant.wrap([str(self.attack), *words]), self.environment, seconds=PATIENCE)
        self.programs[tenant.name] = made
        return tenant, made

    def start(self, **share: int) -> tuple[str, float]:
        """As ``begin``, until its first call is answered; its name, and the seconds from the program's start."""
        tenant = self.agent.tenant(**share)
        begun = time.monotonic()
        made = Spoken(tenant.wrap([str(self.attack), "batch", "1"]), self.environment, seconds=PATIENCE)
        self.programs[tenant.name] = made
        if made.line() != "bad=0":
            raise Failed(f"{tenant.name} has no memory")
        return tenant.name, time.monotonic() - begun

    def admitted(self, name: str) -> float:
        """When the agent admitted it, in seconds since 1970. Raises Failed."""
        return admitted(self.agent.log, name, PATIENCE)

    def fill(self, count: int, *, channels: bool = False, **share: int) -> list[str]:
        """Many, eight at a time. channels: each has a compute channel in the place of a piece of memory."""
        names = []
        words, wanted = (("contexts", "1", "1"), "made=2") if channels else (("batch", "1"), "bad=0")
        while len(names) < count:
            some = [self.begin(*words, **share) for _ in range(min(8, count - len(names)))]
            for tenant, program in some:
                if (said := program.line()) != wanted:
                    raise Failed(f"{tenant.name} says {said}")
                names.append(tenant.name)
        return names

    def end(self, names: Iterable[str]) -> None:
        """SIGKILL to all of their programs; the containers' first processes go too."""
        gone = [self.programs.pop(name) for name in names]
        for program in gone:
            os.kill(program.process.pid, signal.SIGKILL)
        for program in gone:
            program.kill()

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        with Client(f"{self.agent.directory}/control", 60.0) as made:
            yield made

    def tenants(self) -> dict[str, StatusTenant]:
        with self.client() as client:
            return {one.container: one for one in status.ask(client).tenants}

    def settle(self, count: int, seconds: float = PATIENCE) -> float:
        """Until so many tenants are there; seconds. Raises Failed."""
        begun = time.monotonic()
        if not leftovers.until(lambda: len(self.tenants()) == count, seconds=seconds):
            there = self.tenants()
            lost = [name for name in self.programs if name not in there]
            raise Failed(f"there are {len(there)} tenants, not {count}: {ends(self.agent.log, lost)}")
        return time.monotonic() - begun

    def blocked(self, since: float) -> tuple[float, float, float]:
        """The longest time without a turn of the agent's loop; without what it waited for a processor meanwhile; and
        the most that its thread computed between two.
        """
        rows = [tuple(map(float, line.split())) for line in self.turns.read_text().splitlines()]
        late = [row for row in rows if row[0] >= since]
        own = max((row[1] - row[3] for row in late), default=0.0)
        return max((row[1] for row in late), default=0.0), own, max((row[2] for row in late), default=0.0)


def events(log: Path, container: str) -> Iterator[dict[str, Any]]:
    """Lines of the agent's log about a container; one that is being written is none."""
    for line in log.read_text().splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event.get("container") == container:
                yield event


def admitted(log: Path, name: str, seconds: float) -> float:
    """When the agent admitted a container. Raises Failed.

    Its line is waited for: the container's first call may be answered before the agent has written it.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for one in events(log, name):
            if one["event"] == "tenant":
                return float(one["time"])
        time.sleep(0.01)
    raise Failed(f"the log has no tenant {name}")


def ends(log: Path, names: Sequence[str]) -> str:
    """Why those containers are gone, as far as the log says it."""
    said = ((name, str(one.get("reason") or one["event"])) for name in names for one in events(log, name))
    found = [f"{name} {why}" for name, why in said if why not in USUAL]
    return ", ".join(found[:8] or names[:8]) or "none is missing"


def guards() -> list[int]:
    """Pids of all guard processes in this pid namespace: acceptors, monitors, watchdogs, supervisors, the prober."""
    names = ("nvc-monitor", "nvc-successor", "nvc-watchdog", "nvc-supervisor", "nvc-prober")
    found: list[int] = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and Path(f"/proc/{entry}/comm").read_text().rstrip("\n") in names:
                found.append(int(entry))
    return found


def calls(client: Client, verb: str, **fields: object) -> float:
    begun = time.monotonic()
    client.call(verb, **fields)
    return time.monotonic() - begun
