"""`make bench-gpu`: services beside neighbours in each way of sharing; one page of results, with a plot.

Rows come in the order of their importance, and each is written as soon as it is measured: a run that is cut keeps what
it had. A row is of windows alone and beside that take turns, with the same arrivals in every row. Variables:

NVC_BENCH_SECONDS   what all may take, 1500 if not said; no row begins for which there is no time.
NVC_BENCH_WINDOW    seconds of a window beside (those alone are half as long), 20 if not said.
NVC_BENCH_ROWS      a regular expression: only rows whose "SERVICE beside NEIGHBOUR: WAY" it is found in.

Results: services-page.md, services.svg, services.json and the part's table in NVC_GPU_TABLES (build/gpu-share if not
said).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nvc.share.protocol import Client
from tests.gpu.bench.conftest import OWN_PROGRAMS
from tests.gpu.enforce.conftest import PARTS, Starts
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.bed import Bed
from tests.support.frameworks import require
from tests.support.gpumeasure import SHARE_PROGRAMS, first_gpu, nodes
from tests.support.service_rows import Request, Row, page, picture
from tests.support.share_table import Table
from tests.support.spoken import Silent, Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system, pytest.mark.timeout(1800)]

GIB = 1 << 30
#: Read once: tests see no NVC_ variable.
SECONDS = float(os.environ.get("NVC_BENCH_SECONDS", "1500"))
WINDOW = float(os.environ.get("NVC_BENCH_WINDOW", "20"))
ROWS = re.compile(os.environ.get("NVC_BENCH_ROWS", ""))
LOAD, SEED, CLOSED, SETTLE = 0.3, 20261125, 200, 2.5
#: What a neighbour has launched is over after it.
REST = 1.0
#: Of the highest SM clock, on a busy GPU; below it heat, or the host, holds the GPU back.
LEAST_CLOCK = 0.5
#: What starting a service and its neighbour may take; what a row takes beside its windows.
STARTS_S, BESIDE_S = 25.0, 3.5

#: Way -> what the agent is told of the service, and of the neighbour.
PLAIN = "priority=normal,weight=10"
GUARDED = {
    "priority=service,latency=1ms": ("priority=service,latency=1ms,weight=10", PLAIN),
    "priority high : low": ("priority=high,weight=10", "priority=low,weight=10"),
    "weights 90:10": ("priority=normal,weight=90", "priority=normal,weight=10"),
    "neighbour cap=50%": (PLAIN, f"{PLAIN},cap=50%"),
}
CLASS, DRIVER, MPS, HALF = "priority=service,latency=1ms", "the driver's slices", "MPS", "MPS, half the threads"
SERVICES = ("encoder", "vision", "decode")
NEIGHBOURS = ("training", "memory", "products", "kernels of 100 ms")
#: (service, neighbour, ways), the most important first; those of one line are measured in one start of both programs.
JOBS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    *((service, "training", (CLASS, "priority high : low", "weights 90:10")) for service in ("encoder", "vision")),
    *((service, "training", (DRIVER,)) for service in ("encoder", "vision")),
    ("encoder", "kernels of 100 ms", (CLASS,)),
    *((service, "training", (way,)) for service in ("encoder", "vision") for way in (MPS, HALF)),
    *((service, "training", ("neighbour cap=50%",)) for service in ("encoder", "vision")),
    *((service, "training", (*GUARDED,)) for service in ("encoder", "vision")),  # the second time
    *((service, "training", (way,)) for service in ("encoder", "vision") for way in (DRIVER, MPS, HALF)),
    *(
        (service, neighbour, (way,))
        for neighbour in NEIGHBOURS
        for service in SERVICES
        if (service, neighbour) not in (("encoder", "training"), ("vision", "training"))
        for way in (CLASS, DRIVER, MPS)
    ),
)


class Results:
    """Rows, written anew with each."""

    def __init__(self, table: Table) -> None:
        self.table, self.rows, self.left_out = table, list[Row](), list[str]()

    def add(self, row: Row) -> None:
        self.rows.append(row)
        cells = row.cells()
        name = f"{row.service} beside {row.neighbour}: {row.way}"
        judged = row.is_met if row.way == CLASS else None
        print(f"{name}: {'; '.join(cells[1:])}", flush=True)
        got, kept = "; ".join(f"p{part} {cell}" for part, cell in zip((50, 95, 99), cells[1:], strict=False)), cells[4]
        self.table.add(
            name, got=got, base=cells[7], ratio=f"kept {kept}; within {cells[5]}; own time {cells[6]}", good=judged
        )
        self.write()

    def write(self) -> None:
        place = self.table.path.parent
        (place / "services-page.md").write_text(page(self.rows, self.table.machine, "services.svg", self.left_out))
        (place / "services.svg").write_text(picture(self.rows))
        (place / "services.json").write_text(json.dumps([dataclasses.asdict(row) for row in self.rows]))


@contextmanager
def mps(threads: int) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Variables of a service and its neighbour under MPS. Raises Silent where its control daemon does not start."""
    found = shutil.which("nvidia-cuda-mps-control", path=f"{os.environ['PATH']}:/usr/local/nvidia/bin")
    if found is None:
        raise Silent("no nvidia-cuda-mps-control here")
    place = Path(f"/tmp/nvc-mps-{os.getpid()}")
    place.mkdir(mode=0o700)
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(place), "CUDA_MPS_LOG_DIRECTORY": str(place)}
    variables = {**os.environ, **own}
    try:
        began = subprocess.run([found, "-d"], env=variables, capture_output=True, text=True, timeout=20, check=False)
        if began.returncode:
            raise Silent(f"MPS does not start: {began.stderr}")
        try:
            yield own, {**own, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(threads)}
        finally:
            subprocess.run(
                [found], input="quit\n", env=variables, text=True, capture_output=True, timeout=30, check=False
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)


