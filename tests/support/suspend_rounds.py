"""Rounds of ``share suspend`` and ``resume`` while programs compute, and their usage beside the device's counters."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from nvc.agent import accounting
from nvc.base.errors import NvcError
from nvc.share.protocol import Client
from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.device_counters import DeviceCounters
from tests.support.spoken import Silent, Spoken

#: Seconds that a round is suspended for at least and at most, and that it computes before; for its resume to find room.
AWAY_S, WORK_S, ROOM_S = (0.2, 0.8), (0.3, 1.5), 30.0


T = TypeVar("T")


@dataclass
class Rounds:
    """Of one tenant. jobs: what its programs are asked in a round; the n-th round has the n-th job, and so on again.

    answers: of each job by each program, when nothing was suspended. flights: from when to when (CLOCK_MONOTONIC) a
    suspend or a resume was being made. A failure ends the rounds.
    """

    name: str
    tenant: AgentTenant
    programs: Sequence[Spoken]
    jobs: Sequence[str]
    answers: list[list[str]] = field(default_factory=list)
    done: int = 0
    same: int = 0
    failures: list[str] = field(default_factory=list)
    flights: list[tuple[float, float]] = field(default_factory=list)
    outs: list[float] = field(default_factory=list)
    backs: list[float] = field(default_factory=list)

    def undisturbed(self) -> float:
        """Learn the answers; when the last one came."""
        self.answers = [self.ask(job) for job in self.jobs]
        return time.monotonic()

    def run(self, until: float) -> None:
        """Raises nothing. until: CLOCK_MONOTONIC."""
        pause = random.Random(self.name)
        try:
            while time.monotonic() < until:
                place = self.done % len(self.jobs)
                for program in self.programs:
                    program.tell(self.jobs[place])
                time.sleep(pause.uniform(*WORK_S))
                self.outs.append(self._call("suspend"))
                time.sleep(pause.uniform(*AWAY_S))
                self.backs.append(self._call("resume", wait=ROOM_S))
                self.done += 1
                self.same += [program.line() for program in self.programs] == self.answers[place]
        except (NvcError, Silent) as error:
            self.failures.append(f"round {self.done + 1}: {error}; refused by the guard: {self._denials()}")

    def _denials(self) -> object:
        try:
            return (self.tenant.status() or {}).get("denials")
        except NvcError as error:
            return error

    def ask(self, job: str) -> list[str]:
        """Of each program, and wait. Raises Silent."""
        for program in self.programs:
            program.tell(job)
        return [program.line() for program in self.programs]

    def _call(self, verb: str, **fields: object) -> float:
        """Seconds. Raises NvcError."""
        begun = time.monotonic()
        with Client(f"{self.tenant.agent.directory}/control", 120.0) as client:
            client.call(verb, container=self.tenant.name, **fields)
        self.flights.append((begun, time.monotonic()))
        return self.flights[-1][1] - begun


def in_parallel(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Raises what one of them raises."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


class Work:
    """What ``burn samples`` says, collected in a thread: pieces of work by then, at moments of CLOCK_MONOTONIC."""

    def __init__(self, burn: Spoken, seconds: float, every_s: float) -> None:
        self.pieces: list[tuple[float, float]] = []
        burn.tell(f"samples {seconds} {every_s * 1e6:.0f}")
        self._burn = burn
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        try:
            while (line := self._burn.line()) != "end":
                _, when, pieces = line.split()
                self.pieces.append((int(when) / 1e9, float(pieces)))
        except Silent:
            pass  # what there is has to reach to the end, which ``rate`` looks at

    def end(self) -> None:
        self._thread.join(60)

    def rate(self, spans: Sequence[tuple[float, float]]) -> float:
        """Pieces a second, of samples that begin and end within one of the spans. Raises AssertionError without any."""
        done = passed = 0.0
        for (t1, before), (t2, after) in zip(self.pieces, self.pieces[1:], strict=False):
            if any(begin <= t1 and t2 <= end for begin, end in spans):
                done, passed = done + after - before, passed + t2 - t1
        assert passed, f"no work in {spans}; samples: {self.pieces[:1]} to {self.pieces[-1:]}"
        return done / passed

    def lowest(self, begin: float, end: float, window: float) -> float:
        """Pieces a second in the worst window of so many seconds."""
        within = [one for one in self.pieces if begin <= one[0] <= end]
        rates, first = [], 0
        for when, pieces in within:
            while when - within[first][0] > window:
                first += 1
            if first:
                when0, pieces0 = within[first - 1]
                rates.append((pieces - pieces0) / (when - when0))
        return min(rates, default=0.0)


@dataclass(frozen=True)
class Compared:
    """Of one kind. ours: the sum of the tenants'; device: what the device counted."""

    what: str
    unit: str
    ours: float
    device: float

    @property
    def error(self) -> float:
        """Part of the device's."""
        return self.ours / self.device - 1 if self.device else float("inf")


class Usage:
    """What ``nvc-py share usage`` says of the time between ``begin`` and ``end``, and what the device counted."""

    def __init__(self, agent: RunningAgent, file: Path, environment: Mapping[str, str]) -> None:
        """To be made before tenants have memory: what the GPU has in use is no tenant's."""
        self._agent = agent
        self._counters = DeviceCounters(agent.uuid, file, environment)
        self.begin = self.end = self._empty = 0.0

    def __enter__(self) -> Self:
        self._counters.__enter__()
        assert leftovers.until(lambda: self._counters.counted().count > 4, seconds=30), "NVML does not answer"
        self._empty = self._counters.counted().last_memory
        return self

    def __exit__(self, *error: object) -> None:
        self._counters.__exit__(*error)

    def start(self) -> None:
        """Tenants are there; what they used before is left out."""
        self._flush()
        self.begin = time.time()
        self._energy = self._gpu_energy()

    def stop(self) -> None:
        self._flush()
        self.end = time.time()
        self._energy = self._gpu_energy() - self._energy
        time.sleep(1.5)  # for a reading after that

    def compare(self) -> list[Compared]:
        """All tenants together. Raises AssertionError."""
        used = list(accounting.read(self._agent.directory, self.begin, self.end))
        computed, energy = sum(one.computed for one in used), sum(one.energy or 0.0 for one in used)
        memory = sum(one.byte_seconds for one in used)
        counted = self._counters.counted()
        between = self.begin, self.end
        in_use = counted.memory(*between) - self._empty * (self.end - self.begin)
        return [
            Compared("computed time of all tenants", "s", computed, counted.busy(*between)),
            Compared("energy of all tenants", "J", energy, counted.energy_while_busy(*between)),
            *([Compared("energy of the GPU", "J", self._energy, counted.energy(*between))] if self._energy else []),
            Compared("memory of all tenants", "GiB s", memory / (1 << 30), in_use / (1 << 30)),
        ]

    def _flush(self) -> None:
        with Client(f"{self._agent.directory}/control", 30.0) as client:
            client.call("usage")

    def _gpu_energy(self) -> float:
        """0.0: the agent knows no GPUs (on the simulated machine)."""
        return sum(one["energy"] or 0.0 for one in self._agent.status()["gpus"] if one["uuid"] == self._agent.uuid)
