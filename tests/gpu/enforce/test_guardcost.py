"""What the guard costs a program: allocations, contexts, launches, training; each beside the same program alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.agent import scheduler
from tests.gpu.enforce.conftest import Starts
from tests.support import costs
from tests.support.bed import Bed
from tests.support.costs import Costs
from tests.support.frameworks import require
from tests.support.gpumeasure import first_gpu, nodes
from tests.support.guarded import GuardedTenant, Guarding
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

GIB = 1 << 30
ALLOCATION = 1.45
GOALS = {"alloc + free 4 MiB": ALLOCATION, "alloc + free 4 KiB": ALLOCATION, "empty launch": 1.01}
CONTEXT, TRAINING = 1.08, 0.99
#: Above this the suite fails: goals are not met on every machine (docs/internals/design.md, "Where a goal is not met").
ALLOCATION_MOST, CONTEXT_MOST = 1.6, 1.12
#: A launch is compared by its instructions: from process to process its time differs by more than the goal.
BY_TIME = ("alloc + free 4 MiB", "alloc + free 4 KiB")
#: Processes are started anew, because where their memory lies makes them faster or slower for all their life: an
#: allocation by a half, a context by a tenth.
STARTS, ROUNDS = 14, 3
CONTEXT_STARTS, CONTEXTS, TRAININGS = 18, 3, 6
LAUNCHES = 8000
#: A directory with nvc-monitor and nvc-supervisor of another build, which is compared with this one.
BASELINE = os.environ.get("NVC_GPU_BASELINE", "")
BASELINE_STARTS, BASELINE_ROUNDS, BASELINE_CONTEXTS = 8, 6, 10
#: cost.cu keeps so many pieces beside those that it counts.
PAIRS, KEPT = 150, 8


@pytest.mark.timeout(200)
def test_allocations_cost_what_the_design_allows(calm: Guarding, start: Starts, table: Table) -> None:
    tenant = calm.tenant(memory=8 * GIB)

    def begin() -> list[Spoken]:
        return [start("cost", tenant=tenant), start("cost"), start("cost")]

    found = costs.calls(begin, STARTS, ROUNDS)
    status = tenant.status()
    for what, cost in found.items():
        cost.add(table, what, GOALS.get(what), "µs", scale=1e-3)
    table.add(
        "handling of a notification, mean of all",
        got=f"{status.handling_ns / status.notifications / 1000:.1f} µs of {status.notifications}, "
        f"{status.performed} performed, {status.continued} continued",
    )
    assert {what: found[what].ratio for what in BY_TIME if found[what].misses(ALLOCATION_MOST)} == {}


def test_a_launch_is_none_of_its_business(calm: Guarding, start: Starts, table: Table) -> None:
    tenant = calm.tenant(memory=8 * GIB)
    same = costs.steps(table, lambda: [start("cost", tenant=tenant), start("cost")])
    with start("cost", tenant=tenant) as held:
        before = tenant.status().notifications
        held.ask(f"launch {LAUNCHES}")
        announced = tenant.status().notifications - before

    none = table.add(f"announced calls of {LAUNCHES} launches", goal="0", got=str(announced), good=announced == 0)
    assert same
    assert none


@pytest.mark.timeout(200)
def test_what_a_context_costs(calm: Guarding, start: Starts, table: Table) -> None:
    tenant = calm.tenant(memory=8 * GIB)
    start("context").ask("first")  # the driver does not begin anew with each

    def begin() -> list[Spoken]:
        return [start("context", tenant=tenant), start("context"), start("context")]

    first, made, whole = costs.contexts(begin, CONTEXT_STARTS, CONTEXTS)
    first.add(table, "a program's first context, with cuInit", CONTEXT, "ms", scale=1e-6)
    made.add(table, "context made", CONTEXT, "ms", scale=1e-6)
    whole.add(table, "context made and given back", None, "ms", scale=1e-6)
    assert max(first.ratio, made.ratio) <= CONTEXT_MOST


@pytest.mark.timeout(300)
def test_training_is_as_fast(calm: Guarding, start: Starts, table: Table) -> None:
    require("torch")
    tenant, cost = calm.tenant(memory=40 * GIB), Costs()
    with start("torch_steps.py", tenant=tenant, seconds=120) as held, start("torch_steps.py", seconds=120) as free:
        held.line()
        free.line()
        cost.take((held, free), "rate 1.5", TRAININGS)

    cost.add(table, "PyTorch training, steps a second", TRAINING, "/s", least=True)
    assert cost.ratio >= TRAINING - cost.noise / 2


def announced(tenant: GuardedTenant, program: Spoken, line: str) -> int:
    """How many calls of the driver the tenant's guard is told of, while its program answers a line."""
    before = tenant.status().notifications
    program.ask(line)
    return tenant.status().notifications - before


def test_how_many_calls_are_announced(calm: Guarding, start: Starts, table: Table) -> None:
    tenant = calm.tenant(memory=8 * GIB)
    with start("context", tenant=tenant) as program:
        first, one, two = (announced(tenant, program, line) for line in ("first", "context 1", "context 2"))
    with start("cost", tenant=tenant) as program:
        program.ask(f"alloc {PAIRS} {4 << 20}")
        pairs = announced(tenant, program, f"alloc {PAIRS} {4 << 20}")

    table.add("announced calls of a program's first context, with cuInit and its end", got=str(first))
    table.add("announced calls of another context, made and given back", got=str(two - one))
    table.add("announced calls of an allocation and its freeing, 4 MiB", got=f"{pairs / (PAIRS + KEPT):.2f}")
    assert first > 0
    assert pairs >= 2 * PAIRS


@pytest.fixture
def before(bed: Bed, launcher: Path) -> Iterator[Guarding]:
    """As ``calm``, by the programs of NVC_GPU_BASELINE."""
    uuid, driver = first_gpu()
    programs = str(Path(BASELINE).absolute())
    with Guarding(
        bed.directory("before"), uuid, nodes(), driver, launcher, look=scheduler.LOOK, programs=programs
    ) as guarded:
        yield guarded


@pytest.mark.skipif(not BASELINE, reason="NVC_GPU_BASELINE names no other build")
@pytest.mark.timeout(150)
def test_beside_another_build(calm: Guarding, before: Guarding, start: Starts, table: Table) -> None:
    tenants = [calm.tenant(memory=8 * GIB), before.tenant(memory=8 * GIB)]
    start("context").ask("first")  # the driver does not begin anew with each

    def begin(program: str) -> list[Spoken]:
        return [*(start(program, tenant=tenant) for tenant in tenants), start(program)]

    line = costs.CALLS["alloc + free 4 MiB"]
    pairs = costs.alternating(lambda: begin("cost"), line, BASELINE_STARTS, BASELINE_ROUNDS, warm=True)
    handled = [tenant.status() for tenant in tenants]
    contexts = costs.alternating(lambda: begin("context"), "first", BASELINE_CONTEXTS, 1, warm=False)
    for place, build in enumerate(("this build", "the one before")):
        Costs(pairs[place], pairs[2]).add(table, f"alloc + free 4 MiB, {build}", ALLOCATION, "µs", scale=1e-3)
        Costs(contexts[place], contexts[2]).add(table, f"first context, {build}", CONTEXT, "ms", scale=1e-6)
        status = handled[place]
        table.add(
            f"handling of a notification, {build}",
            got=f"{status.handling_ns / status.notifications / 1000:.2f} µs of {status.notifications}",
        )
    assert Costs(pairs[0], pairs[1]).ratio <= 1 + costs.NOISE
