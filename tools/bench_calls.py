"""Rows of ``make bench`` that no start of a container is in: calls in a program, scheduling, a changed share."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from nvc.guard.scheduling import Tenant, decide
from nvc.share import preload
from nvc.share.protocol import Client
from tests.support import harmless
from tests.support.agentbed import Held, RunningAgent, build_rawalloc
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.fake_driver import API, MANAGED, SOURCES, compile_library
from tests.support.native import CHECKOUT, build
from tests.support.runtimes import OciRuntime
from tests.support.served import served_machine
from tests.support.wrapped import Wrapped
from tools.measuring import Failed, Row

#: What may be added to a call that is not the driver's and to a look-up by name (ns), to a program's start (ms).
CALL_NS, LOOK_UP_NS, START_MS = 60, 1000, 1.0
#: Processor time for two decisions about a thousand tenants with a phase; the agent's answer to ``set``.
DECISIONS_MS, CHANGE_MS = 2000, 20
#: What containers preload: with a share of the time alone, with a limit of memory, and where that is not enough.
SHARES = {
    "time": preload.names(memory=False, api=False),
    "memory": preload.names(memory=True, api=False),
    "oversubscribed": preload.names(memory=True, api=True),
}


def rows(bed: Bed, runtime: OciRuntime, rounds: int) -> list[Row]:
    """All of them. Raises Failed, CalledProcessError."""
    place = bed.directory("calls")
    few = min(rounds, 3)
    return [
        foreign_calls(place, few),
        *(look_ups(place, few, table) for table in (API, MANAGED)),
        *(starts(place, few, share) for share in SHARES),
        decisions(few),
        changes(bed, runtime, rounds),
    ]


def _numbers(program: Path, library: Path | None = None) -> list[float]:
    """What a program prints, with a library preloaded or without."""
    environment = {**os.environ, "LD_PRELOAD": str(library or "")}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True, timeout=60)
    return [float(word) for word in done.stdout.split()]


def foreign_calls(place: Path, rounds: int) -> Row:
    """ioctl of a bad descriptor, ioctl of a file, close: the one to which most is added."""
    program = place / "shim_speed"
    source = CHECKOUT / "tests/native/shim_speed.c"
    subprocess.run(["gcc", "-O2", "-o", program, source], check=True, timeout=60)
    row = Row("foreign `ioctl` or `close` with libnvc-shim.so", f"without, and {CALL_NS} ns", unit="ns", goal=1.0)
    for _ in range(rounds):
        alone, beside = _numbers(program), _numbers(program, build() / "libnvc-shim.so")
        calls = [(beside[index], alone[index] + CALL_NS) for index in (0, 1, 3)]
        row.pairs.append(max(calls, key=lambda pair: pair[0] - pair[1]))
    return row


def look_ups(place: Path, rounds: int, table: str) -> Row:
    program = compile_library(SOURCES / "speed.c", place / "look_up_speed", "-pie")
    row = Row(f"`dlsym` with {table}", f"without, and {LOOK_UP_NS} ns", unit="ns", goal=1.0)
    for _ in range(rounds):
        (alone,), (beside,) = _numbers(program), _numbers(program, build() / table)
        row.pairs.append((beside, alone + LOOK_UP_NS))
    return row


def starts(place: Path, rounds: int, share: str) -> Row:
    """Medians of pairs of starts, which a program makes without and with the libraries."""
    libraries = build("preload/.made") / "preload" / os.uname().machine
    preloaded = ":".join(str(libraries / name) for name in SHARES[share])
    command = [harmless.build_herd(place), "-pairs", "150", preloaded, "/bin/true"]
    row = Row(f"start of `/bin/true`, libraries of a share ({share})", f"without, and {START_MS:g} ms", goal=1.0)
    for _ in range(rounds):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        pairs = [tuple(int(word) / 1e6 for word in line.split()) for line in done.stdout.splitlines()]
        alone, beside = (statistics.median(column) for column in zip(*pairs, strict=True))
        row.pairs.append((beside, alone + START_MS))
    return row


def decisions(rounds: int) -> Row:
    """A thousand tenants, of which half are replaced: each was once compared with all others, 18 seconds long."""
    row = Row("a thousand tenants scheduled twice", f"{DECISIONS_MS} ms of processor time", goal=1.0)
    for _ in range(rounds):
        tenants = _tenants("t", 1000)
        begin = time.process_time()
        first = decide(tenants, "fair", 1000)
        decide((*tenants[500:], *_tenants("n", 500)), "fair", 1000, before=first.phases)
        row.pairs.append(((time.process_time() - begin) * 1e3, DECISIONS_MS))
    return row


def _tenants(prefix: str, number: int) -> Sequence[Tenant]:
    return tuple(Tenant(f"{prefix}{index}", groups=1) for index in range(number))


def changes(bed: Bed, runtime: OciRuntime, rounds: int) -> Row:
    """The agent's answer to ``set`` for a running container, which has the new limit by then."""
    row = Row("share changed through the agent (simulated machine)", f"{CHANGE_MS} ms", goal=1.0)
    tree = bed.rootfs()
    build_rawalloc(tree / "usr/bin/rawalloc")
    container = Container(tree, ["rawalloc", "1", "1024", "0"], gpu_env("all"), annotations={"nvc.share": "mem=1Gi"})
    with served_machine(bed) as machine, RunningAgent(bed, machine) as agent:
        wrapped = Wrapped(bed, runtime, agent.settings, machine=Path(agent.machine).name)
        with Held(wrapped, container) as held, Client(f"{agent.directory}/control") as client:
            if held.line() != "held":
                raise Failed("the container's program did not get its memory")
            for index in range(rounds):
                begin = time.perf_counter()
                client.call("set", container=held.name, spec=f"mem={index + 4}Gi,weight={index + 1}")
                row.pairs.append(((time.perf_counter() - begin) * 1e3, CHANGE_MS))
                if agent.status().tenants[0].gpus[0].limit != (index + 4) << 30:
                    raise Failed("the changed limit is not in force")
    return row