def clock() -> float:
    """The part of its highest SM clock at which the busy GPU runs. Raises AssertionError below LEAST_CLOCK."""
    query = "clocks.sm,clocks.max.sm,clocks_event_reasons.active"
    command = ["nvidia-smi", f"--id={first_gpu()[0]}", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    now, most, reasons = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    assert int(now) >= LEAST_CLOCK * int(most), (
        f"the GPU is held back to {now} of {most} MHz, clocks_event_reasons.active {reasons}"
    )
    return int(now) / int(most)


class Pair:
    """A service and its neighbour, started together. Raises Silent."""

    def __init__(
        self,
        begin: Callable[[int, str, tuple[object, ...]], Spoken],
        service: str,
        neighbour: str,
        tenants: Sequence[AgentTenant],
    ) -> None:
        self.tenants = tenants
        programs: dict[str, tuple[object, ...]] = {
            "training": (SHARE_PROGRAMS / "torch_steps.py",),
            "memory": (OWN_PROGRAMS / "torch_neighbour.py", "memory"),
            "products": (OWN_PROGRAMS / "torch_neighbour.py", "products"),
            "kernels of 100 ms": ("burn", "plain", 100),
        }
        program, *arguments = programs[neighbour]
        self.service = begin(0, str(OWN_PROGRAMS / "torch_service.py"), (service,))
        self.neighbour = begin(1, str(program), tuple(arguments))
        assert self.neighbour.line().startswith("ready")
        #: burn computes from its start on, the others while they are asked for a rate.
        self.rests = program == "burn"
        self.turn("rest")
        assert self.service.line() == "ready"
        self.capacity = float(self.service.ask(f"closed {CLOSED}"))
        self.turn("work")
        self.neighbour.ask("rate 0.5")
        self.neighbour.tell("rate 3")
        time.sleep(1.5)
        self.clock = clock()
        self.most = float(self.neighbour.line())

    def turn(self, word: str) -> None:
        """word: "rest" or "work", of the neighbour."""
        if self.rests:
            assert self.neighbour.ask(word) == f"{word}s"

    def window(self, seconds: float, seed: int) -> list[Request]:
        answer = json.loads(self.service.ask(f"open {LOAD * self.capacity} {seconds} {seed}"))
        return [Request(took / 1000, own / 1000, behind) for took, own, behind in answer]

    def measure(self, row: Row) -> Row:
        """Alone, beside, alone, beside."""
        for seed in (SEED, SEED + 1):
            self.turn("rest")
            time.sleep(REST)
            row.alone += self.window(WINDOW / 4, seed)
            self.turn("work")
            self.neighbour.tell(
                f"rate {WINDOW / 2 + SETTLE}"
            )  # longer than the window: the service is never without it
            time.sleep(SETTLE / 2)
            row.beside += self.window(WINDOW / 2, seed)
            row.rates.append(float(self.neighbour.line()))
        return row


class Bench:
    def __init__(self, start: Starts, agent: RunningAgent, results: Results) -> None:
        self.start, self.agent, self.results = start, agent, results
        self.until = time.monotonic() + SECONDS
        #: Of each service, by its first start: arrivals are the same in every row.
        self.capacities: dict[str, float] = {}

    def job(self, service: str, neighbour: str, ways: tuple[str, ...]) -> None:
        wanted = [way for way in ways if ROWS.search(f"{service} beside {neighbour}: {way}")]
        for way in wanted[:]:
            if time.monotonic() + STARTS_S + self._takes() > self.until:
                self.results.left_out.append(f"{service} beside {neighbour}: {way}")
                wanted.remove(way)
        if not wanted:
            return
        try:
            with ExitStack() as stack:
                pair = self._pair(stack, service, neighbour, wanted[0])
                pair.capacity = self.capacities.setdefault(service, pair.capacity)
                busy = LOAD  # by its own capacity: a request keeps the GPU for as long as it takes
                for way in wanted:
                    if time.monotonic() + self._takes() > self.until:
                        self.results.left_out.append(f"{service} beside {neighbour}: {way}")
                        continue
                    if way in GUARDED:
                        self._share(pair.tenants, *GUARDED[way])
                    row = Row(service, neighbour, way, LOAD, busy, pair.most, pair.clock)
                    self.results.add(pair.measure(row))
        except Silent as error:
            self.results.table.add(f"{service} beside {neighbour}: {wanted}", got=f"not measured: {str(error)[:300]}")
        self.results.write()

    def _takes(self) -> float:
        return 1.5 * WINDOW + 2 * SETTLE + 2 * REST + BESIDE_S

    def _share(self, tenants: Sequence[AgentTenant], *specs: str) -> None:
        """Settings of service and neighbour; samples of some seconds are there when this returns."""
        with Client(f"{self.agent.directory}/control", 60.0) as client:
            for tenant, spec in zip(tenants, specs, strict=True):
                client.call("set", container=tenant.name, spec=spec if "cap" in spec else f"{spec},cap=100%")
        time.sleep(BESIDE_S)

    def _pair(self, stack: ExitStack, service: str, neighbour: str, way: str) -> Pair:
        """Raises Silent."""
        variables: tuple[dict[str, str], dict[str, str]] = ({}, {})
        if way in (MPS, HALF):
            variables = stack.enter_context(mps(100 if way == MPS else 50))
        tenants = [self.agent.tenant(memory=memory * GIB) for memory in (20, 50)] if way in GUARDED else []

        def begin(place: int, program: str, arguments: tuple[object, ...]) -> Spoken:
            tenant = tenants[place] if tenants else None
            return stack.enter_context(self.start(program, *arguments, tenant=tenant, seconds=90, **variables[place]))

        return Pair(begin, service, neighbour, tenants)


@pytest.fixture
def agent(bed: Bed, launcher: Path, environment: dict[str, str]) -> Iterator[RunningAgent]:
    uuid, driver = first_gpu()
    with RunningAgent(bed.directory("agent"), uuid, nodes(), driver, launcher, environment) as running:
        yield running


def test_services_beside_neighbours(agent: RunningAgent, start: Starts, table: Table) -> None:
    require("torch")
    results = Results(table)
    bench = Bench(start, agent, results)
    for job in JOBS:
        bench.job(*job)
    assert PARTS.directory == table.path.parent
    missed = [f"{row.service} beside {row.neighbour}" for row in results.rows if row.way == CLASS and not row.is_met]
    assert not missed, missed
