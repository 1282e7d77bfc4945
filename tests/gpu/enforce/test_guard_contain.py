"""One tenant's fault beside another: does the neighbour compute on, how long does the fault last, is all given back?

And is it told whose it was: the driver's Xid, with the container's name.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import PROGRAMS, Starts
from tests.support import leftovers
from tests.support.agent_tenants import RunningAgent
from tests.support.bed import Bed
from tests.support.gpumeasure import compile_programs, first_gpu, nodes
from tests.support.guarded import Guarding
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system, pytest.mark.timeout(200)]

GIB = 1 << 30
KERNEL, WINDOW = 0.65, 0.7
#: How often each fault is made; kinds of fault.cu that end by themselves, and those that are killed.
TIMES = 3
FAULTS, KILLED = ("address", "misaligned", "trap", "assert", "stack", "host"), ("endless", "huge")
#: The neighbour's rate after a fault, of before.
LEAST = 0.98
#: What the resets of engines.c take, with a second before them.
RESETTING = 3.0


@pytest.fixture(scope="module")
def programs(whole_bed: Bed) -> Path:
    """Those that are used here alone: compiling all takes longer than these tests."""
    return compile_programs([PROGRAMS / name for name in ("burn.cu", "fault.cu")], whole_bed.directory("programs"))


@pytest.mark.parametrize("kind", FAULTS + KILLED)
def test_a_fault_ends_its_own_tenant_alone(kind: str, guarding: Guarding, start: Starts, table: Table) -> None:
    neighbour, faulty = guarding.tenant(memory=8 * GIB), guarding.tenant(memory=8 * GIB)
    burn = start("burn", "plain", KERNEL, tenant=neighbour)
    burn.line()
    burn.ask(f"rate {WINDOW}")
    before = float(burn.ask(f"rate {WINDOW}"))
    errors, ends = list[str](), list[float]()
    for _ in range(TIMES):
        program = start("fault", kind, tenant=faulty, seconds=30)
        assert program.line() == "ready"
        burn.tell(f"rate {WINDOW}")
        program.tell("go")
        begun = time.monotonic()
        if kind in KILLED:
            time.sleep(0.3)
            program.kill()
            errors.append("killed")
        else:
            errors.append(program.line())
            program.end()
        ends.append(time.monotonic() - begun)
        burn.line()  # the neighbour answers: its context lives
    empty = faulty.empty()
    after = float(burn.ask(f"rate {WINDOW}"))
    good = after >= LEAST * before and empty
    table.add(
        f"fault {kind}, {TIMES} times",
        goal=f"the neighbour lives, afterwards >= {LEAST:g} of its rate; nothing stays",
        got=f"errors {', '.join(errors)}; over after {max(ends):.2f} s at most; nothing stays: {empty}",
        base=f"{before:.1f}/s before, {after:.1f}/s after",
        ratio=f"{after / before:.3f}",
        good=good,
    )
    assert good


@pytest.mark.parametrize("kind", ["idle", "endless"])
def test_a_reset_of_a_channel_ends_its_own_tenant_alone(
    bed: Bed, kind: str, guarding: Guarding, start: Starts, interposers: str, table: Table
) -> None:
    """RESET_CHANNEL, by which libcuda ends its context after a trap: of channels that compute or do nothing."""
    out = bed.directory("reset") / "out"
    neighbour, resets = guarding.tenant(memory=8 * GIB), guarding.tenant(memory=8 * GIB)
    more = {"LD_PRELOAD": interposers, "ENGINES": "reset", "INTERPOSE_OUT": str(out)}
    with start("burn", "plain", KERNEL, tenant=neighbour) as burn:
        burn.line()
        burn.ask(f"rate {WINDOW}")
        before = float(burn.ask(f"rate {WINDOW}"))
        with start("fault", "endless", tenant=resets, seconds=30, **more) as program:
            assert program.line() == "ready"
            burn.tell(f"rate {RESETTING}")
            if kind == "endless":
                program.tell("go")
            during = float(burn.line())
        empty = resets.empty()
        after = float(burn.ask(f"rate {WINDOW}"))
    said = dict(Counter(line for line in out.read_text().splitlines() if "reset" in line))
    good = min(after, during if kind == "idle" else after) >= LEAST * before and empty
    table.add(
        f"RESET_CHANNEL, {kind}",
        goal=f"the neighbour lives, and has >= {LEAST:g} of its rate; nothing stays",
        got=f"{said}; refused {resets.refused()}; nothing stays: {empty}",
        base=f"{before:.1f}/s before, {during:.1f}/s meanwhile, {after:.1f}/s after",
        ratio=f"{after / before:.3f}",
        good=good,
    )
    assert good
    assert any("result, status 0 0" in line for line in said), said


@pytest.fixture
def agent(bed: Bed, launcher: Path, environment: dict[str, str]) -> Iterator[RunningAgent]:
    uuid, driver = first_gpu()
    with RunningAgent(bed.directory("agent"), uuid, nodes(), driver, launcher, environment) as running:
        yield running


def test_a_fault_is_told_with_its_container(agent: RunningAgent, start: Starts, table: Table) -> None:
    """Where the kernel's log can be read here."""
    tenant = agent.tenant(memory=8 * GIB)
    program = start("fault", "address", tenant=tenant, seconds=30)
    assert program.line() == "ready"
    program.tell("go")
    program.line()

    def events() -> list[dict[str, object]]:
        lines = agent.log.read_text().splitlines()
        return [json.loads(line) for line in lines if '"event": "xid"' in line or '"event":"xid"' in line]

    found = leftovers.until(lambda: bool(events()), seconds=5)
    status = tenant.status()
    table.add(
        "Xid of a fault (address)",
        goal="told, with the container and GPU",
        got=f"{events()}; in the status: {status['gpus'][0]['xids'] if status else None}",
        good=found and events()[0]["container"] == tenant.name and events()[0]["gpu"] == agent.uuid,
    )
    assert found, "no Xid in the kernel's log that the agent could read"
    assert (events()[0]["container"], events()[0]["gpu"]) == (tenant.name, agent.uuid)
