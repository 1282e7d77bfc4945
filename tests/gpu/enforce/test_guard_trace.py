"""Where the time of a context goes: each call of the driver, with the guard, without, and without but later."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from nvc.guard.requests import announced_escapes
from tests.gpu.enforce.conftest import Starts
from tests.support.guarded import Guarding
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

GIB = 1 << 30
STARTS, CONTEXTS = 8, 4
#: Nanoseconds that a program without a guard waits before each call that one would announce.
WAITS = (2000, 5000, 8000)
MMAP = 0x100
#: Low bytes of the announced requests: CUDA makes none of another size with them.
ESCAPES = sorted({low for low, _ in announced_escapes()})
SHOWN = 14


@dataclass(frozen=True)
class Context:
    """One context made. ms: the whole. calls: (key, ms), in their order. same: announced calls that changed nothing.

    Which those are: context_calls.c.
    """

    ms: float
    calls: tuple[tuple[str, float], ...]
    same: int

    @staticmethod
    def of(answer: str) -> Context:
        whole, *words = answer.split()
        calls = tuple((key, int(ns) / 1e6) for key, ns in zip(words[::3], words[1::3], strict=True))
        same = sum(is_announced(key) and changed == "0" for key, changed in zip(words[::3], words[2::3], strict=True))
        return Context(int(whole) / 1e6, calls, same)

    def spent(self, announced: bool) -> float:
        """In calls that are announced to a guard, or in the others."""
        return sum(ms for key, ms in self.calls if is_announced(key) == announced)


def is_announced(key: str) -> bool:
    return int(key.partition(".")[0], 16) in (*ESCAPES, MMAP)


def medians(contexts: Sequence[Context]) -> dict[str, tuple[int, float]]:
    """Of each key: how many calls a context makes, and the median of what they take together, in ms."""
    together: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for context in contexts:
        of_one: dict[str, float] = defaultdict(float)
        for key, ms in context.calls:
            of_one[key] += ms
            counts[key] += 1
        for key, ms in of_one.items():
            together[key].append(ms)
    return {key: (round(counts[key] / len(contexts)), statistics.median(found)) for key, found in together.items()}


@pytest.mark.timeout(250)
def test_the_time_of_a_context(calm: Guarding, start: Starts, table: Table) -> None:
    tenant = calm.tenant(memory=8 * GIB)
    found: dict[str, list[Context]] = defaultdict(list)
    begun: dict[str, list[list[float]]] = {}
    start("context").ask("first")  # the driver does not begin anew with each
    for _ in range(STARTS):
        held, free = start("context_calls", *ESCAPES, tenant=tenant), start("context_calls", *ESCAPES)
        asked: list[tuple[str, Spoken, int]] = [("behind the guard", held, 0), ("without", free, 0)]
        asked += [(f"without, {wait / 1000:g} µs later", free, wait) for wait in WAITS]
        for what, program in (("behind the guard", held), ("without", free)):
            begun.setdefault(what, []).append([int(ns) / 1e6 for ns in program.ask("first").split()])
        for turn in range(CONTEXTS):
            for what, program, wait in asked[turn % len(asked) :] + asked[: turn % len(asked)]:
                found[what].append(Context.of(program.ask(f"context {wait}")))
        for program in (held, free):
            program.kill()
    for what, both in begun.items():
        initialized, made = (statistics.median(one) for one in zip(*both, strict=True))
        table.add(f"a program's first, {what}", got=f"cuInit {initialized:.2f} ms, context {made:.2f} ms")
    native = statistics.median(one.ms for one in found["without"])
    for what, contexts in found.items():
        table.add(
            what,
            got=f"{statistics.median(one.ms for one in contexts):.2f} ms, of which announced calls "
            f"{statistics.median(one.spent(True) for one in contexts):.2f}, others "
            f"{statistics.median(one.spent(False) for one in contexts):.2f}",
            base=f"{sum(is_announced(key) for key, _ in contexts[0].calls)} of {len(contexts[0].calls)} announced, "
            f"{contexts[0].same} of these change nothing",
            ratio=f"{statistics.median(one.ms for one in contexts) / native:.3f}",
        )
    behind, alone, later = (
        medians(found[what]) for what in ("behind the guard", "without", f"without, {WAITS[1] / 1000:g} µs later")
    )
    most = sorted(behind, key=lambda key: behind[key][1] - alone.get(key, (0, 0.0))[1], reverse=True)
    for key in most[:SHOWN]:
        table.add(
            f"{'' if is_announced(key) else 'not announced: '}{key}",
            got=f"{behind[key][0]} calls, {behind[key][1]:.3f} ms; without, {WAITS[1] / 1000:g} µs later "
            f"{later.get(key, (0, 0.0))[1]:.3f} ms",
            base=f"{alone.get(key, (0, 0.0))[1]:.3f} ms",
        )
    assert {key for key in behind if is_announced(key)} == {key for key in alone if is_announced(key)}
