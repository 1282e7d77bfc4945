"""Caps of many tenants of one GPU, for ``make bench-scale``: what plans say, and for how long channels were on."""

from __future__ import annotations

import time

from nvc.agent.state import records
from nvc.base.errors import NvcError
from nvc.guard.plan_file import open_plan
from tools.scale_real import Node

#: Per mille of the GPU's time; seconds of measuring.
CAP, SECONDS = 100, 20.0
Cells = tuple[str, str, str, bool | None]


def measure(node: Node, count: int) -> list[Cells]:
    """Cells of the table's lines."""
    names = node.fill(count, channels=True, cap=CAP)
    node.settle(count)
    time.sleep(3)
    planned = plans(node)
    before, begun = node.tenants(), time.monotonic()
    time.sleep(SECONDS)
    after, took = node.tenants(), time.monotonic() - begun
    got = [1 - (after[name].gpus[0].frozen_ns - before[name].gpus[0].frozen_ns) / 1e9 / took for name in names]
    held = sum(after[name].gpus[0].cap_in_force for name in names)
    near = sum(abs(part - CAP / 1000) <= 0.01 for part in got)
    off = max(abs(part - CAP / 1000) for part in planned)
    void = sum(part > 0.9 for part in got)
    return [
        (f"{count} caps of {CAP / 10:g} %: in force", "all", f"{held}", held == count),
        ("by their plans", "within 1 point", f"{len(planned)}, at most {off * 100:.2f} points off", off <= 0.01),
        (
            f"measured over {took:.0f} s, all of them on these processors",
            "within 1 point",
            f"{min(got):.1%} / **{sum(got) / count:.1%}** / {max(got):.1%}; {near} of {count} within",
            near == count,
        ),
        ("void", "0", str(void), void == 0),
    ]


def plans(node: Node) -> list[float]:
    """The part of the time that each tenant's plan gives it."""
    found = []
    for record in records.known(node.agent.directory):
        plan = open_plan(records.path(node.agent.directory, record.number))
        try:
            period, since, until = plan.phase(0)
            found.append((until - since) / period if period else 1.0)
        finally:
            plan.close()
    return found


def refused(node: Node) -> str:
    """Why one more cap is not admitted; "": it is."""
    try:
        node.start(cap=CAP)
    except (AssertionError, NvcError) as error:
        return str(error)
    return ""
