"""What is open about hostile programs (docs/internals/guard.md, "Limits"): attacks, and facts that rules wait for.

Facts are written down, and nothing is asserted of them: how a driver starts the channels of a group, which policies
share memory, what UVM keeps of channels, which programs leave a continued call unconfirmed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import PROGRAMS, Starts, streams
from tests.support import gpuhost
from tests.support.attacks import SOURCES
from tests.support.bed import Bed
from tests.support.frameworks import Frameworks
from tests.support.gpu_usage import GpuUsage
from tests.support.gpumeasure import compile_programs, first_gpu
from tests.support.guarded import Guarding
from tests.support.seen import Request
from tests.support.share_kinds import GIB, MIB
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

CAP, POINTS = 20, 1.0
SETTLE, MEASURED = 0.3, 2.0
#: Of the attack: kernels of so many milliseconds.
KERNEL = 30
#: Of two tenants that are compared.
SHORT = 0.65
#: Contexts whose channels UVM knows.
CONTEXTS = 4
#: Of an unconfirmed call (native/rm/rm.h, RM_CONTEXT_BYTES).
UNCONFIRMED = 9 << 19
#: Seconds that one program may take.
PROGRAM = 15
STREAMS = 64


@pytest.fixture(scope="module")
def programs(whole_bed: Bed) -> Path:
    """Those that are used here alone: compiling all takes longer than these tests."""
    sources = [PROGRAMS / name for name in ("burn.cu", "open_facts.c", "references.c")]
    return compile_programs(sources, whole_bed.directory("programs"))


@pytest.fixture(scope="module")
def interpose(whole_bed: Bed) -> Path:
    """The library that changes what the CUDA library asks for."""
    target = whole_bed.directory("interpose") / "interpose.so"
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", str(target)]
    subprocess.run([*command, str(PROGRAMS / "interpose/interpose.c"), "-lpthread"], check=True)
    return target


@pytest.fixture
def usage() -> Iterator[GpuUsage]:
    with GpuUsage(first_gpu()[0]) as looking:
        yield looking


def _noted(out: Path) -> str:
    return "; ".join(sorted(set(out.read_text().splitlines()))) if out.exists() else "nothing"


def test_compute_that_asks_to_stop_between_kernels_only_keeps_its_cap(
    bed: Bed, guarding: Guarding, start: Starts, interpose: Path, table: Table
) -> None:
    """C7: 24.7 % under a cap of 20 % before the guard answered for the mode."""
    out = bed.directory("wfi") / "out"
    tenant = guarding.tenant(memory=8 * GIB)
    more = {"LD_PRELOAD": str(interpose), "INTERPOSE": "wfi", "INTERPOSE_OUT": str(out)}
    with start("burn", "long", KERNEL, tenant=tenant, **more) as program:
        program.line()

        def rate(seconds: float) -> float:
            return float(program.ask(f"rate {seconds}"))

        rate(SETTLE)
        solo = rate(MEASURED)
        tenant.set(cap=CAP * 10)
        rate(SETTLE)
        capped = rate(MEASURED)
    part = 100 * capped / solo
    asked = tenant.refused().get("scheduling-control", 0)
    good = asked > 0 and part <= CAP + POINTS
    table.add(
        f"C7: kernels of {KERNEL} ms that ask not to be preempted, cap {CAP} %",
        goal=f"<= {CAP + POINTS:g} %",
        got=f"{capped:.2f}/s; asked {asked} times: {_noted(out)}",
        base=f"{solo:.2f}/s",
        ratio=f"{part:.2f} %",
        good=good,
    )
    assert good


@pytest.mark.parametrize("mode", ["", "each", "all-but-one", "first"])
def test_how_the_channels_of_a_group_are_started(
    bed: Bed, environment: dict[str, str], programs: Path, interpose: Path, table: Table, mode: str
) -> None:
    """Facts: does the start of one channel start the others of its group? And that of a group those that are made in it
    later (first)? n23 is closed only if not. Without a guard.
    """
    out = bed.directory("schedule") / "out"
    more = {
        "LD_PRELOAD": str(interpose),
        "INTERPOSE": mode,
        "INTERPOSE_OUT": str(out),
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }
    said = streams(programs, {**environment, **more}, PROGRAM)
    good = mode != "first" or ("started 1 0" in _noted(out) and f"done {STREAMS}" not in said)
    table.add(
        f"n23: GPFIFO_SCHEDULE {mode or 'of groups'}", got=f"{said} of {STREAMS} streams; {_noted(out)}", good=good
    )


@pytest.mark.parametrize("mode", ["each", "ended"])
def test_a_changed_weight_is_in_force_however_channels_are_started(
    bed: Bed, guarding: Guarding, start: Starts, interpose: Path, table: Table, mode: str
) -> None:
    """n56: without the guard's rule the first timeslice stays in force for channels that are started one by one."""
    out = bed.directory("started") / "out"
    more = {"LD_PRELOAD": str(interpose), "INTERPOSE": mode, "INTERPOSE_OUT": str(out)}
    one, other = (guarding.tenant(memory=8 * GIB, weight=50) for _ in range(2))
    with start("burn", "plain", SHORT, tenant=one, **more) as first:
        iterations = first.line().split()[2]
        with start("burn", "plain", SHORT, iterations, tenant=other) as second:
            second.line()
            one.set(weight=10)
            other.set(weight=90)
            rates = list[float]()
            for seconds in (SETTLE, MEASURED):
                for program in (first, second):
                    program.tell(f"rate {seconds}")
                rates = [float(program.line()) for program in (first, second)]
    part = 100 * rates[0] / sum(rates)
    good = abs(part - 10) <= POINTS
    table.add(
        f"n56: weight 50, then 10 of 100, channels {'started one by one' if mode == 'each' else 'said to end'}",
        goal=f"within {POINTS:g} points",
        got=f"{part:.2f} %; {_noted(out)}",
        good=good,
    )
    assert good


