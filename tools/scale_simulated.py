"""An agent with thousands of tenants whose supervisors are a file, for ``make bench-scale``: what readers wait for."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nvc.agent.status import ask
from nvc.base.undo import Undo
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu, Room
from nvc.share.protocol import Client
from tests.support import many_tenants, share_step
from tests.support.many_tenants import GIB
from tests.support.native import CHECKOUT
from tests.support.used import computed
from tools.measuring import Failed, spawn

ROUNDS = 7
#: ``tests.support.many_tenants`` as a process: with metrics, and counters that are published all the time where asked.
_AGENT = """
import asyncio, sys, time
from pathlib import Path
from nvc.agent import report
from nvc.agent.metrics import server
from tests.support import many_tenants
place, count, gpus, port, changes = Path(sys.argv[1]), *map(int, sys.argv[2:6])
agent = many_tenants.make(place, count, gpus)
with many_tenants.serving(agent, place / "control", metrics=f"127.0.0.1:{port}", changes=bool(changes)):
    print("ready", flush=True)
    sys.stdin.read()
"""
Cells = tuple[str, str, str, bool | None]


def measure(place: Path, count: int) -> list[Cells]:
    """Cells of the table's lines."""
    lines: list[Cells] = []
    for gpus, changes in ((1, False), (1, True), (8, False)):
        own = place / f"simulated-{gpus}-{changes}"
        own.mkdir()
        state = "counters published all the time" if changes else "idle"
        with _agent(own, count, gpus, changes=changes) as (agent, port):
            where = f"{count} tenants of {gpus} GPU{'s' * (gpus > 1)}, {state}"
            lines += _readers(own, count, gpus, agent, port, where)
            with open(f"/proc/{agent}/status", encoding="ascii") as file:
                peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1e3
            lines.append((f"{where}: largest resident memory", "", f"{peak:.0f} MB", None))
    for number in (count // 4, count):
        own = place / f"starts-{number}"
        (own / "rootfs").mkdir(parents=True)
        with _agent(own, number, 1, changes=False):
            lines += _starts(own, number)
    return lines


def _starts(place: Path, count: int) -> Iterator[Cells]:
    """The share step, without what it asks before: as a start that the agent guards does it, and as others do."""
    limits = Limits((ResolvedGpu(many_tenants.UUIDS[0], -1, GIB, 0, 10),))
    rooms = (Room(many_tenants.UUIDS[0], 80 * GIB, always=False),)
    for what, control in (("with a guard", str(place / "control")), ("without", "")):
        took = []
        for number in range(4 * ROUNDS):
            undo = Undo()
            begun = time.monotonic()
            share_step.start(str(place / "shares"), f"new{number}", str(place / "rootfs"), limits, rooms, control, undo)
            took.append((time.monotonic() - begun) * 1e3)
            undo.rollback()
        said = f"{min(took):.1f} / **{statistics.median(took):.1f}** / {max(took):.1f} ms"
        yield f"{count} containers: share step of one that starts, {what}", "", said, None


def _readers(place: Path, count: int, gpus: int, agent: int, port: int, where: str) -> Iterator[Cells]:
    control, shares = str(place / "control"), str(place / "shares")

    def status() -> None:
        with Client(control) as client:
            found = len(ask(client).tenants)
        if found != count:
            raise Failed(f"a status of {found} tenants")

    def metrics() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            page: bytes = answer.read()
        if page.count(b"\nnvc_share_memory_bytes{") != min(count, 2048) * gpus:
            raise Failed("metrics are not complete")
        return len(page)

    def command(*words: str) -> Callable[[], object]:
        output = place / "output"

        def run() -> None:
            with output.open("wb") as file:
                subprocess.run(
                    [sys.executable, "-m", "nvc", *words], cwd=CHECKOUT, stdout=file, check=True, timeout=120
                )
            text = output.read_text()
            found = sum(f"pod-{number:06}" in text for number in (1, count // 2, count))
            if found != 3:
                raise Failed(f"{words[0]} is not complete")

        return run

    # Of one GPU; with eight there are eight times as many lines.
    for what, goal, call in (
        ("`status`", 0.2, status),
        ("`share ls`", 0.5, command("share", "--store", shares, "ls", "--agent", control)),
        ("`top --once`", 1.0, command("top", "--once", "--store", shares, "--agent", control)),
        ("`/metrics`", 0.5, metrics),
    ):
        took, used = [], []
        for _ in range(ROUNDS):
            begun, before = time.monotonic(), _used(agent)
            call()
            took.append(time.monotonic() - begun)
            used.append(_used(agent) - before)
        median = statistics.median(took)
        said = f"{min(took):.2f} / **{median:.2f}** / {max(took):.2f} s; processor {statistics.median(used):.2f} s"
        yield f"{where}: {what}", f"<= {goal:g} s" if gpus == 1 else "", said, median <= goal if gpus == 1 else None
    start = statistics.median(spawn([sys.executable, "-m", "nvc", "share", "--help"]) for _ in range(ROUNDS))
    yield f"{where}: of a command, its start (`share --help`)", "", f"{start:.2f} s", None


def _used(agent: int) -> float:
    """Seconds of the processor, of the agent and of what reads."""
    times = os.times()
    return computed([agent]) + times.user + times.system + times.children_user + times.children_system


@contextmanager
def _agent(place: Path, count: int, gpus: int, *, changes: bool) -> Iterator[tuple[int, int]]:
    """Its pid and the port of its metrics."""
    many_tenants.fill(place / "shares", count, gpus)
    port = 20000 + os.getpid() % 20000
    process = subprocess.Popen(
        [sys.executable, "-c", _AGENT, str(place), str(count), str(gpus), str(port), str(int(changes))],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise Failed("the agent with simulated supervisors does not start")
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
