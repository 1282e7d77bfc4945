"""What the library costs a program: allocations, launches, training; each beside the same program without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import Shares, Starts
from tests.support import costs
from tests.support.costs import Costs
from tests.support.frameworks import require
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

#: Section 8 of the design; that of a context is our own.
GOALS = {"alloc + free 4 MiB": 1.08, "alloc + free 4 KiB": 1.05, "empty launch": 1.01}
CONTEXT, TRAINING = 1.02, 1.01
#: Processes are started anew, because where their memory lies makes them faster or slower for all their life.
STARTS, ROUNDS = 10, 9
CONTEXT_STARTS, CONTEXTS = 12, 2


@pytest.mark.timeout(200)
@pytest.mark.parametrize("cap", [1000, 999], ids=["quota", "quota-and-thread"])
def test_calls_cost_what_they_did(share: Shares, start: Starts, table: Table, cap: int) -> None:
    """cap 99.9 %: the thread that keeps a cap is there, and takes (nearly) nothing away from launches' throughput."""

    def begin() -> list[Spoken]:
        return [start("cost", share=share(memory=8 << 30, cap=cap)), start("cost"), start("cost")]

    found = costs.calls(begin, STARTS if cap == 1000 else 3, ROUNDS)
    for what, cost in found.items():
        cost.add(table, what + ("" if cap == 1000 else ", cap 99.9 %"), GOALS.get(what), "µs", scale=1e-3)
    if cap == 1000:
        assert {what: cost.ratio for what, cost in found.items() if cost.misses(GOALS.get(what))} == {}


def test_what_is_none_of_its_business_executes_the_same_instructions(
    share: Shares, start: Starts, table: Table
) -> None:
    assert costs.steps(table, lambda: [start("cost", share=share(memory=8 << 30)), start("cost")])


@pytest.mark.timeout(200)
def test_a_context_is_made_as_fast(share: Shares, start: Starts, table: Table) -> None:
    """Hundreds of calls of the driver, few of which are the library's business."""
    start("context").ask("first")  # the driver does not begin anew with each

    def begin() -> list[Spoken]:
        return [start("context", share=share(memory=8 << 30)), start("context"), start("context")]

    first, made, whole = costs.contexts(begin, CONTEXT_STARTS, CONTEXTS)
    first.add(table, "a program's first context, with cuInit", CONTEXT, "ms", scale=1e-6)
    made.add(table, "context made", CONTEXT, "ms", scale=1e-6)
    whole.add(table, "context made and given back", CONTEXT, "ms", scale=1e-6)
    assert not first.misses(CONTEXT)
    assert not whole.misses(CONTEXT)


@pytest.mark.timeout(200)
def test_training_is_as_fast(share: Shares, start: Starts, table: Table) -> None:
    require("torch")
    cost = Costs()
    with start("torch_steps.py", share=share(memory=32 << 30)) as held, start("torch_steps.py") as free:
        held.line()
        free.line()
        sources = [lambda program=program: 1000 / float(program.ask("rate 2.0")) for program in (held, free)]  # type: ignore[misc]
        cost.take_from(sources, 8)

    cost.add(table, "PyTorch training, time of a step", TRAINING, "ms")
    assert not cost.misses(TRAINING)


def test_no_thread_without_a_cap(share: Shares, start: Starts, table: Table) -> None:
    with start("cost", share=share(memory=8 << 30)) as held, start("cost") as free:
        for line in costs.CALLS.values():
            held.ask(line)
            free.ask(line)
        threads = [_threads(program) for program in (held, free)]

    table.add(
        "threads of a program, no cap",
        goal="as without",
        got=str(threads[0]),
        base=str(threads[1]),
        good=threads[0] == threads[1],
    )
    assert threads[0] == threads[1]


def _threads(program: Spoken) -> int:
    return len(list(Path(f"/proc/{program.process.pid}/task").iterdir()))