def test_what_uvm_keeps_of_channels_that_are_freed(
    guarding: Guarding, start: Starts, usage: GpuUsage, table: Table
) -> None:
    """REGISTER_CHANNEL: context buffers that live on are not charged (docs/internals/guard-coverage.md)."""
    tenant, before = guarding.tenant(memory=8 * GIB), usage()
    with start("open_facts", "orphans", CONTEXTS, tenant=tenant) as program:
        made, held = program.line(), usage() - before
        charged = tenant.used()
        program.tell("")
        freed = program.line()
        time.sleep(0.5)
        left, still = usage() - before, tenant.used()
    table.add(
        f"REGISTER_CHANNEL: {CONTEXTS} contexts whose clients are freed, UVM's file is open",
        got=f"{made}, {freed}; held {held // MIB} MiB, charged {charged // MIB}; "
        f"afterwards held {left // MIB}, charged {still // MIB}",
        good=tenant.empty(),
    )


def _programs(place: Path) -> Mapping[str, list[str]]:
    interpreter, script = Frameworks.find().interpreter or sys.executable, str(PROGRAMS / "seen_programs.py")
    found = {
        "nvidia-smi": ["/usr/bin/env", "nvidia-smi"],
        "nvidia-smi -q": ["/usr/bin/env", "nvidia-smi", "-q"],
        "NVML": ["/usr/bin/env", interpreter, script, "nvml"],
        "PyTorch": ["/usr/bin/env", interpreter, script, "torch"],
    }
    program = gpuhost.compile_program(place)
    return {**found, "a CUDA program": [str(program)]} if program is not None else found


def test_which_programs_leave_calls_unconfirmed(
    bed: Bed, guarding: Guarding, environment: dict[str, str], table: Table
) -> None:
    """Beside a process that stays: what a program leaves charged are continued calls of which nothing was found."""
    place = bed.directory("unconfirmed")
    attack = place / "attack"
    command = ["cc", "-std=gnu11", "-O1", "-static", "-pthread", "-o", str(attack)]
    subprocess.run([*command, *map(str, SOURCES)], check=True)
    tenant = guarding.tenant(memory=32 * GIB)
    with Spoken(tenant.wrap([str(attack), "victim"]), environment) as stays:
        for _ in range(3):
            stays.line()
        for name, words in _programs(place).items():
            before = tenant.used()
            try:
                done = subprocess.run(
                    tenant.wrap(words), env=environment, capture_output=True, timeout=PROGRAM, check=False
                )
                said = f"exit code {done.returncode}"
            except subprocess.TimeoutExpired:
                said = f"ended after {PROGRAM} s"
            time.sleep(1.5)
            left = tenant.used() - before
            table.add(
                f"unconfirmed: {name}",
                goal="none",
                got=f"{left / UNCONFIRMED:.2f} calls, {left // 1024} KiB; {said}",
                good=left == 0,
            )
    assert tenant.empty()


def test_which_policies_share_memory(bed: Bed, environment: dict[str, str], programs: Path, table: Table) -> None:
    """n25, a fact: what SHARE and SET_INHERITED_SHARE_POLICY say where processes share memory. Without a guard."""
    place = bed.directory("policies")
    tracer = place / "seen_calls"
    subprocess.run(["cc", "-std=gnu11", "-O1", "-o", tracer, PROGRAMS / "seen_calls.c"], check=True)
    for name, words in {
        "cuIpc": [str(programs / "references"), "ipc"],
        "descriptor": [str(programs / "references"), "exported"],
    }.items():
        out = place / name
        subprocess.run(
            [tracer, out, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROGRAM,
            check=False,
        )
        found = [Request.of(line) for line in out.read_text().splitlines()]
        said = "; ".join(
            f"{one.what}: type {one.number}, mask {one.size:#x}, {count} times"
            for one, count in sorted(found)
            if one.what in ("share", "inherited")
        )
        table.add(f"n25: policies of sharing, {name}", got=said or "none")
