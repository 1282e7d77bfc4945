"""The memory of a share is exact for every way to allocate, whichever enforces it."""

from __future__ import annotations

import pytest

from tests.gpu.enforce.conftest import GUARD, LIBRARY, Enforcer
from tests.support import leftovers
from tests.support.gpumeasure import used_mib
from tests.support.share_kinds import GIB, KINDS, MIB, OUT_OF_MEMORY, STILL, UNCOUNTED
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system]

#: What libcuda keeps to itself until the context ends, MiB: a graph's launch that was refused had taken a part already,
#: and cuDeviceGraphMemTrim does not give that back.
KEPT = {"graph": 512}
#: The guard cannot refuse managed memory: test_guardquota.py has a test of its own.
CASES = [(name, kind) for name in (LIBRARY, GUARD) for kind in KINDS if (name, kind) != (GUARD, "managed")]


@pytest.mark.parametrize(("enforcer", "kind"), CASES, indirect=["enforcer"])
def test_a_kind_of_allocation_reaches_the_limit_and_not_beyond(enforcer: Enforcer, table: Table, kind: str) -> None:
    gibibytes, left_allowed = KINDS[kind]
    limit = gibibytes * GIB
    held = enforcer.share(memory=limit)
    before = used_mib()

    with held.start("quota", kind, "fill", 2 * limit) as program:
        full = program.until("full")
        used, real = held.used(), used_mib() - before
        program.tell("")
        after = program.until("done")
        idle = held.used()
        assert program.end() == 0
    empty = held.is_empty()
    settled = leftovers.until(lambda: used_mib() <= before + STILL, seconds=10)

    left = full["free_full"] / MIB
    good = full["status"] == OUT_OF_MEMORY and left < left_allowed and used <= limit and empty and settled
    table.add(
        f"{enforcer.name}, {kind}: taken until refused",
        goal=f"{gibibytes} GiB, less than {left_allowed} MiB left, then CUDA_ERROR_OUT_OF_MEMORY; nothing stays",
        got=f"{full['taken'] / MIB:.0f} MiB taken, {left:.1f} MiB left, status {full['status']}; "
        f"nvidia-smi +{real} MiB; refunded: {empty}",
        good=good,
    )
    assert good
    assert limit == full["total"]
    assert limit - full["free_full"] == used, "cuMemGetInfo and the enforcer disagree"
    assert real <= limit // MIB + UNCOUNTED
    assert after["status_again"] == 0, "what was given back could not be taken again"
    assert full["free_start"] - after["free_end"] <= KEPT.get(kind, 0) * MIB
    assert held.says_why()
    if enforcer.name == LIBRARY:
        assert idle == limit - after["free_end"]
