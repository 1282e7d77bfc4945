"""oversubscribe=on: memory of a share is managed memory, which can lie in the host's, and the limit still holds.

Within what the GPU has free: nothing is driven out of it by need, the program itself sends a piece to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.enforce.conftest import GUARD, LIBRARY, Shares, Starts
from tests.support.gpuhost import smi
from tests.support.guarded import Guarding
from tests.support.share_kinds import OUT_OF_MEMORY
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system, pytest.mark.timeout(60)]

MIB, GIB = 1 << 20, 1 << 30
PIECE = GIB


@pytest.mark.parametrize("enforcer", [LIBRARY, GUARD])
def test_memory_goes_to_the_host_and_comes_back(
    share: Shares,
    guarding: Guarding,
    start: Starts,
    driver_usage: Callable[[], int],
    table: Table,
    enforcer: str,
) -> None:
    """A limit above what the GPU has, and one that is reached with what is free."""
    card = int(smi("--query-gpu=memory.total", "--format=csv,noheader,nounits").splitlines()[0]) * MIB
    limit, above = 5 * GIB, card + 8 * GIB
    found = {}
    for memory in (limit, above):
        fields: dict[str, Any] = {"memory": memory, "oversubscribe": True}
        # Under the guard a container has the library too: what CUDA's functions do changes in the process only.
        under = {"tenant": guarding.tenant(**fields)} if enforcer == GUARD else {}
        with start("spill", PIECE, share=share(**fields), **under) as program:
            said = program.until("here")
            places = [driver_usage()]
            for word in ("there", "back"):
                program.tell("")
                said |= program.until(word)
                places.append(driver_usage())
            if memory == limit:  # the other one would fill the card
                program.tell("")
                said |= program.until("end")
            found[memory] = said, places
    (said, places), (larger, _) = found[limit], found[above]
    moved = places[0] - places[1], places[2] - places[1]
    good = (
        said["managed"] == 1
        and min(moved) >= PIECE / MIB * 0.9
        and (said["wrong_there"], said["wrong_back"], said["refused"]) == (0, 0, OUT_OF_MEMORY)
        and limit - GIB - PIECE < (said["pieces"] + 1) * PIECE <= limit
        and larger["total"] == above
    )
    table.add(
        f"oversubscribe=on, {enforcer}: 1 GiB to the host and back; mem={limit // GIB}Gi full; mem above the card",
        goal="the GPU has 1 GiB less meanwhile, nothing is lost, the limit holds, the total is mem",
        got=f"{moved[0]} and {moved[1]} MiB, {said['wrong_there']} + {said['wrong_back']} bytes wrong, "
        f"{said['pieces'] + 1} pieces, then {said['refused']}; total {larger['total'] / GIB:.1f} GiB",
        good=good,
    )
    assert good, found
